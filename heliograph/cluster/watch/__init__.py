"""Doors for those who watch a cluster: each part serves its metrics, and a file names all parts that do.

Watching never keeps a part from its work: a door that cannot be opened is a line in the log (I15, I24).
"""
