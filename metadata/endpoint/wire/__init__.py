"""The bytes of ZooKeeper's client protocol, without I/O. No frame makes the decoder allocate without bound (I15)."""
