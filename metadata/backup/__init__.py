"""Copies of a whole store: into a file, out of a file, and from one store into another.

A copy holds every node that lives without a session, as it was at one moment. The target store is empty before, and
becomes a cluster's store with the last write.
"""
