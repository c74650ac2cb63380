"""The journal: every add is written and synced here before it is answered (I1), and read back after a crash."""
