"""A cluster in one process and without Ray: metadata, bookies, broker and gateway on one event loop.

The parts are those of a cluster on several machines, with real files, sockets and fsync (I1, I2).
"""
