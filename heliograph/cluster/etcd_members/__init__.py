"""The etcd members that a cluster runs itself: where they are, how one is replaced, and how metadata gets there.

Their names and addresses never change after the first start.
"""
