"""The replication protocol: how a ledger is written, read, recovered and repaired. No I/O; ``driver`` runs it.

Each core takes events and returns effects; time and randomness are passed in. Keeps I1, I2, I3, I5, I7, I8, I9 and I10.
"""
