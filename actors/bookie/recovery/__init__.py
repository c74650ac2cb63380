"""Opening a bookie's storage after a stop or a crash: locks, indexes, replay of the journal."""
