"""Repair of a ledger: what to copy and when to name the new bookie (I10), and how much to copy at once beside clients.

No I/O.
"""
