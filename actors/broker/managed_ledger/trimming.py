"""Trimming of a topic, in batches: each changes the record once, and the ledgers are deleted when that is stored. The
record is free between two batches, and while ledgers are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.managed_ledger.retention import may_trim, trimmable_of
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.topic_record import deletable_ledgers, with_deletable, with_trimmed
from heliograph.metadata.model import LedgerInfo, Policies, TopicRecord

DELETIONS_AT_ONCE = 8  # ledgers of one topic  # I15
log = logging.getLogger(__name__)


async def trim_batch(
    owned: OwnedTopicRecord,
    chain: LedgerChain,
    deleted: Collection[int],
    needed_from: Callable[[], int],
    now_ms: int,
    policies: Policies,
    noted: Callable[[TopicRecord], TopicRecord],
    *,
    keeps_retained: bool,
) -> int:
    """Take a batch of ledgers out of the head of a chain, and return how many they are. They are listed in the record
    as deletable.

    Args:
        deleted: deletable ledgers of earlier batches that are deleted by now.
        needed_from: returns the oldest ledger that a cursor needs. It is asked again after each wait: a cursor may have
            been created meanwhile.
        now_ms, keeps_retained: as of ``trimmable_of``.
        noted: returns the record as it is to be stored.
    """
    last, asked = chain.last_ledger_id, (now_ms, policies)
    head: list[LedgerInfo] = []
    count = 0
    if may_trim(owned.record, last, needed_from(), *asked, keeps_retained=keeps_retained):
        try:
            head = await owned.head()
        finally:
            chain.follow(owned.record.pieces)
        count = trimmable_of(owned.record, head, last, needed_from(), *asked, keeps_retained=keeps_retained)
    record = owned.record
    if not count and not deleted:
        return 0
    left = [ledger_id for ledger_id in deletable_ledgers(record) if ledger_id not in deleted]
    gone = head[:count]
    await owned.drop_head(noted(with_trimmed(with_deletable(record, left), gone)), head, count)
    if gone:
        after = head[count].ledger_id if count < len(head) else gone[-1].ledger_id + 1
        chain.drop_before(after, len(gone), sum(info.entries for info in gone))
        text = "%s: %d entries were trimmed, of the ledgers %d to %d: no cursor needs them, and %s"
        kept = f"retention ({policies.retention_seconds} s, {policies.retention_bytes} bytes) has passed"
        why = kept if keeps_retained else "an administrator trims ledgers that retention keeps"
        log.info(text, record.name, sum(info.entries for info in gone), gone[0].ledger_id, gone[-1].ledger_id, why)
    return count


async def delete_ledgers(ledgers: LedgersPort, ledger_ids: Sequence[int]) -> None:
    """Delete ledgers, some at a time. After an error the rest is left for the next time."""
    for at in range(0, len(ledger_ids), DELETIONS_AT_ONCE):
        some = ledger_ids[at : at + DELETIONS_AT_ONCE]
        outcomes = await asyncio.gather(*map(ledgers.delete, some), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
