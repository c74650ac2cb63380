"""The messages of one batch as columns: all at once where their heads have the usual form, else one by one. No I/O."""
