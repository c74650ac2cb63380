"""Which ledgers of a topic may be deleted (pure): whole ledgers from the head, which neither a durable cursor nor
retention needs (I14)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from heliograph.actors.broker.records.topic_chain import stored_bytes
from heliograph.base.clock import NEVER_MS
from heliograph.metadata.model import LedgerInfo, Policies, TopicRecord

UNLIMITED = -1
TRIMMED_AT_ONCE_MAX = 500  # ledgers that leave the chain in one write of the record  # I15


def trimmable_ledgers(
    head: Sequence[LedgerInfo],
    needed_from: int,
    now_ms: int,
    *,
    kept_bytes: int,
    retention_seconds: int,
    retention_bytes: int,
) -> int:
    """Return how many ledgers at the head may be deleted, at most ``TRIMMED_AT_ONCE_MAX``.

    Args:
        head: the oldest ledgers of the topic, oldest first, without the one that takes new entries.
        needed_from: the ledger of the slowest durable cursor; a number above all ledger ids when there is no cursor.
        now_ms: the wall clock.
        kept_bytes: the bytes of all closed ledgers of the topic.
        retention_seconds: how long a ledger is kept after it was closed, -1 for ever.
        retention_bytes: how many bytes of closed ledgers are kept, -1 for all.
    """
    assert all(one.ledger_id < two.ledger_id for one, two in pairwise(head)), "ledger ids of a topic grow"  # I12
    remaining = kept_bytes
    count = 0
    for ledger in head[:TRIMMED_AT_ONCE_MAX]:
        if ledger.ledger_id >= needed_from or ledger.closed_ms == 0:  # I14
            break
        is_old = retention_seconds != UNLIMITED and now_ms - ledger.closed_ms >= retention_seconds * 1000
        is_much = retention_bytes != UNLIMITED and remaining - ledger.size >= retention_bytes
        if not is_old and not is_much:
            break
        remaining -= ledger.size
        count += 1
    return count


def trimmable_of(
    record: TopicRecord,
    head: Sequence[LedgerInfo],
    last_ledger_id: int,
    needed_from: int,
    now_ms: int,
    policies: Policies,
    *,
    keeps_retained: bool,
) -> int:
    """Return how many ledgers at the head of a topic may be deleted now.

    Args:
        head: the oldest ledgers of the topic.
        last_ledger_id: the ledger that takes new entries; later ones are not in use yet.
        needed_from, now_ms: as of ``trimmable_ledgers``.
        keeps_retained: False to count what only retention keeps, too.
    """
    return trimmable_ledgers(
        [info for info in head if info.ledger_id < last_ledger_id],
        needed_from,
        now_ms,
        kept_bytes=stored_bytes(record),
        retention_seconds=policies.retention_seconds if keeps_retained else 0,
        retention_bytes=policies.retention_bytes if keeps_retained else 0,
    )


def trim_due_ms(record: TopicRecord, last_ledger_id: int, needed_from: int, now_ms: int, policies: Policies) -> int:
    """Return when ``may_trim`` is True, if nothing changes until then; ``NEVER_MS`` if a cursor, or retention without
    end, keeps the oldest ledger. Arguments as those of ``trimmable_of``."""
    head = _oldest(record)
    if not head or head[0].ledger_id >= min(last_ledger_id, needed_from) or not head[0].closed_ms:
        return NEVER_MS
    if may_trim(record, last_ledger_id, needed_from, now_ms, policies):
        return now_ms
    seconds = policies.retention_seconds
    return NEVER_MS if seconds == UNLIMITED else head[0].closed_ms + 1_000 * seconds


def last_due_ms(record: TopicRecord, now_ms: int, policies: Policies) -> int:
    """Return when retention lets go of the only ledger of a topic, which nothing needs, with all its entries;
    ``NEVER_MS`` if there are others, it is empty, or retention has no end."""
    if record.pieces or len(record.ledgers) != 1 or not record.ledgers[0].entries:
        return NEVER_MS
    above = record.ledgers[0].ledger_id + 1
    return trim_due_ms(record, above, above, now_ms, policies)


def may_trim(
    record: TopicRecord,
    last_ledger_id: int,
    needed_from: int,
    now_ms: int,
    policies: Policies,
    *,
    keeps_retained: bool = True,
) -> bool:
    """Return whether the record allows to delete a ledger. Arguments as of ``trimmable_of``.

    Of the oldest piece the record has sums only: where retention counts bytes, this may be True one ledger too early.
    """
    asked = (record, _oldest(record), last_ledger_id, needed_from, now_ms, policies)
    return trimmable_of(*asked, keeps_retained=keeps_retained) > 0


def _oldest(record: TopicRecord) -> Sequence[LedgerInfo]:
    """Return the ledgers from the head on that the record has, or one that stands for its oldest piece."""
    if not record.pieces:
        return record.ledgers
    oldest = record.pieces[0]
    return (LedgerInfo(oldest.first_id, 0, 0, oldest.closed_ms),)
