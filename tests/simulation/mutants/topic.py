"""Small sabotages of topics: cursors, takeovers, deduplication, dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor import recovery as cursor_recovery
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.index_set import IndexSet
from heliograph.actors.broker.cursor.log import CursorLog, _in_steps
from heliograph.actors.broker.cursor.record import CursorEntry, RecordKind
from heliograph.actors.broker.dedup.dedup import Deduplication, Remembered
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_queues import MessageQueue
from heliograph.actors.broker.dispatch.key_shared import KeySharedDispatcher
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.dispatch.pending_acks import DividedEntry, PendingAcks
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.records import entry_stamp
from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.message_keys import UNKNOWN
from heliograph.actors.broker.records.owned_record import OwnedRecord
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic import opening as topic_opening
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.errors import LedgerFencedError
from heliograph.base.errors import HeliographError
from heliograph.metadata import codec
from heliograph.metadata.model import CursorRecord, LedgerMetadata, Versioned
from tests.simulation.mutants.mutant import TOPIC, changed, edit, mutant, replaced

KEY_SHARED = "heliograph.actors.broker.dispatch.key_shared:KeySharedDispatcher"

# -- cursors


@changed(CursorLog, "persist", world=TOPIC)
def confirm_acks_before_the_append(real: Callable[..., asyncio.Future[None]], self: CursorLog) -> asyncio.Future[None]:
    """An acknowledgement is confirmed when it is sent to the bookies (I11)."""
    real(self)
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    answered.set_result(None)
    return answered


@changed(cursor_record, "apply_record", world=TOPIC)
def restore_the_snapshot_only(
    real: Callable[..., Iterator[int]], record: CursorEntry, cursor: Cursor, chain: Chain
) -> Iterator[int]:
    """A takeover loads a cursor from the newest snapshot, without the records after it (I11)."""
    return real(record, cursor, chain) if record.kind is RecordKind.SNAPSHOT else iter(())


@mutant(start=72, world=TOPIC)
def restore_no_batch_indexes() -> Iterator[None]:
    """A takeover forgets which messages of a batch were acknowledged (I11)."""
    with patch.object(Cursor, "restore_partial", lambda self, index, bits: None):
        yield


@mutant(start=14, world=TOPIC)
def restore_no_holes() -> Iterator[None]:
    """A takeover loads the mark of a cursor, and forgets the acknowledgements above it (I11)."""
    with patch.object(Cursor, "restore_chunk", lambda self, first, bits: None):
        yield


@mutant(start=64, world=TOPIC)
def fence_no_cursor_ledger() -> Iterator[None]:
    """A takeover reads a cursor's ledger without recovery, so that later writes of the old owner are lost (I11)."""
    real = cursor_recovery._replay_ledger

    async def replay(record: Any, cursor: Cursor, chain: Chain, ledgers: Any, place: Any) -> None:
        reader = await ledgers.open(record.cursor_ledger_id)
        last = await reader.read_last_add_confirmed()
        if last >= 0:
            await real(reader, last, cursor, chain)

    with patch.object(cursor_recovery, "_replay", replay):
        yield


@mutant(start=58, world=TOPIC, only="takeovers at different speeds")
def leave_the_cursor_record_as_it_is() -> Iterator[None]:
    """A takeover does not change the version of a cursor's record, so that the old owner may still change it (I11)."""

    async def unmoved(place: Any, chain: Chain, store: Any, ledgers: Any) -> CursorLog:
        value, stat = await store.get(place.path)
        record = codec.decode(CursorRecord, value)
        await chain.load(Position(*record.mark_delete))
        cursor = Cursor(chain.after(Position(*record.mark_delete)))
        if record.cursor_ledger_id >= 0:
            await cursor_recovery._replay(record, cursor, chain, ledgers, place)
        owned = OwnedRecord(store, place.path, Versioned(record, stat.version))
        return CursorLog(place, owned, cursor, chain, ledgers)

    with patch("heliograph.actors.broker.topic.topic.recover_cursor", unmoved):
        yield


@replaced(CursorLog, "_replace_ledger", start=16, world=TOPIC)
async def name_the_cursor_ledger_before_its_snapshot(self: CursorLog) -> None:
    """A new cursor ledger is named in metadata before the snapshot in it is durable (I11)."""
    writer = await self.new_ledger("cursor")
    parts = await _in_steps(self._snapshot_steps(-1))
    added = [writer.add(part) for part in parts]
    record = replace(self._owned.record, cursor_ledger_id=writer.ledger_id)
    old = self.ledger_id
    await self._owned.replace(record)
    for one in added:
        one.add_done_callback(lambda future: future.cancelled() or future.exception())
    self._own.writer, self._own.writes, self._needs_snapshot = writer, len(parts), False
    self._note_snapshot(0, sum(map(len, parts)))
    if old >= 0:
        self._clean(old)


@changed(CursorLog, "_replace_ledger", start=68, world=TOPIC)
async def delete_the_cursor_ledger_early(real: Callable[..., Awaitable[None]], self: CursorLog) -> None:
    """An old cursor ledger is deleted before metadata names its successor (I11)."""
    if self.ledger_id >= 0:
        await self._ledgers.delete(self.ledger_id)
    await real(self)


@replaced(CursorLog, "_on_write_failed", start=198, world=TOPIC)
def forget_what_a_failed_write_held(self: CursorLog, error: BaseException) -> None:
    """What a failed write held is never written, and the next write counts as complete (I11)."""
    if isinstance(error, LedgerFencedError):
        self._lose(error)
    else:
        self._finish_write()


@replaced(IndexSet, "pop_run", world=TOPIC)
def move_the_mark_over_holes(self: IndexSet, index: int) -> int:
    """The mark goes to the last acknowledged entry, past entries that were not acknowledged (I11)."""
    return max((stop for _, stop in self.runs()), default=index) if self.count else index


# -- takeovers


@changed(topic_opening, "_recover_tail", start=59, world=TOPIC)
async def recover_the_last_topic_ledger_only(
    real: Callable[..., Awaitable[Any]], record: Any, unclosed: Any, ledgers: Any, policies: Any
) -> Any:
    """A takeover does not recover the last but one ledger, which an old owner in a rollover still writes (I12)."""
    if len(unclosed) < 2:
        return await real(record, unclosed, ledgers, policies)
    head = record.ledgers[-2]
    last: LedgerMetadata = (await ledgers.metadata(head.ledger_id)).record
    found = await ledgers.open(head.ledger_id)
    end = last.last_entry_id if last.is_closed else await found.read_last_add_confirmed()
    closed = replace(head, entries=end + 1, closed_ms=1)
    record = replace(record, ledgers=(*record.ledgers[:-2], closed, record.ledgers[-1]))
    return await real(record, {max(unclosed)}, ledgers, policies)


@mutant(start=196, world=TOPIC)
def subscribe_to_a_lost_topic() -> Iterator[None]:
    """A subscription that was being created when the topic was lost is served (I13)."""
    with patch.object(BrokerTopic, "_check_open", lambda self: None):
        yield


@replaced(ManagedLedger, "_drain", world=TOPIC, asserted="every add of the previous ledger has its outcome")
async def go_on_in_the_next_ledger_too_soon(self: ManagedLedger) -> None:
    """A rollover does not wait for the last confirmations of the old ledger (I12)."""
    return


@mutant(start=6, world=TOPIC)
def keep_an_older_ledger_for_the_chain() -> Iterator[None]:
    """A takeover that starts over appends the ledger of its first round, after ledgers that others appended (I12)."""
    with patch.object(topic_opening, "last_ledger_id", lambda record: -1):
        yield


@replaced(ManagedLedger, "_fail_pending", start=3, world=TOPIC)
def answer_publishes_after_a_fence(self: ManagedLedger, error: HeliographError) -> None:
    """A broker that is fenced confirms the entries that were under way (I13)."""
    pending, self._pending = self._pending, type(self._pending)()
    next_id = self.chain.end - (self.chain.end - self.chain.entries_in(self.chain.last_ledger_id))
    for number, (_, publication, _) in enumerate(pending):
        publication.confirmed(Position(self.chain.last_ledger_id, next_id + number))


@mutant(start=1, world=TOPIC)
def dispatch_after_the_topic_is_lost() -> Iterator[None]:
    """A broker that knows that it lost the topic still dispatches entries (I13)."""
    with patch.object(Subscription, "abandon", lambda self, error: None):
        yield


# -- deduplication


@mutant(world=TOPIC)
def forget_dedup_at_takeover() -> Iterator[None]:
    """A takeover starts with no knowledge of what producers sent before (I12)."""
    with (
        patch.object(Deduplication, "restore", lambda self, snapshot: None),
        patch.object(Deduplication, "replay", lambda self, name, highest, active_ms, chunk=None: None),
    ):
        yield


@mutant(world=TOPIC)
def replay_nothing_behind_the_dedup_snapshot() -> Iterator[None]:
    """A takeover loads the last dedup snapshot, and does not read the entries published after it (I12)."""

    async def nothing(core: Deduplication, mark: int, chain: Chain, reader: Any) -> None:
        return None

    with patch("heliograph.actors.broker.dedup.topic_dedup._replay", nothing):
        yield


@changed(Deduplication, "snapshot", start=59, world=TOPIC)
def snapshot_what_is_only_pushed(real: Callable[..., Any], self: Deduplication) -> Any:
    """A dedup snapshot holds entries that were never confirmed: a takeover that lost them refuses them (I1)."""
    remembered = [one for one in real(self) if isinstance(one, Remembered)]
    return [one._replace(persisted=self._known[one.name].pushed) for one in remembered]


# -- dispatch


@mutant(world=TOPIC)
def take_a_part_for_the_whole_entry() -> Iterator[None]:
    """A consumer that acknowledges an entry of which it got a part acknowledges the others' messages, too (I11)."""
    with patch.object(MultipleConsumersDispatcher, "left_by", lambda *_: 0):
        yield


@mutant(world=TOPIC)
def deliver_what_another_consumer_holds() -> Iterator[None]:
    """The messages of a divided entry that are pending are delivered again with those that are not (I22)."""
    with patch.object(DividedEntry, "held", property(lambda _: 0, lambda *_: None)):
        yield


@replaced(PendingAcks, "release_messages", world=TOPIC)
def return_a_whole_entry_for_one_message(self: PendingAcks, consumer: ConsumerState, index: int, *_: Any) -> None:
    """A consumer that refuses one message of a batch has the others delivered again, too (I22)."""
    self.release_at(consumer, index)


@changed(Cursor, "count_redelivery", world=TOPIC)
def count_a_refused_message_for_its_batch(real: Callable[..., None], self: Cursor, index: int, bits: int = 0) -> None:
    """The refusal of one message raises the redelivery counts of all messages of its batch (I22)."""
    real(self, index)


@changed(KeySharedDispatcher, "add", world=TOPIC)
def skip_draining(real: Callable[..., None], self: KeySharedDispatcher, consumer: ConsumerState) -> None:
    """A key hash moves to its new consumer while the old one still holds messages of it (I16)."""
    consumer.allow_out_of_order = True
    real(self, consumer)


@mutant(world=TOPIC)
def redeliver_the_newest_first() -> Iterator[None]:
    """The newest of several messages of a key that came back is delivered first (I16)."""
    with patch.object(MessageQueue, "head", lambda self: max(self.bits, default=-1)):
        yield


@edit(f"{KEY_SHARED}._released", "if left := held[key_hash] - count:", "if left := 0:", world=TOPIC)
def forget_who_holds_a_key() -> None:
    """The first acknowledgement of a key counts for all, so that the next consumer gets the key too early (I16)."""


@mutant(world=TOPIC)
def deliver_by_the_key_of_the_batch() -> Iterator[None]:
    """All messages of a batch go to the consumer of its first key (I16)."""
    with patch("heliograph.actors.broker.managed_ledger.read_ahead.read_key_hashes", lambda entry: UNKNOWN):
        yield


@edit(f"{KEY_SHARED}._after_move", "and before in self._held}", "and before not in self._held}", world=TOPIC, start=121)
def leave_what_waits_at_the_old_owner() -> None:
    """What waits for a consumer stays there when another one joins and gets its keys (I16)."""


@changed(entry_stamp, "_last_metadata", world=TOPIC)
async def count_from_the_record_only(real: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
    """A takeover takes the index of the next message from the topic's record, not from its last entry (I12)."""
    metadata = await real(*arguments)
    metadata.ClearField("index")
    return metadata


@changed(EntryStamp, "__init__", world=TOPIC)
def begin_the_clock_at_a_takeover(real: Callable[..., None], self: EntryStamp, *, time_ms: int, **others: Any) -> None:
    """The clock of a topic begins at the wall clock of each owner (I21)."""
    real(self, time_ms=0, **others)


# -- readers


@edit(
    "tests.simulation.topic.reader:index_of",
    "chain.at_or_after(position)",
    "chain.after(position) + 1",
    world=TOPIC,
    start=11,
)
def resume_a_reader_behind_the_next_entry() -> None:
    """A reader that connects again goes on one entry too late (reading)."""


@edit(
    "heliograph.actors.broker.topic.topic:BrokerTopic.subscribe",
    "mark = chain.end if start is None else",
    "mark = chain.end if not is_durable else",
    world=TOPIC,
    start=11,
)
def resume_a_reader_at_the_end() -> None:
    """A reader that connects again starts behind the last entry, as a new one does (reading)."""
