"""Placement policies, the choice of bookies for ensembles, and changes of segments. No I/O. Keeps I8, I9."""
