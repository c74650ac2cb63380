"""The logs of the parts: one file a part in the cluster's home, written where the part runs and read by ``helio logs``.

Lines begin with their time, and no text that a stranger sends begins a line. Lines in memory are bounded (I15).
"""
