"""Which ledgers of a topic may be deleted (pure): whole ledgers from the head, which neither a durable cursor nor
retention needs (I14)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from heliograph.metadata.model import LedgerInfo, Policies, TopicRecord

UNLIMITED = -1


def trimmable_ledgers(
    ledgers: Sequence[LedgerInfo],
    needed_from: int,
    now_ms: int,
    *,
    retention_seconds: int,
    retention_bytes: int,
) -> int:
    """Return how many ledgers at the head may be deleted.

    Args:
        ledgers: all ledgers of the topic, oldest first. The last one takes new entries and never counts.
        needed_from: the ledger of the slowest durable cursor; a number above all ledger ids when there is no cursor.
        now_ms: the wall clock.
        retention_seconds: how long a ledger is kept after it was closed, -1 for ever.
        retention_bytes: how many bytes of closed ledgers are kept, -1 for all.
    """
    assert all(one.ledger_id < two.ledger_id for one, two in pairwise(ledgers)), "ledger ids of a topic grow"  # I12
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
    assert count == 0 or count < len(ledgers), "the ledger that takes entries stays"  # I14
    return count


def trimmable_of(
    record: TopicRecord, last_ledger_id: int, needed_from: int, now_ms: int, policies: Policies, *, keeps_retained: bool
) -> int:
    """Return how many ledgers at the head of a topic may be deleted.

    Args:
        last_ledger_id: the ledger that takes new entries; later ones are not in use yet.
        needed_from, now_ms: as those of ``trimmable_ledgers``.
        keeps_retained: False to count what only retention keeps, too.
    """
    return trimmable_ledgers(
        [info for info in record.ledgers if info.ledger_id <= last_ledger_id],
        needed_from,
        now_ms,
        retention_seconds=policies.retention_seconds if keeps_retained else 0,
        retention_bytes=policies.retention_bytes if keeps_retained else 0,
    )
