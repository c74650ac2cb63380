"""Keys, records, addresses, messages and connections of etcd, each bounded (I15)."""
