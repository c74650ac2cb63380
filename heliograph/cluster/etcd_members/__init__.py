"""The etcd members that a cluster runs itself: their places, and the record by which a start finds them.

The address of a member never changes while it is one.
"""
