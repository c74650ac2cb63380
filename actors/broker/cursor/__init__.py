"""Keep a subscription's acknowledgements, and make them durable in their own ledger.

Keeps I11 (a confirmed acknowledgement survives a crash; the mark never passes an unacknowledged entry by itself).
"""
