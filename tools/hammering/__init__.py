"""What `tools/hammer` runs. Not part of the package that is installed."""
