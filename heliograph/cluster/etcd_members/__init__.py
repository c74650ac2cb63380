"""The etcd members that a cluster runs itself: where they are, and the record by which a start finds them.

The address of a member never changes while it is one.
"""
