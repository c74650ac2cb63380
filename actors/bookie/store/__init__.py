"""The store of a bookie: caches, entry logs, index, ledgers and fences. Keeps I4 and I6."""
