"""The etcd members that a cluster runs itself: one child process on each disk, its identity, and its administration.

A member never outlives its actor, and never serves a disk of another cluster or a disk that lost its data.
"""
