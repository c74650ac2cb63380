"""The server side, which runs in Ray actors: ledgers, bookies, brokers, the auditor, and the wire between them.

Each folder states the invariants of ARCHITECTURE.md that it keeps.
"""

if __name__ != "heliograph.actors":
    raise ImportError(f"{__name__!r} is a folder of Heliograph: import heliograph.actors instead")
