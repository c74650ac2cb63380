"""The etcd members that a cluster runs itself."""
