"""Writes as etcd transactions: planned on observed revisions, applied once, and only if those still hold (I9)."""
