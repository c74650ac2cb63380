"""The embedded server: a tree on RocksDB; an answer leaves only when what it reveals is durable (I13, I15)."""
