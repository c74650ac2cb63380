"""When a ledger has taken enough entries, so that the topic goes on in a new one (pure)."""

from __future__ import annotations

from heliograph.actors.broker.records.ledgers import LedgerWriterPort
from heliograph.metadata.model import Policies


def is_full(writer: LedgerWriterPort, in_flight: int, age_seconds: float, policies: Policies) -> bool:
    """Return whether a ledger is at one of its limits. An empty one is never too old.

    Args:
        writer: of the ledger.
        in_flight: the entries that the writer has not confirmed.
        age_seconds: the time since the ledger was opened.
    """
    confirmed = writer.last_add_confirmed + 1
    return (
        confirmed + in_flight >= policies.ledger_entries_max
        or writer.length >= policies.ledger_bytes_max
        or (confirmed > 0 and age_seconds >= policies.ledger_age_seconds_max)
    )
