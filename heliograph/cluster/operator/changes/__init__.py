"""How wishes for parts with data are carried out: bookies on other disks or nodes, lost disks, the members of etcd.

The outcome of a wish says which step is next, so another operator goes on there. No bookie runs while it is copied.
"""
