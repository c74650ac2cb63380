"""Keep what a subscription has acknowledged, and make it durable in a ledger of its own.

Keeps I11 (a confirmed acknowledgement survives a crash; the mark never passes an unacknowledged entry by itself).
"""
