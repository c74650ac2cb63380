"""Work in the background: checkpoints, garbage collection, compaction, the way out of limbo. Keeps I14."""
