"""Files, aligned memory and free space: the only folder that opens, writes or syncs files of a bookie."""
