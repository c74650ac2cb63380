"""Which ledgers of a topic may go (pure): whole ones, from the head, that neither a durable cursor nor retention needs
(I14)."""

from __future__ import annotations

from collections.abc import Sequence

from metadata.model import LedgerInfo

UNLIMITED = -1


def expendable(
    ledgers: Sequence[LedgerInfo],
    needed_from: int,
    now_ms: int,
    *,
    retention_seconds: int,
    retention_bytes: int,
) -> int:
    """How many ledgers at the head may be deleted.

    Args:
        ledgers: all of the topic's, oldest first; the last one takes entries and is never counted.
        needed_from: the ledger that the slowest durable cursor still needs; a large number when there is no cursor.
        retention_seconds: how long ledgers are kept after they were closed, -1 for ever.
        retention_bytes: how many bytes of closed ledgers are kept, -1 for all.
    """
    remaining = sum(ledger.size for ledger in ledgers)
    count = 0
    for ledger in ledgers[:-1]:
        if ledger.ledger_id >= needed_from or ledger.closed_ms == 0:  # I14
            break
        is_old = retention_seconds != UNLIMITED and now_ms - ledger.closed_ms >= retention_seconds * 1000
        is_much = retention_bytes != UNLIMITED and remaining - ledger.size >= retention_bytes
        if not is_old and not is_much:
            break
        remaining -= ledger.size
        count += 1
    return count
