"""The etcd members that a cluster runs itself: where they are, how one is replaced, and how metadata gets there.

The address of a member never changes while it is one; members join and leave one at a time.
"""
