"""Small sabotages of topics: cursors, takeovers, deduplication, dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
from tests.sabotage import sabotaged
from tests.simulation.mutants.mutant import TOPIC, mutant

KEY_SHARED = "heliograph.actors.broker.dispatch.key_shared:KeySharedDispatcher"

# -- cursors


@mutant(world=TOPIC)
def confirm_acks_before_the_append() -> Iterator[None]:
    """An acknowledgement is confirmed when it is sent to the bookies (I11)."""
    real = CursorLog.persist

    def hasty(self: CursorLog) -> asyncio.Future[None]:
        real(self)
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answered.set_result(None)
        return answered

    with patch.object(CursorLog, "persist", hasty):
        yield


@mutant(world=TOPIC)
def restore_the_snapshot_only() -> Iterator[None]:
    """A takeover loads a cursor from the newest snapshot, without the records after it (I11)."""
    real = cursor_record.apply_record

    def apply(record: CursorEntry, cursor: Cursor, chain: Chain) -> Iterator[int]:
        return real(record, cursor, chain) if record.kind is RecordKind.SNAPSHOT else iter(())

    with patch.object(cursor_record, "apply_record", apply):
        yield


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


@mutant(start=16, world=TOPIC)
def name_the_cursor_ledger_before_its_snapshot() -> Iterator[None]:
    """A new cursor ledger is named in metadata before the snapshot in it is durable (I11)."""

    async def replace_ledger(self: CursorLog) -> None:
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

    with patch.object(CursorLog, "_replace_ledger", replace_ledger):
        yield


@mutant(start=68, world=TOPIC)
def delete_the_cursor_ledger_early() -> Iterator[None]:
    """An old cursor ledger is deleted before metadata names its successor (I11)."""
    real = CursorLog._replace_ledger

    async def replace_ledger(self: CursorLog) -> None:
        if self.ledger_id >= 0:
            await self._ledgers.delete(self.ledger_id)
        await real(self)

    with patch.object(CursorLog, "_replace_ledger", replace_ledger):
        yield


@mutant(start=198, world=TOPIC)
def forget_what_a_failed_write_held() -> Iterator[None]:
    """What a failed write held is never written, and the next write counts as complete (I11)."""

    def refused(self: CursorLog, error: BaseException) -> None:
        if isinstance(error, LedgerFencedError):
            self._lose(error)
        else:
            self._finish_write()

    with patch.object(CursorLog, "_on_write_failed", refused):
        yield


@mutant(world=TOPIC)
def move_the_mark_over_holes() -> Iterator[None]:
    """The mark goes to the last acknowledged entry, past entries that were not acknowledged (I11)."""

    def pop_run(self: IndexSet, index: int) -> int:
        return max((stop for _, stop in self.runs()), default=index) if len(self) else index

    with patch.object(IndexSet, "pop_run", pop_run):
        yield


# -- takeovers


@mutant(start=59, world=TOPIC)
def recover_the_last_topic_ledger_only() -> Iterator[None]:
    """A takeover does not recover the last but one ledger, which an old owner in a rollover still writes (I12)."""
    real = topic_opening._recover_tail

    async def recover(record: Any, unclosed: Any, ledgers: Any, policies: Any) -> Any:
        if len(unclosed) < 2:
            return await real(record, unclosed, ledgers, policies)
        head = record.ledgers[-2]
        last: LedgerMetadata = (await ledgers.metadata(head.ledger_id)).record
        found = await ledgers.open(head.ledger_id)
        end = last.last_entry_id if last.is_closed else await found.read_last_add_confirmed()
        closed = replace(head, entries=end + 1, closed_ms=1)
        record = replace(record, ledgers=(*record.ledgers[:-2], closed, record.ledgers[-1]))
        return await real(record, {max(unclosed)}, ledgers, policies)

    with patch.object(topic_opening, "_recover_tail", recover):
        yield


@mutant(start=196, world=TOPIC)
def subscribe_to_a_lost_topic() -> Iterator[None]:
    """A subscription that was being created when the topic was lost is served (I13)."""
    with patch.object(BrokerTopic, "_check_open", lambda self: None):
        yield


@mutant(world=TOPIC, asserted="every add of the previous ledger has its outcome")
def go_on_in_the_next_ledger_too_soon() -> Iterator[None]:
    """A rollover does not wait for the last confirmations of the old ledger (I12)."""

    async def at_once(self: ManagedLedger) -> None:
        return None

    with patch.object(ManagedLedger, "_drain", at_once):
        yield


@mutant(start=6, world=TOPIC)
def keep_an_older_ledger_for_the_chain() -> Iterator[None]:
    """A takeover that starts over appends the ledger of its first round, after ledgers that others appended (I12)."""
    with patch.object(topic_opening, "last_ledger_id", lambda record: -1):
        yield


@mutant(start=3, world=TOPIC)
def answer_publishes_after_a_fence() -> Iterator[None]:
    """A broker that is fenced confirms the entries that were under way (I13)."""

    def confirm_pending(self: ManagedLedger, error: HeliographError) -> None:
        pending, self._pending = self._pending, type(self._pending)()
        next_id = self.chain.end - (self.chain.end - self.chain.entries_in(self.chain.last_ledger_id))
        for number, (_, publication, _) in enumerate(pending):
            publication.confirmed(Position(self.chain.last_ledger_id, next_id + number))

    with patch.object(ManagedLedger, "_fail_pending", confirm_pending):
        yield


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


@mutant(start=59, world=TOPIC)
def snapshot_what_is_only_pushed() -> Iterator[None]:
    """A dedup snapshot holds entries that were never confirmed: a takeover that lost them refuses them (I1)."""
    real = Deduplication.snapshot

    def pushed(self: Deduplication) -> Any:
        remembered = [one for one in real(self) if isinstance(one, Remembered)]
        return [one._replace(persisted=self._known[one.name].pushed) for one in remembered]

    with patch.object(Deduplication, "snapshot", pushed):
        yield


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


@mutant(world=TOPIC)
def return_a_whole_entry_for_one_message() -> Iterator[None]:
    """A consumer that refuses one message of a batch has the others delivered again, too (I22)."""

    def release(self: PendingAcks, consumer: ConsumerState, index: int, *_: Any) -> None:
        self.release_at(consumer, index)

    with patch.object(PendingAcks, "release_messages", release):
        yield


@mutant(world=TOPIC)
def count_a_refused_message_for_its_batch() -> Iterator[None]:
    """The refusal of one message raises the redelivery counts of all messages of its batch (I22)."""
    real = Cursor.count_redelivery

    def count(self: Cursor, index: int, bits: int = 0) -> None:
        real(self, index)

    with patch.object(Cursor, "count_redelivery", count):
        yield


@mutant(world=TOPIC)
def skip_draining() -> Iterator[None]:
    """A key hash moves to its new consumer while the old one still holds messages of it (I16)."""
    real = KeySharedDispatcher.add

    def add(self: KeySharedDispatcher, consumer: ConsumerState) -> None:
        consumer.allow_out_of_order = True
        real(self, consumer)

    with patch.object(KeySharedDispatcher, "add", add):
        yield


@mutant(world=TOPIC)
def redeliver_the_newest_first() -> Iterator[None]:
    """The newest of several messages of a key that came back is delivered first (I16)."""
    with patch.object(MessageQueue, "head", lambda self: max(self.bits, default=-1)):
        yield


@mutant(world=TOPIC)
def forget_who_holds_a_key() -> Iterator[None]:
    """The first acknowledgement of a key counts for all, so that the next consumer gets the key too early (I16)."""
    with sabotaged(f"{KEY_SHARED}._released", "if left := held[key_hash] - count:", "if left := 0:"):
        yield


@mutant(world=TOPIC)
def deliver_by_the_key_of_the_batch() -> Iterator[None]:
    """All messages of a batch go to the consumer of its first key (I16)."""
    with patch("heliograph.actors.broker.managed_ledger.read_ahead.read_key_hashes", lambda entry: UNKNOWN):
        yield


@mutant(world=TOPIC, start=121)
def leave_what_waits_at_the_old_owner() -> Iterator[None]:
    """What waits for a consumer stays there when another one joins and gets its keys (I16)."""
    with sabotaged(f"{KEY_SHARED}._after_move", "and before in self._held}", "and before not in self._held}"):
        yield


@mutant(world=TOPIC)
def count_from_the_record_only() -> Iterator[None]:
    """A takeover takes the index of the next message from the topic's record, not from its last entry (I12)."""

    real = entry_stamp._last_metadata

    async def without_index(*arguments: Any) -> Any:
        metadata = await real(*arguments)
        metadata.ClearField("index")
        return metadata

    with patch.object(entry_stamp, "_last_metadata", without_index):
        yield


@mutant(world=TOPIC)
def begin_the_clock_at_a_takeover() -> Iterator[None]:
    """The clock of a topic begins at the wall clock of each owner (I21)."""
    real = EntryStamp.__init__

    def init(self: EntryStamp, *, time_ms: int, **others: Any) -> None:
        real(self, time_ms=0, **others)

    with patch.object(EntryStamp, "__init__", init):
        yield


# -- readers


@mutant(world=TOPIC, start=11)
def resume_a_reader_behind_the_next_entry() -> Iterator[None]:
    """A reader that connects again goes on one entry too late (reading)."""
    with sabotaged(
        "tests.simulation.topic.reader:index_of", "chain.at_or_after(position)", "chain.after(position) + 1"
    ):
        yield


@mutant(world=TOPIC, start=11)
def resume_a_reader_at_the_end() -> Iterator[None]:
    """A reader that connects again starts behind the last entry, as a new one does (reading)."""
    with sabotaged(
        "heliograph.actors.broker.topic.topic:BrokerTopic.subscribe",
        "mark = chain.end if start is None else",
        "mark = chain.end if not is_durable else",
    ):
        yield
