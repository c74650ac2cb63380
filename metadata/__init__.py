"""The metadata store: one port with ZooKeeper's semantics, its backends, and what is built on it."""
