"""Store a topic's entries in a chain of ledgers and read them back by index.

Keeps I3 (no reader passes the confirmed end), I12 (one order, one open ledger) and I14 (ledgers go from the head only).
"""
