"""Copies of a whole store: into a file, out of a file, and from one store into another.

A copy holds every node that lives without a session, as it was at one moment. A store that a copy is written into is
empty before, and becomes a cluster's with the last write.
"""
