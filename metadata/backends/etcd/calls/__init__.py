"""The calls of an etcd session: run in call order, reads and writes in groups, each write exactly once (I9)."""
