"""Foreign transcripts to drafts: one module or folder per harness.

An adapter is pure translation. It knows no database, no network and no clock, it never changes the
files that it reads, and the same bytes always give the same drafts with the same keys.
"""
