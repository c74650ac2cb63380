"""A topic as an unbroken chain of ledgers (I12): publishes go to the last one, in one order, whatever happens to it.

- The next ledger is created and named in the topic's record before the current one is full. Then adds wait until all
  of the current ledger's are confirmed, which takes one round trip, and go on in the next. So each crash leaves a
  prefix of what was published, and whoever takes over fences the last two ledgers of the list.
- When a writer loses its quorum, its ledger is recovered: what that finds was published, the rest is added again, in
  order, to a new ledger. Nothing of it is confirmed before the record names the new ledger (I13).
- When a writer is fenced, or the record was written by somebody else, another broker owns the topic: ``on_lost``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import replace

from actors.broker.chain import Chain
from actors.broker.ledgers import Ledgers, LedgerWriter
from actors.broker.owned_record import OwnedRecord
from actors.broker.position import Position
from actors.broker.publication import PendingAdd, Publication, WriteState
from actors.broker.retention import expendable
from actors.broker.tail_cache import TailCache
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_record import (
    create_topic_ledger,
    deletable_ledgers,
    with_deletable,
    with_head_trimmed,
    with_ledger_appended,
    with_ledger_closed,
)
from actors.broker.whole import whole
from actors.errors import LedgerFencedError
from heliograph.errors import HeliographError, PersistenceError, ServiceNotReadyError, TopicTerminatedError
from metadata.model import Policies, TopicRecord

ADDS_IN_FLIGHT_MAX = 5_000  # entries handed to one ledger writer and not confirmed; more wait here
ADD_BYTES_IN_FLIGHT_MAX = 16 << 20  # their bytes; one entry is always handed on
RECOVER_SECONDS_MAX = 30.0  # from a failed writer to giving the topic up
RETRY_SECONDS = 0.1  # between attempts, doubling up to the next
RETRY_SECONDS_MAX = 2.0

log = logging.getLogger(__name__)


class ManagedLedger:
    """The write side of one topic. Built by ``topic_opening.open_managed_ledger``; all calls on one event loop.

    Attributes:
        chain: the ledgers and the confirmed end; ``chain.end`` grows as entries are confirmed.
        on_confirmed: called after entries were confirmed, once for each turn of the loop.
        on_lost: called once when the topic is no longer ours.
    """

    def __init__(
        self,
        name: str,
        owned: OwnedRecord[TopicRecord],
        chain: Chain,
        writer: LedgerWriter,
        ledgers: Ledgers,
        cache: TailCache,
        policies: Policies,
    ) -> None:
        self.name = name
        self.chain = chain
        self.policies = policies
        self.state = WriteState.WRITING if owned.record.terminated_at is None else WriteState.TERMINATED
        self.on_confirmed: Callable[[], None] = lambda: None
        self.on_lost: Callable[[HeliographError], None] = lambda error: None
        self.entries_added = 0
        self.bytes_added = 0
        self._owned = owned
        self._ledgers = ledgers
        self._cache = cache
        self._writer = writer
        self._next: LedgerWriter | None = None  # named in the record, not written to yet
        self._opened_at = time.monotonic()
        self._pending: deque[PendingAdd] = deque()  # not confirmed, in publish order
        self._handed = 0  # how many of them the writer has got
        self._handed_bytes = 0
        self._drained: asyncio.Future[None] | None = None  # resolves when the writer has nothing in flight
        self._idle: asyncio.Future[None] | None = None  # resolves when nothing at all is pending
        self._notified = True
        self._structure = asyncio.Lock()  # one change of the record at a time
        self._tasks: set[asyncio.Task[None]] = set()
        self._rolling = False

    @property
    def record(self) -> TopicRecord:
        """The topic's record as last stored."""
        return self._owned.record

    @property
    def writer(self) -> LedgerWriter:
        """The writer of the last ledger of the chain."""
        return self._writer

    @property
    def pending(self) -> int:
        """Entries published and not confirmed."""
        return len(self._pending)

    def add(self, entry: TopicEntry, publication: Publication) -> None:
        """Publish an entry after all others. ``publication`` hears the outcome, in order (I2)."""
        if self.state is WriteState.CLOSED:
            publication.failed(ServiceNotReadyError(f"{self.name} is not served here any more"))
            return
        if self.state is WriteState.TERMINATED:
            publication.failed(TopicTerminatedError(f"{self.name} was terminated"))
            return
        self._pending.append(PendingAdd(entry, publication))
        if self.state is WriteState.WRITING:
            self._hand_on()

    async def check_ownership(self) -> None:
        """Raise ServiceNotReadyError, and call ``on_lost``, if somebody took the topic over up to now (I13).

        After cursors were taken over: a slow takeover must not have taken them from a quicker one that came later.
        """
        try:
            async with self._structure:
                await self._owned.check()
        except ServiceNotReadyError as error:
            self.lose(error)
            raise

    def roll_if_due(self) -> None:
        """Start a new ledger if the last one is old or large enough."""
        if self.state is WriteState.WRITING and not self._rolling and self._is_full():
            self._rolling = True
            self._spawn(self._roll())

    def lose(self, error: HeliographError) -> None:
        """The topic is another's: nothing is confirmed from now on (I13)."""
        if self.state is WriteState.CLOSED:
            return
        self.state = WriteState.CLOSED
        self._fail_pending(error)
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        self.on_lost(error)

    async def store_property(self, name: str, value: str) -> None:
        """Keep a property in the topic's record. Raises as ``change_record`` does."""
        await self.change_record(lambda record: replace(record, properties={**record.properties, name: value}))

    async def change_record(self, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Store a change of the topic's record, also when the caller is cancelled: a write whose outcome we do not
        know would look like another owner's.

        Raises:
            ServiceNotReadyError: the topic is another's.
        """

        async def store() -> None:
            async with self._structure:
                await self._replace(change(self.record))

        await whole(store())

    async def terminate(self) -> Position:
        """End the topic: what is under way is confirmed, then nothing is added any more, whoever owns the topic.

        Returns:
            the position of the last entry; entry id -1 when there is none. Idempotent.

        Raises:
            ServiceNotReadyError: the topic is another's, or its ledger is just being replaced.
            PersistenceError, QuorumLostError: not now; nothing was decided.
        """
        async with self._structure:
            if self.state is WriteState.WRITING:
                await self._note_closed()  # I12: an ended topic has no open ledger
            if self.state is WriteState.WRITING:
                await self._end()
            elif self.state is not WriteState.TERMINATED:
                raise ServiceNotReadyError(f"{self.name} cannot be terminated just now, try again")
        return self.chain.position_before(self.chain.end)

    async def close(self) -> None:
        """Confirm what is under way, close the ledger and store its end. Failures are left to the next owner."""
        if self._pending and self.state is not WriteState.CLOSED:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=RECOVER_SECONDS_MAX)
        if self.state in (WriteState.CLOSED, WriteState.TERMINATED):
            self.state = WriteState.CLOSED
            return
        self.state = WriteState.CLOSED
        self._fail_pending(ServiceNotReadyError(f"{self.name} is closed here"))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        try:
            async with self._structure:
                metadata = await self._writer.close()
                await self._replace(with_ledger_closed(self.record, metadata))
                if self._next is not None:
                    await self._next.close()
        except HeliographError as error:
            log.info("%s: closing: %s", self.name, error)

    async def trim(self, needed_from: Callable[[], int], now_ms: int) -> int:
        """Delete ledgers at the head that neither ``needed_from()`` (a ledger id) nor retention holds (I14).

        Returns:
            how many were deleted. A failure part way leaves their names in the record; the next trim goes on.
        """
        async with self._structure:
            if self.state not in (WriteState.WRITING, WriteState.TERMINATED):
                return 0
            count = self.expendable_at(needed_from(), now_ms)  # a cursor may have come while we waited
            if count:
                await self._replace(with_head_trimmed(self.record, count))
                for _ in range(count):
                    self.chain.drop_head()
            left = deletable_ledgers(self.record)
            for ledger_id in left:
                await self._ledgers.delete(ledger_id)
            if left:
                await self._replace(with_deletable(self.record, []))
            return count

    def expendable_at(self, needed_from: int, now_ms: int) -> int:
        """How many ledgers at the head ``trim`` would delete at that time."""
        return expendable(
            [info for info in self.record.ledgers if info.ledger_id <= self.chain.last_ledger_id],
            needed_from,
            now_ms,
            retention_seconds=self.policies.retention_seconds,
            retention_bytes=self.policies.retention_bytes,
        )

    # Handing adds to the writer

    def _hand_on(self) -> None:
        writer = self._writer
        while self._handed < len(self._pending):
            add = self._pending[self._handed]
            size = len(add.entry.payload)
            if self._handed >= ADDS_IN_FLIGHT_MAX or (
                self._handed and self._handed_bytes + size > ADD_BYTES_IN_FLIGHT_MAX
            ):
                return
            self._handed += 1
            self._handed_bytes += size
            try:
                writer.add_then(add.entry.payload, self._answered, writer)
            except HeliographError as error:
                self._writer_failed(error)
                return
        self.roll_if_due()

    def _answered(self, writer: LedgerWriter, entry_id: int, error: HeliographError | None) -> None:
        if writer is not self._writer or self.state in (WriteState.CLOSED, WriteState.RECOVERING):
            return
        if error is not None:
            self._writer_failed(error)
            return
        self._confirm(entry_id)
        if self._handed == 0 and self._drained is not None:
            self._drained.set_result(None)
            self._drained = None
        if self.state is WriteState.WRITING and self._handed < len(self._pending):
            self._hand_on()

    def _confirm(self, entry_id: int) -> None:
        add = self._pending.popleft()
        size = len(add.entry.payload)
        if self._handed:
            self._handed -= 1
            self._handed_bytes -= size
        self.chain.confirm(entry_id)
        ledger_id = self.chain.last_ledger_id
        self._cache.put(ledger_id, entry_id, add.entry)
        self.entries_added += 1
        self.bytes_added += size
        add.publication.confirmed(Position(ledger_id, entry_id))
        if self._idle is not None and not self._pending and not self._idle.done():
            self._idle.set_result(None)
        if self._notified:
            self._notified = False
            asyncio.get_running_loop().call_soon(self._notify)

    def _notify(self) -> None:
        self._notified = True
        if self.state is not WriteState.CLOSED:
            self.on_confirmed()

    def _fail_pending(self, error: HeliographError) -> None:
        pending, self._pending = self._pending, deque()
        self._handed = self._handed_bytes = 0
        if self._drained is not None:
            self._drained.set_exception(error)
            self._drained.exception()
            self._drained = None
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        for add in pending:
            add.publication.failed(error)

    # A new ledger when the last is full

    def _is_full(self) -> bool:
        return (
            self._writer.last_add_confirmed + 1 + self._handed >= self.policies.ledger_entries_max
            or self._writer.length >= self.policies.ledger_bytes_max
            or (
                self._writer.last_add_confirmed >= 0
                and time.monotonic() - self._opened_at >= self.policies.ledger_age_seconds_max
            )
        )

    async def _roll(self) -> None:
        try:
            async with self._structure:
                if self.state is WriteState.WRITING:
                    await self._append_next()
                if self.state is WriteState.WRITING:
                    await self._switch()
        except (ServiceNotReadyError, LedgerFencedError) as error:
            self.lose(error)
        except HeliographError as error:
            log.warning("%s: no new ledger yet: %s", self.name, error)
            await asyncio.sleep(RETRY_SECONDS_MAX)
        finally:
            self._rolling = False

    async def _append_next(self) -> None:
        """Have the next ledger in the record. At most two ledgers of a record are not closed."""
        if self._next is not None:
            return
        await self._note_closed()
        writer = await create_topic_ledger(self._ledgers, self.name, self.policies)
        await self._replace(with_ledger_appended(self.record, writer.ledger_id))
        self._next = writer

    async def _switch(self) -> None:
        """Go on in the next ledger as soon as the current one has nothing in flight."""
        self.state = WriteState.DRAINING
        if self._handed:
            await self._wait_drained()
        old = self._writer
        self._enter_next()
        metadata = await old.close()
        assert metadata.last_entry_id + 1 == self.chain.entries_in(old.ledger_id), "the chain is unbroken"  # I12
        await self._replace(with_ledger_closed(self.record, metadata))

    def _wait_drained(self) -> asyncio.Future[None]:
        if self._drained is None:
            self._drained = asyncio.get_running_loop().create_future()
        return self._drained

    def _enter_next(self) -> None:
        assert self._next is not None, "the next ledger is in the record"  # I12
        assert self._handed == 0, "every add of the previous ledger has its verdict"  # I12
        self._writer, self._next = self._next, None
        self.chain.append(self._writer.ledger_id)
        self._opened_at = time.monotonic()
        self.state = WriteState.WRITING
        self._hand_on()

    async def _note_closed(self) -> None:
        """Store the end of ledgers before the current one whose closing was interrupted."""
        for info in self.record.ledgers:
            if info.closed_ms == 0 and info.ledger_id < self._writer.ledger_id:
                metadata = await self._ledgers.recover(info.ledger_id)
                await self._replace(with_ledger_closed(self.record, metadata))

    # The end of the topic

    async def _end(self) -> None:
        self.state = WriteState.DRAINING
        try:
            if self._handed:
                await self._wait_drained()
            metadata = await self._writer.close()
        except HeliographError as error:
            if self.state is WriteState.DRAINING:
                self._writer_failed(error)
            raise
        self._check_ending()
        assert metadata.last_entry_id + 1 == self.chain.entries_in(metadata.ledger_id), "the chain is unbroken"  # I12
        record = with_ledger_closed(self.record, metadata)
        try:
            if self._next is not None:
                record = with_ledger_closed(record, await self._next.close())
            last = self.chain.position_before(self.chain.end)
            await self._replace(replace(record, terminated_at=(last.ledger_id, last.entry_id)))
        except HeliographError as error:
            self.lose(error)  # the ledger is closed, and whether the topic is ended is not known
            raise
        self._check_ending()
        self.state = WriteState.TERMINATED
        self._fail_pending(TopicTerminatedError(f"{self.name} was terminated"))

    def _check_ending(self) -> None:
        if self.state is WriteState.CLOSED:  # lost meanwhile, and it stays so (I13)
            raise ServiceNotReadyError(f"{self.name} is not served here any more")

    # A writer that failed

    def _writer_failed(self, error: HeliographError) -> None:
        if isinstance(error, LedgerFencedError):
            self.lose(error)
            return
        log.warning("%s: ledger %d failed: %s", self.name, self._writer.ledger_id, error)
        self.state = WriteState.RECOVERING
        if self._drained is not None:
            self._drained.set_exception(PersistenceError(str(error)))
            self._drained.exception()
            self._drained = None
        self._spawn(self._recover_writer())

    async def _recover_writer(self) -> None:
        deadline = time.monotonic() + RECOVER_SECONDS_MAX
        delay = RETRY_SECONDS
        while self.state is WriteState.RECOVERING:
            try:
                async with self._structure:
                    await self._replace_writer()
                return
            except ServiceNotReadyError as error:
                self.lose(error)
            except HeliographError as error:
                if time.monotonic() > deadline:
                    self.lose(PersistenceError(f"{self.name} cannot be written now: {error}"))
                    return
                log.warning("%s: no verdict on the failed ledger yet: %s", self.name, error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, RETRY_SECONDS_MAX)

    async def _replace_writer(self) -> None:
        await self._note_closed()
        metadata = await self._ledgers.recover(self._writer.ledger_id)
        record = with_ledger_closed(self.record, metadata)
        if self._next is None:
            writer = await create_topic_ledger(self._ledgers, self.name, self.policies)
            await self._replace(with_ledger_appended(record, writer.ledger_id))
            self._next = writer
        else:
            await self._replace(record)
        if self.state is not WriteState.RECOVERING:
            return
        known = self.chain.entries_in(self._writer.ledger_id)
        assert metadata.last_entry_id + 1 >= known, "recovery keeps what was confirmed"  # I1
        assert metadata.last_entry_id + 1 - known <= self._handed, "recovery finds only what was added"
        for entry_id in range(known, metadata.last_entry_id + 1):
            self._confirm(entry_id)
        self._handed = self._handed_bytes = 0
        self._enter_next()

    async def _replace(self, record: TopicRecord) -> None:
        await self._owned.replace(record)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:  # a broken promise of ours: this topic is not safe to go on with
            log.error("%s: giving up", self.name, exc_info=error)
            self.lose(PersistenceError(f"{self.name} failed: {error!r}"))
