"""Values and interfaces that the whole broker uses: positions, entries, the records of topics and cursors, and the
ledgers.

Keeps I9 and I13 for records: only the owner writes them, by compare-and-set.
"""
