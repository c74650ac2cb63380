"""Small sabotages of what leaves a topic by policies and compaction, and of the pieces of its chain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.compaction import compactor
from heliograph.actors.broker.compaction.compactor import Compaction
from heliograph.actors.broker.compaction.plan import CompactionPlan
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.records import owned_topic, topic_chain, topic_record
from heliograph.actors.broker.records.owned_record import OwnedRecord
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.recovery import SubscriptionRecoveries
from heliograph.actors.broker.topic.topic import ABOVE_ALL_LEDGERS, BrokerTopic
from heliograph.base.clock import SteadyClock
from heliograph.metadata.model import LedgerInfo, TopicRecord
from heliograph.metadata.store import Create, Operation
from tests.simulation.mutants.mutant import TOPIC, changed, mutant

# -- policies


@mutant(start=5, world=TOPIC)
def trim_what_a_cursor_needs() -> Iterator[None]:
    """Only retention keeps ledgers, not the cursors of subscriptions (I14)."""
    with patch.object(BrokerTopic, "_needed_from", lambda self: ABOVE_ALL_LEDGERS):
        yield


@mutant(start=68, world=TOPIC)
def trim_before_all_cursors_are_known() -> Iterator[None]:
    """A new owner trims by the cursors that it has recovered so far (I14)."""
    with patch.object(SubscriptionRecoveries, "needs_head", False):
        yield


@changed(ManagedLedger, "trim", start=5, world=TOPIC)
async def trim_what_retention_keeps(
    real: Callable[..., Awaitable[int]],
    self: ManagedLedger,
    needed_from: Any,
    now_ms: int,
    *,
    keeps_retained: bool = True,
) -> int:
    """What every cursor has passed is trimmed, whatever retention says (I14)."""
    return await real(self, needed_from, now_ms, keeps_retained=False)


@mutant(start=5, world=TOPIC)
def expire_a_second_early() -> Iterator[None]:
    """Messages count as acknowledged a second before their age is reached (I11)."""
    real = SteadyClock.now_ms
    with patch.object(SteadyClock, "now_ms", lambda self: real(self) + 1_000):
        yield


@mutant(start=5, world=TOPIC)
def expire_by_the_producers_clock() -> Iterator[None]:
    """The age of a message is judged by the time that its producer says (I11)."""
    with patch.object(TopicEntry, "stored_by", lambda self, closed_ms: self.publish_time_ms):
        yield


# -- compaction


@mutant(start=53, world=TOPIC)
def compact_beyond_the_horizon() -> Iterator[None]:
    """The record says that compaction read one entry more than it did: readers never see that one (compaction)."""
    real = topic_record.with_compacted

    def with_compacted(record: TopicRecord, compacted: Any) -> TopicRecord:
        if compacted is not None:
            compacted = replace(compacted, horizon=(compacted.horizon[0], compacted.horizon[1] + 1))
        return real(record, compacted)

    with patch.object(compactor, "with_compacted", with_compacted):
        yield


@changed(CompactionPlan, "__init__", start=60, world=TOPIC)
def forget_deletions_at_once(real: Callable[..., None], self: CompactionPlan, deletions_from: int) -> None:
    """A compaction keeps no message that deletes a key: a reader that has the key's value never hears (compaction)."""
    real(self, 1 << 60)


@changed(CompactionPlan, "_note", world=TOPIC)
def keep_the_oldest_value(real: Callable[..., None], self: CompactionPlan, key: str, place: Any, is_gone: bool) -> None:
    """A compaction keeps the first message of each key (compaction)."""
    if key not in self._latest or is_gone:
        real(self, key, place, is_gone)


@mutant(start=5, world=TOPIC)
def trim_what_was_not_compacted() -> Iterator[None]:
    """Ledgers are trimmed that the compacted form does not have yet (I14)."""
    with patch.object(Compaction, "needed_from", lambda self, is_kept: None):
        yield


@changed(ManagedLedger, "change_record", start=5, world=TOPIC)
async def delete_the_compacted_ledger_that_is_named(
    real: Callable[..., Awaitable[None]], self: ManagedLedger, change: Any
) -> None:
    """A compaction whose record was written is cleaned up when its broker loses the topic meanwhile (I14)."""
    before = self.record.compacted
    await real(self, change)
    if before is not None:
        await self._ledgers.delete((self.record.compacted or before).ledger_id)


# -- pieces of the chain


@changed(OwnedRecord, "replace", world=TOPIC)
async def name_a_piece_before_it_is_stored(
    real: Callable[..., Awaitable[None]], self: OwnedRecord[Any], record: Any, also: Sequence[Operation] = ()
) -> None:
    """The record names a piece of the chain that is created in a later write: a crash between loses ledgers (I12)."""
    pieces = [one for one in also if isinstance(one, Create)]
    await real(self, record, [one for one in also if one not in pieces])
    for one in pieces:
        await self._store.create(one.path, one.value)


@mutant(start=136, world=TOPIC)
def trim_a_piece_as_a_whole() -> Iterator[None]:
    """When the oldest ledger of a piece is trimmed, the whole piece leaves the record (I14)."""
    real = topic_chain.with_head_dropped

    def with_head_dropped(record: TopicRecord, head: Sequence[LedgerInfo], count: int) -> TopicRecord:
        return real(record, head, len(head) if record.pieces else count)

    with patch.object(owned_topic, "with_head_dropped", with_head_dropped):
        yield
