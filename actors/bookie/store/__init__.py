"""What a bookie stores: caches, entry logs, index, ledgers and fences. Keeps I4 and I6."""
