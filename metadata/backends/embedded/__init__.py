"""The embedded backend: a small server on RocksDB, and its client."""
