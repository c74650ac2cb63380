"""The one table of administrative operations: brokers serve it; clients, gateway and command line call by it.

No I/O, and no invariant is kept here."""
