"""Members of etcd that a cluster runs itself, with real processes."""
