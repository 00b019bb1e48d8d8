"""The tables of the log and their SQL: what is written, what is read.

names     the interned names of agents, tasks, threads, tools, kinds
sessions  which sessions there are
blobs     values too long for a line, and attachments
reading   envelopes and payloads by place, by id, by filter
preparing drafts to bytes, before the transaction
writing   drafts to rows, in one transaction
copies    every file outside the database that may hold plaintext
erasing   content that goes; removing and emptying: sessions that go whole
opening   a store's directory: found, made, opened
"""
