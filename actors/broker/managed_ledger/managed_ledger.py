"""The write side of a topic: one chain of ledgers without a gap, to which entries are published in one order (I12).

- The next ledger is created and named in the topic's record before the current one is full. Then adds wait until all
  adds of the current ledger are confirmed, which takes one round trip, and continue in the next. So a crash at any
  moment leaves a prefix of what was published, and the next owner fences the last two ledgers of the record.
- When a writer loses its quorum, its ledger is recovered. The entries that recovery finds are confirmed once the record
  has the ledger's end (I13); the others are added again, in order, to a new ledger.
- A topic that is opened with ledgers has no open one until the first entry is published. Its record was written, so no
  earlier owner can name another ledger (I13).
- While too few bookies take entries for that, publishing is refused with the reason, and consumers go on (I20).
- When a writer is fenced, or another broker wrote the record, this broker does not own the topic any more: ``on_lost``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace
from time import perf_counter

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.managed_ledger.failed_ledger import RECOVER_SECONDS_MAX, RETRY_MS_MAX, FailedLedger
from heliograph.actors.broker.managed_ledger.state import WRITE_LIFECYCLE, WriteState, refusal_in
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache, TopicTail
from heliograph.actors.broker.managed_ledger.trimming import delete_ledgers, trim_batch
from heliograph.actors.broker.metrics import NOT_EXPORTED
from heliograph.actors.broker.records.activity import UNWATCHED
from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.ledgers import LedgersPort, LedgerWriterPort
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_chain import ReadPiece
from heliograph.actors.broker.records.topic_entry import NOTHING_PENDING, PendingPublish, Publication, TopicEntry
from heliograph.actors.broker.records.topic_record import (
    create_topic_ledger,
    deletable_ledgers,
    with_ledger_appended,
    with_ledger_closed,
    without_owner_noted,
)
from heliograph.actors.broker.tracing import traced
from heliograph.actors.errors import LedgerFencedError
from heliograph.base.clock import NEVER_MS, SteadyClock
from heliograph.base.completion import run_to_completion, weakly
from heliograph.base.errors import (
    HeliographError,
    PersistenceError,
    ServiceNotReadyError,
    TopicTerminatedError,
)
from heliograph.metadata.model import Policies, TopicRecord
from heliograph.metrics.metric import LATENCY_BOUNDS, SIZE_BOUNDS

ADDS_IN_FLIGHT_MAX = 5_000  # entries handed to one ledger writer and not confirmed; more wait here
ADD_BYTES_IN_FLIGHT_MAX = 16 << 20  # their bytes; one entry is always handed on
_WRITING = WriteState.WRITING  # read for each entry
log = logging.getLogger(__name__)


class ManagedLedger:
    """The write side of one topic, made by ``actors/broker/topic/opening.py``. All calls on one event loop.

    Attributes:
        chain: the ledgers and the confirmed end; ``chain.end`` grows as entries are confirmed.
        state: changed by ``WRITE_LIFECYCLE`` only.
        on_confirmed: called after each entry that was confirmed, with whether no other is pending; None where nobody
            reads. It must not raise.
        on_lost: called once when this broker does not own the topic any more.
        traffic: counts confirmed entries, of all topics of the broker.
        activity: of the topic; it is noted with every change of what this class holds.
        ages: the clock that judges ages, one for all topics of a broker.
    """

    def __init__(
        self,
        name: str,
        owned: OwnedTopicRecord,
        chain: LedgerChain,
        writer: LedgerWriterPort,
        ledgers: LedgersPort,
        cache: TailCache,
        policies: Policies,
    ) -> None:
        self.name = name
        self.chain = chain
        self.policies = policies
        self.state = WriteState.DORMANT if writer.metadata.is_closed else WriteState.WRITING
        if owned.record.terminated_at is not None:
            self.state = WriteState.TERMINATED
        self.on_confirmed: Callable[[bool], None] | None = None
        self.on_lost: Callable[[HeliographError], None] = lambda error: None
        self.is_taken_over = False  # the previous owner did not close the topic
        self.stamp = EntryStamp(time_ms=0, latest_ms=0, next_index=None)  # the topic's clock
        self.ages = SteadyClock()
        self.seeks_by_storage = False  # a client's seek by time goes by the topic's clock, not the producers'
        self.entries_added = self.bytes_added = 0
        self.publish_seconds = 0.0  # from the arrival of entries to their receipts, all together
        self.traffic = NOT_EXPORTED
        self.activity = UNWATCHED
        self.read_piece: ReadPiece = owned.piece  # of those that the record names
        self._owned = owned
        self._ledgers = ledgers
        self._tail = TopicTail(cache)
        self._writer = writer
        self._next: LedgerWriterPort | None = None  # named in the record, not written to yet
        self._opened_at = time.monotonic()
        self._given = self._given_bytes = 0  # entries that the writer of the last ledger was given
        self._pending: deque[PendingPublish] = NOTHING_PENDING  # not confirmed, in publish order
        self._in_flight = self._in_flight_bytes = 0  # of the first of them, which the writer has; <= len(_pending)
        self._drained: asyncio.Future[None] | None = None  # resolves when the writer has nothing in flight
        self._idle: asyncio.Future[None] | None = None  # resolves when nothing is pending
        self._record_lock = asyncio.Lock()  # one change of the record at a time
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_rolling = False
        self._failed = FailedLedger(name, ledgers, weakly(self._refused))

    @property
    def record(self) -> TopicRecord:
        """Return the topic's record as last stored."""
        return self._owned.record

    @property
    def had_children(self) -> bool:
        """Return whether the record's node had children, such as cursors, when it was last written or checked."""
        return self._owned.had_children

    @property
    def writer(self) -> LedgerWriterPort:
        return self._writer

    @property
    def refusal(self) -> HeliographError | None:
        """Return why entries are refused while there is no room for a ledger."""
        return self._failed.refusal

    @property
    def pending(self) -> int:
        """Return how many entries are published and not confirmed."""
        return len(self._pending)

    @property
    def messages(self) -> int:
        """Return the messages of the confirmed entries, on the scale of ``TopicEntry.counted``."""
        return self.stamp.messages - sum(entry.messages for entry, _, _ in self._pending)

    def add(self, entry: TopicEntry, publication: Publication) -> None:
        """Publish an entry after all others. ``publication`` gets the outcome, in publish order (I2)."""
        is_writing = self.state is _WRITING
        if not is_writing and (refusal := refusal_in(self.state, self.name) or self._failed.refusal) is not None:
            publication.failed(refusal)
            return
        if not self.activity.is_noted:
            self.activity.note()
        self.stamp.stamp(entry)
        if entry.trace is not None:
            publication = traced(self.name, entry, publication)
        if self._pending is NOTHING_PENDING:
            self._pending = deque()
        self._pending.append((entry, publication, perf_counter()))
        if is_writing:
            self._send_pending()
        elif self.state is WriteState.DORMANT:
            self._wake()

    async def check_ownership(self) -> None:
        """Check that no other broker has taken the topic over up to now (I13); otherwise ``on_lost`` is called.

        Cursors are recovered before this check: a slow takeover must not take them from a quicker one that came later.

        Raises:
            ServiceNotReadyError: another broker owns the topic.
            ConnectionLossError: the metadata store cannot be reached.
        """
        try:
            async with self._record_lock:
                await self._owned.check()
        except ServiceNotReadyError as error:
            self.lose(error)
            raise

    def roll_if_due(self) -> None:
        """Start a new ledger if the last one is old enough or large enough, and the metadata store answers."""
        if self._is_rolling or not self._owned.is_reachable:
            return
        confirmed, age_seconds = self._writer.last_add_confirmed + 1, time.monotonic() - self._opened_at
        if self.state is WriteState.DORMANT and is_old(confirmed, age_seconds, self.policies):
            self._wake()  # the last ledger is never trimmed
        if self.state is not _WRITING:
            return
        if is_full(self._given, self._given_bytes, self.policies) or is_old(confirmed, age_seconds, self.policies):
            self._is_rolling = True
            self._spawn(self._roll())

    def leave_last(self) -> None:
        """Have a dormant topic get a new ledger, so that its last one can be trimmed, if the metadata store answers."""
        if self.state is WriteState.DORMANT and self._owned.is_reachable:
            self._wake()

    def roll_due_ms(self, now_ms: int) -> int:
        """Return when ``roll_if_due`` has something to do, if nothing happens until then.

        Args:
            now_ms: by the clock of ``ages``, as what is returned.
        """
        if self.state not in (_WRITING, WriteState.DORMANT) or self._writer.last_add_confirmed < 0:
            return NEVER_MS
        if is_full(self._given, self._given_bytes, self.policies):
            return now_ms
        age_seconds = time.monotonic() - self._opened_at
        return now_ms + round(1_000 * (self.policies.ledger_age_seconds_max - age_seconds))

    async def roll(self) -> None:
        """Start a new ledger if the last one has entries, whatever its age and size."""
        if self.state is WriteState.DORMANT and self._writer.last_add_confirmed >= 0:
            await asyncio.wait([self._wake()], timeout=RECOVER_SECONDS_MAX)  # it is tried for as long as it takes
        if self.state is WriteState.WRITING and not self._is_rolling and self._writer.last_add_confirmed >= 0:
            self._is_rolling = True
            await asyncio.wait([self._spawn(self._roll())])

    def lose(self, error: HeliographError) -> None:
        """Stop serving the topic, which another broker owns now: nothing is confirmed from now on (I13). Idempotent."""
        if self.state is WriteState.CLOSED:
            return
        self._move(WriteState.CLOSED)
        self.traffic.fenced += 1
        self._fail_pending(error)
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self.on_lost(error)

    async def store_property(self, name: str, value: str) -> None:
        """Store a property in the topic's record. Raises as ``change_record`` does."""
        await self.change_record(lambda record: replace(record, properties={**record.properties, name: value}))

    async def change_record(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Store a change of the topic's record, to completion even if the caller is cancelled.

        Raises:
            ServiceNotReadyError: another broker owns the topic.
            ConnectionLossError: the metadata store cannot be reached; the outcome is unknown.
        """

        async def store() -> None:  # a write with an unknown outcome would look like the write of another owner
            async with self._record_lock:
                await self._replace(change(self.record))

        await run_to_completion(store())

    async def terminate(self) -> Position:
        """Confirm adds in flight; no later entry is ever accepted, by any owner. Idempotent.

        Returns:
            the position of the last entry; its entry id is -1 when there is none.

        Raises:
            ServiceNotReadyError: another broker owns the topic, or its ledger is just being replaced.
            PersistenceError, QuorumLostError: the topic cannot be terminated now; nothing was decided.
        """
        async with self._record_lock:
            if self.state is WriteState.WRITING:
                await self._store_ends()  # I12: a terminated topic has no open ledger
            if self.state in (WriteState.DORMANT, WriteState.WRITING):
                await self._terminate()
            elif self.state is not WriteState.TERMINATED:
                raise ServiceNotReadyError(f"{self.name} cannot be terminated just now, try again")
        return self.chain.position_before(self.chain.end)

    async def close(self) -> None:
        """Confirm pending entries, close the ledger and store its end. After a failure the next owner recovers it."""
        if self._pending and self.state is not WriteState.CLOSED:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=RECOVER_SECONDS_MAX)
        previous = self.state
        if previous is WriteState.CLOSED:
            return
        self._move(WriteState.CLOSED)
        if previous is WriteState.TERMINATED:
            return
        self._fail_pending(ServiceNotReadyError(f"{self.name} is closed here"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with self._record_lock:
                metadata = await self._writer.close()
                closed = with_ledger_closed(self.record, metadata, self.stamp.now_ms())
                await self._replace(without_owner_noted(closed))
                if self._next is not None:
                    await self._next.close()
        except HeliographError as error:
            log.info("%s: the last ledger is left to the next owner's recovery: %s", self.name, error)

    async def trim(self, needed_from: Callable[[], int], now_ms: int, *, keeps_retained: bool = True) -> int:
        """Delete ledgers at the head that neither a cursor nor retention needs (I14).

        Args:
            needed_from: returns the oldest ledger that a cursor needs.
            keeps_retained: False to delete what only retention keeps, too.

        Returns:
            how many ledgers left the chain. The next trim deletes ledgers whose deletion failed.
        """
        count, deleted = 0, frozenset[int]()
        while True:
            async with self._record_lock:
                refusing = WriteState.RECOVERING if self.refusal and self._failed.has_end else WriteState.WRITING
                if self.state not in (WriteState.DORMANT, WriteState.WRITING, WriteState.TERMINATED, refusing):
                    return count
                asked = (deleted, needed_from, now_ms, self.policies, self._noted)
                count += await trim_batch(self._owned, self.chain, *asked, keeps_retained=keeps_retained)
                deleted = frozenset(deletable_ledgers(self.record))
            if count or deleted:
                self.activity.note()
            if not deleted:
                return count
            await delete_ledgers(self._ledgers, sorted(deleted))

    # -- adds

    def _send_pending(self) -> None:
        writer, pending = self._writer, self._pending
        while self._in_flight < len(pending):
            entry, publication, _ = pending[self._in_flight]
            payload = entry.payload
            size = len(payload)
            if self._in_flight >= ADDS_IN_FLIGHT_MAX or (
                self._in_flight and self._in_flight_bytes + size > ADD_BYTES_IN_FLIGHT_MAX
            ):
                return
            self._in_flight += 1
            self._in_flight_bytes += size
            try:
                if entry.trace is None:
                    writer.add_then(payload, self._answered, writer)
                else:
                    writer.add_then(payload, self._answered, writer, publication)
            except HeliographError as error:
                self._writer_failed(error)
                return
            self._given += 1
            self._given_bytes += size
        if is_full(self._given, self._given_bytes, self.policies):  # housekeeping looks at its age
            self.roll_if_due()

    def _answered(self, writer: LedgerWriterPort, entry_id: int, error: HeliographError | None) -> None:
        if writer is not self._writer or self.state in (WriteState.CLOSED, WriteState.RECOVERING):
            return
        if error is not None:
            self._writer_failed(error)
            return
        self._confirm(entry_id)
        if self._drained is not None and self._in_flight == 0:
            self._drained.set_result(None)
            self._drained = None
        if self._in_flight < len(self._pending) and self.state is _WRITING:
            self._send_pending()

    def _confirm(self, entry_id: int) -> None:
        entry, publication, began = self._pending.popleft()
        size = len(entry.payload)
        if self._in_flight:
            self._in_flight -= 1
            self._in_flight_bytes -= size
        position = self.chain.confirm(entry_id)
        publication.confirmed(position)  # first: a receipt may leave at once, and its client waits for it
        self._tail.put(position, entry, is_read=self.on_confirmed is not None)
        self.entries_added += 1
        self.bytes_added += size
        if not self.activity.is_noted:
            self.activity.note()
        traffic, took = self.traffic, perf_counter() - began
        traffic.messages_in += entry.messages
        traffic.bytes_in += size
        latency = traffic.publish_latency
        latency.counts[bisect_left(LATENCY_BOUNDS, took)] += 1
        latency.total += took
        traffic.entry_bytes.counts[bisect_left(SIZE_BOUNDS, size)] += 1  # their sum is `bytes_in`
        self.publish_seconds += took
        if self.on_confirmed is not None:
            self.on_confirmed(not self._pending)
        if self._idle is not None and not self._pending and not self._idle.done():
            self._idle.set_result(None)

    def _fail_pending(self, error: HeliographError) -> None:
        self.activity.note()
        pending, self._pending = self._pending, NOTHING_PENDING
        self.stamp.take_back(pending)
        self._in_flight = self._in_flight_bytes = 0
        if self._drained is not None:
            self._drained.set_exception(error)
            self._drained.exception()
            self._drained = None
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        for _, publication, _ in pending:
            publication.failed(error)

    # -- a new ledger when the last one is full

    async def _roll(self) -> None:
        try:
            async with self._record_lock:
                if self.state is WriteState.WRITING:
                    await self._append_next()
                if self.state is WriteState.WRITING:
                    await self._switch()
        except (ServiceNotReadyError, LedgerFencedError) as error:
            self.lose(error)
        except HeliographError as error:
            self._failed.warn(f"a new ledger cannot be started yet: {error}")
            await asyncio.sleep(RETRY_MS_MAX / 1000)
        finally:
            self._is_rolling = False

    async def _append_next(self) -> None:
        """Create the next ledger and store its name. At most two ledgers of a record are not closed."""
        if self._next is not None:
            return
        await self._store_ends()
        await self._owned.check_room(self.record)
        writer = await create_topic_ledger(self._ledgers, self.name, self.policies)
        await self._replace(with_ledger_appended(self.record, writer.ledger_id))
        self._next = writer

    async def _switch(self) -> None:
        """Continue in the next ledger as soon as the current one has nothing in flight."""
        self._move(WriteState.DRAINING)
        await self._drain()
        old = self._writer
        self._enter_next()
        metadata = await old.close()
        assert metadata.last_entry_id + 1 == self.chain.entries_in(old.ledger_id), "the chain is unbroken"  # I12
        await self._replace(with_ledger_closed(self.record, metadata, self.stamp.now_ms()))

    async def _drain(self) -> None:
        if self._in_flight:
            self._drained = self._drained or asyncio.get_running_loop().create_future()
            await self._drained

    def _enter_next(self) -> None:
        assert self._next is not None, "the next ledger is in the record"  # I12
        assert self._in_flight == 0, "every add of the previous ledger has its outcome"  # I12
        self._writer, self._next = self._next, None
        self.chain.append(self._writer.ledger_id)
        self._opened_at = time.monotonic()
        self._given = self._given_bytes = 0
        self._move(WriteState.WRITING)
        self._send_pending()

    async def _store_ends(self) -> None:
        """Store the end of earlier ledgers whose closing was interrupted."""
        for info in self.record.ledgers:
            if info.closed_ms == 0 and info.ledger_id < self._writer.ledger_id:
                metadata = await self._ledgers.recover(info.ledger_id)
                await self._replace(with_ledger_closed(self.record, metadata, self.stamp.now_ms()))

    # -- termination

    async def _terminate(self) -> None:
        self._move(WriteState.DRAINING)
        try:
            await self._drain()
            metadata = await self._writer.close()
        except HeliographError as error:
            if self.state is WriteState.DRAINING:
                self._writer_failed(error)
            raise
        self._check_not_lost()
        assert metadata.last_entry_id + 1 == self.chain.entries_in(metadata.ledger_id), "the chain is unbroken"  # I12
        record = with_ledger_closed(self.record, metadata, self.stamp.now_ms())
        try:
            if self._next is not None:
                record = with_ledger_closed(record, await self._next.close(), self.stamp.now_ms())
            last = self.chain.position_before(self.chain.end)
            await self._replace(replace(record, terminated_at=(last.ledger_id, last.entry_id)))
        except HeliographError as error:
            self.lose(error)  # the ledger is closed, and whether the topic is terminated is unknown
            raise
        self._check_not_lost()
        self._move(WriteState.TERMINATED)
        self._fail_pending(TopicTerminatedError(f"{self.name} was terminated"))

    def _check_not_lost(self) -> None:
        if self.state is WriteState.CLOSED:  # another owner took the topic meanwhile (I13)
            raise ServiceNotReadyError(f"{self.name} is not served here any more")

    # -- a writer that failed, or is not there yet

    def _wake(self) -> asyncio.Task[None]:
        """Have a ledger made. While there is no room for one, entries are refused as after a writer that failed."""
        assert self._writer.metadata.is_closed, "the record has the end of the last ledger"  # I12
        self._move(WriteState.RECOVERING)
        self._failed.has_end = True
        return self._spawn(self._recover_writer())

    def _writer_failed(self, error: HeliographError) -> None:
        if isinstance(error, LedgerFencedError):
            self.lose(error)
            return
        if self.state is WriteState.RECOVERING:  # the writer failed an earlier add within this call
            return
        log.warning("%s: ledger %d failed: %s", self.name, self._writer.ledger_id, error)
        self._move(WriteState.RECOVERING)
        if self._drained is not None:
            self._drained.set_exception(PersistenceError(str(error)))
            self._drained.exception()
            self._drained = None
        self._spawn(self._recover_writer())

    async def _recover_writer(self) -> None:
        error = await self._failed.replace(
            self._replace_writer, lambda: self.policies.persistence.ack_quorum, lambda: self._owned.is_reachable
        )
        if error is not None:
            self.lose(error)

    async def _replace_writer(self) -> None:
        async with self._record_lock:
            if self.state is WriteState.RECOVERING and not self._failed.has_end:
                await self._end_failed_ledger()
                self._failed.has_end = True
                if self.refusal is not None:
                    self._fail_pending(self.refusal)  # their publishers were told, and send them again
            if self.state is WriteState.RECOVERING:
                await self._append_next()
            if self.state is WriteState.RECOVERING:
                self._enter_next()

    def _refused(self, refusal: HeliographError) -> None:
        """Report a refusal to publishers. Entries of the failed ledger have no outcome until its end is known."""
        if self.state is WriteState.RECOVERING and self._failed.has_end:
            self._fail_pending(refusal)
        elif self.state is WriteState.RECOVERING:
            for _, publication, _ in list(self._pending):
                publication.delayed(refusal)

    async def _end_failed_ledger(self) -> None:
        await self._store_ends()
        metadata = await self._ledgers.recover(self._writer.ledger_id)
        await self._replace(with_ledger_closed(self.record, metadata, self.stamp.now_ms()))
        if self.state is not WriteState.RECOVERING:
            return
        known = self.chain.entries_in(self._writer.ledger_id)
        assert metadata.last_entry_id + 1 >= known, "recovery keeps confirmed entries"  # I1
        assert metadata.last_entry_id + 1 - known <= self._in_flight, "recovery finds only added entries"
        for entry_id in range(known, metadata.last_entry_id + 1):
            self._confirm(entry_id)
        self._in_flight = self._in_flight_bytes = 0

    def _move(self, to: WriteState) -> None:
        self.state = WRITE_LIFECYCLE.move(self.state, to)
        self.activity.note()
        if to is not WriteState.RECOVERING:
            self._failed.forget()

    async def _replace(self, record: TopicRecord) -> None:
        await self._owned.replace(self._noted(record))
        self.activity.note()

    def _noted(self, record: TopicRecord) -> TopicRecord:
        return self.stamp.noted(record, self._pending, self.chain.entries_in)

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a broken promise of ours: this topic is not safe to go on with
            log.error("%s: the topic is abandoned", self.name, exc_info=error)
            self.lose(PersistenceError(f"{self.name} failed: {error!r}"))


def is_full(entries: int, size: int, policies: Policies) -> bool:
    """Return whether a ledger has as many entries or bytes as it may.

    Args:
        entries, size: the entries that its writer was given, and their bytes.
    """
    return entries >= policies.ledger_entries_max or size >= policies.ledger_bytes_max


def is_old(confirmed: int, age_seconds: float, policies: Policies) -> bool:
    """Return whether a ledger was open for as long as it may be. An empty ledger is never too old.

    Args:
        confirmed: the number of its confirmed entries.
        age_seconds: the time since it was opened.
    """
    return confirmed > 0 and age_seconds >= policies.ledger_age_seconds_max
