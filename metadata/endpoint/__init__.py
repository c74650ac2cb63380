"""An endpoint that speaks ZooKeeper's client protocol over any metadata store; the bytes: docs/formats-metadata.md."""
