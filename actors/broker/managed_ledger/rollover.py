"""When a ledger has taken enough entries, so that the topic goes on in a new one (pure).

While the metadata store is silent no ledger can follow, and the last one is written on. That needs no bound: entry ids
go up to 2**48, and nothing reads, recovers or copies a ledger as a whole.
"""

from __future__ import annotations

from heliograph.metadata.model import Policies


def is_full(entries: int, size: int, policies: Policies) -> bool:
    """Return whether a ledger has as many entries or bytes as it may.

    Args:
        entries, size: the entries that its writer was given, and their bytes.
    """
    return entries >= policies.ledger_entries_max or size >= policies.ledger_bytes_max


def is_old(confirmed: int, age_seconds: float, policies: Policies) -> bool:
    """Return whether a ledger was open for as long as it may. An empty one is never too old.

    Args:
        confirmed: the number of its confirmed entries.
        age_seconds: the time since it was opened.
    """
    return confirmed > 0 and age_seconds >= policies.ledger_age_seconds_max
