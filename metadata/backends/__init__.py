"""One folder for each backend of the metadata store: embedded server, etcd, ZooKeeper, and memory for tests."""
