"""Makes a cursor's changes durable in the cursor's own ledger (I11).

At most one write is in flight for a cursor, and there is no timer. An acknowledgement that comes while nothing is in
flight is written at once; all that come meanwhile go together into the next write. So the cost of an acknowledgement
falls as their rate rises, and a confirmed one is on an ack quorum of bookies.

A ledger starts with a snapshot, and deltas follow. When the bytes of the deltas exceed ``SNAPSHOT_BYTES_MIN`` and twice
the last snapshot, or a delta would be large, a new snapshot is written after them, so that recovery reads a bounded
tail. A large snapshot is made in steps, and the event loop turns between them (I24). The ledger is replaced when it is
large, when its writer fails, and at the first change after the topic was opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.records.broker_log import BrokerLog, add_all
from heliograph.actors.broker.records.ledgers import LedgersPort, LedgerWriterPort
from heliograph.actors.broker.records.owned_record import OwnedRecord
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_record import create_topic_ledger
from heliograph.actors.errors import LedgerFencedError
from heliograph.base.completion import run_to_completion, shielded
from heliograph.base.errors import Advice, HeliographError, PersistenceError, ServiceNotReadyError
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import CursorRecord, Policies
from heliograph.metrics.metric import Histogram

LEDGER_ENTRIES_MAX = 50_000  # writes to one cursor ledger before it is replaced
SNAPSHOT_BYTES_MIN = 64 * 1024  # deltas of fewer bytes never cause a snapshot
DELTA_ENTRIES_MAX = 8_192  # changed entries in one delta: about 10 ms to write; more make a snapshot
ROLL_ATTEMPTS_MAX = 5
ROLL_DELAY_S = 0.2  # between attempts, doubling
ROLL_DELAY_S_MAX = 5.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CursorPlace:
    """The names and the path of a durable cursor. ``policies`` returns the topic's policies, which decide on the copies
    of a new ledger."""

    topic: str
    subscription: str
    path: str  # of the CursorRecord
    policies: Callable[[], Policies]


class CursorLog:
    """The durable side of one cursor. All calls on one event loop.

    Attributes:
        on_lost: called when another broker took the cursor over.
        latency: of writes, from the first acknowledgement of each until it is durable.
    """

    def __init__(
        self,
        place: CursorPlace,
        owned: OwnedRecord[CursorRecord],
        cursor: Cursor,
        chain: Chain,
        ledgers: LedgersPort,
    ) -> None:
        self.cursor = cursor
        self._place = place
        self._owned = owned
        self._chain = chain
        self._ledgers = ledgers
        self._own = BrokerLog(ledgers, f"cursor {place.subscription} of {place.topic}")
        self._base = -1  # first part of the newest complete snapshot
        self._snapshot_bytes = 0
        self._delta_bytes = 0
        self._in_flight: asyncio.Future[None] | None = None  # resolves when what is being written is durable
        self._queued: asyncio.Future[None] | None = None  # the same for what was acknowledged since
        self._working: asyncio.Task[None] | None = None  # a roll, or a snapshot in steps
        self._needs_snapshot = False  # a write failed: what it held becomes durable with the next snapshot only
        self._failed: HeliographError | None = None
        self._naming = asyncio.Lock()  # one change of the record at a time
        self._cleaning: set[asyncio.Task[None]] = set()
        self.latency = Histogram()
        self._since = self._queued_since = 0.0  # the first acknowledgement of the write in flight, of the next
        self.on_lost: Callable[[HeliographError], None] = lambda error: None

    @property
    def ledger_id(self) -> int:
        """Return the cursor ledger in use, -1 before the first change is written."""
        return self._owned.record.cursor_ledger_id

    @property
    def last_entry_id(self) -> int:
        """Return the last confirmed write of this owner to the cursor ledger in use, -1 for none."""
        writer = self._own.writer
        return -1 if writer is None else writer.last_add_confirmed

    @property
    def properties(self) -> Mapping[str, str]:
        """Return the properties of the cursor's record, the user's and the broker's own."""
        return self._owned.record.properties

    async def set_properties(self, changes: Mapping[str, str | None]) -> None:
        """Change properties of the record, to completion even if the caller is cancelled. A value of None removes one.

        Raises:
            ServiceNotReadyError: another broker owns the cursor now, or it is closed here.
            ConnectionLossError: the metadata store cannot be reached; the outcome is unknown.
        """
        if self._failed is not None:
            raise ServiceNotReadyError(f"the subscription is not served here any more: {self._failed}")
        await run_to_completion(self._set_properties(changes))

    def persist(self) -> asyncio.Future[None]:
        """Return a future that resolves once every change made so far is durable. It is shared: shield it, do not
        cancel it.

        The future raises LedgerFencedError when another broker took the cursor over, or PersistenceError when the
        bookies do not take the write now; what was acknowledged may then be delivered again.
        """
        loop = asyncio.get_running_loop()
        if self._failed is not None:
            return _failed_future(loop, self._failed)
        if self._in_flight is not None:
            if not self.cursor.has_changes:
                return self._queued or self._in_flight
            if self._queued is None:
                self._queued, self._queued_since = loop.create_future(), perf_counter()
            return self._queued
        done = loop.create_future()
        if not self.cursor.has_changes and not self._needs_snapshot:
            done.set_result(None)
            return done
        self._in_flight, self._since = done, perf_counter()
        self._write_changes()
        return done

    async def new_ledger(self, use: str) -> LedgerWriterPort:
        """Create a ledger with the copies and the placement of the topic's own ledgers, and properties that name its
        use.

        Raises:
            NotEnoughBookiesError: fewer usable bookies than the ensemble size.
            InvalidConfigError: the policies name a placement that this broker does not have.
        """
        place = self._place
        return await create_topic_ledger(self._ledgers, place.topic, place.policies(), use, place.subscription)

    async def close(self) -> None:
        """Write the remaining changes and close the cursor ledger. After a failure, the next owner recovers it."""
        try:
            await shielded(self.persist())
            if self._own.writer is not None and self._failed is None:
                await self._own.writer.close()
        except HeliographError as error:
            log.warning(
                "cursor %s of %s: not everything was stored at the end: %s",
                self._place.subscription,
                self._place.topic,
                error,
            )
        self.abandon(PersistenceError("the subscription is closed"))
        await asyncio.gather(*self._cleaning, return_exceptions=True)

    async def delete(self) -> None:
        """Delete the cursor and its ledger for good.

        Raises:
            ServiceNotReadyError: another broker owns it now.
        """
        self.abandon(PersistenceError("the subscription is deleted"))
        if self._working is not None:
            await asyncio.wait([self._working])  # its write of the record may have been sent
        async with self._naming:
            await self._owned.delete()
        self._own.drop()
        if self.ledger_id >= 0:
            await self._ledgers.delete(self.ledger_id)

    def abandon(self, error: HeliographError) -> None:
        """Write nothing from now on; every waiter gets ``error`` (I13). Idempotent."""
        if self._failed is not None:
            return
        self._failed = error
        if self._working is not None:
            self._working.cancel()
        self._fail_waiters(error)

    async def _set_properties(self, changes: Mapping[str, str | None]) -> None:
        async with self._naming:
            properties = {**self.properties, **{name: value for name, value in changes.items() if value is not None}}
            for name in [name for name, value in changes.items() if value is None]:
                properties.pop(name, None)
            if properties != self.properties:
                await self._owned.replace(replace(self._owned.record, properties=properties))

    def _write_changes(self) -> None:
        """Write all changes; ``_in_flight`` resolves when they are durable."""
        assert self._in_flight is not None, "a waiter was made"
        if self._own.writer is None or (self._own.writes >= LEDGER_ENTRIES_MAX and self._owned.is_reachable):
            self._start_roll()
        elif (
            self._delta_bytes > max(SNAPSHOT_BYTES_MIN, 2 * self._snapshot_bytes)
            or self.cursor.changes > DELTA_ENTRIES_MAX
        ):
            self._start_snapshot()
        else:
            delta = self.cursor.take_delta()
            assert delta is not None, "there is something to write"
            self._write_delta(cursor_record.encode_delta(delta, self._chain, self._base))

    def _snapshot_steps(self, base: int) -> Generator[None, None, list[bytes]]:
        self.cursor.take_delta()  # the snapshot holds it
        return cursor_record.snapshot_steps(self.cursor, self._chain, base)

    def _start_snapshot(self) -> None:
        steps = self._snapshot_steps(self._base)
        try:
            next(steps)
        except StopIteration as small:
            [part] = small.value
            self._write_snapshot(part)
        else:
            self._start(self._write_large_snapshot(steps))

    async def _write_large_snapshot(self, steps: Generator[None, None, list[bytes]]) -> None:
        assert self._own.writer is not None, "there is a ledger to write to"
        parts = await _in_steps(steps)
        try:
            base = await add_all(self._own.writer, parts)
        except HeliographError as error:
            self._working = None
            self._on_write_failed(error)
            return
        self._working = None
        self._own.writes += len(parts)
        self._note_snapshot(base, sum(map(len, parts)))
        self._finish_write()

    def _write_delta(self, record: bytes) -> None:
        assert self._own.writer is not None, "there is a ledger to write to"
        try:
            self._own.writer.add_then(record, self._on_delta_written, len(record))
        except HeliographError as error:
            self._on_write_failed(error)
            return
        self._own.writes += 1

    def _on_delta_written(self, size: int, entry_id: int, error: HeliographError | None) -> None:
        if self._failed is not None or self._in_flight is None:
            return
        if error is not None:
            self._on_write_failed(error)
            return
        self._delta_bytes += size
        self._finish_write()

    def _write_snapshot(self, part: bytes) -> None:
        assert self._own.writer is not None, "there is a ledger to write to"
        try:
            self._own.writer.add_then(part, self._on_snapshot_written, len(part))
        except HeliographError as error:
            self._on_write_failed(error)
            return
        self._own.writes += 1

    def _on_snapshot_written(self, size: int, entry_id: int, error: HeliographError | None) -> None:
        if self._failed is not None or self._in_flight is None:
            return
        if error is not None:
            self._on_write_failed(error)
            return
        self._note_snapshot(entry_id, size)
        self._finish_write()

    def _on_write_failed(self, error: HeliographError) -> None:
        """Handle a write that failed or has an unknown outcome: the cursor is lost if it was fenced, else the ledger is
        replaced."""
        if isinstance(error, LedgerFencedError):
            self._lose(error)
        else:
            log.warning(
                "cursor %s of %s: a write failed, a new ledger is started: %s",
                self._place.subscription,
                self._place.topic,
                error,
            )
            self._own.drop()
            self._start_roll()

    def _note_snapshot(self, base: int, size: int) -> None:
        self._base, self._snapshot_bytes, self._delta_bytes = base, size, 0

    def _finish_write(self) -> None:
        assert self._in_flight is not None, "a write was in flight"
        if not self._in_flight.done():
            self._in_flight.set_result(None)
        self.latency.observe(perf_counter() - self._since)
        self._in_flight, self._queued, self._since = self._queued, None, self._queued_since
        if self._in_flight is not None:
            if self.cursor.has_changes:
                self._write_changes()
            else:
                self._finish_write()

    def _start_roll(self) -> None:
        self._start(self._roll())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        assert self._working is None or self._working.done(), "one roll or snapshot at a time"
        self._working = asyncio.get_running_loop().create_task(work)

    async def _roll(self) -> None:
        """Start a new ledger with a snapshot, which makes everything durable that is being waited for.

        While the metadata store is silent the ledger in use is written on, if it can be; else the acknowledgements
        wait, and are not confirmed before they are durable (I11).
        """
        delay, attempt = ROLL_DELAY_S, 0
        while True:
            try:
                await self._replace_ledger()
            except ServiceNotReadyError as error:
                self._lose(LedgerFencedError(f"another broker owns this cursor: {error}"))
                return
            except ConnectionLossError:
                if self._own.writer is not None:
                    self._working = None
                    self._start_snapshot()
                    return
                await asyncio.sleep(delay)
                delay = min(2 * delay, ROLL_DELAY_S_MAX)
            except HeliographError as error:
                attempt += 1
                log.warning(
                    "cursor %s of %s: no new ledger now: %s", self._place.subscription, self._place.topic, error
                )
                if error.advice is Advice.STOP or attempt == ROLL_ATTEMPTS_MAX:
                    self._stop_writing(error)
                    return
                await asyncio.sleep(delay)
                delay *= 2
            else:
                self._working = None
                self._finish_write()
                return

    async def _replace_ledger(self) -> None:
        old = self.ledger_id
        await self._own.begin(await self.new_ledger("cursor"), self._fill)
        self._needs_snapshot = False
        if old >= 0:
            self._clean(old)

    async def _fill(self, writer: LedgerWriterPort) -> int:
        """Write a snapshot to a new ledger, and name it in the record."""
        parts = await _in_steps(self._snapshot_steps(-1))
        mark = self._chain.position_before(self.cursor.mark)
        await add_all(writer, parts)
        await self._name_ledger(writer.ledger_id, mark)
        self._note_snapshot(0, sum(map(len, parts)))
        return len(parts)

    async def _name_ledger(self, ledger_id: int, mark: Position) -> None:
        async with self._naming:
            await self._owned.replace(
                replace(self._owned.record, mark_delete=(mark.ledger_id, mark.entry_id), cursor_ledger_id=ledger_id)
            )

    def _clean(self, ledger_id: int) -> None:
        task = asyncio.get_running_loop().create_task(self._own.delete(ledger_id))
        self._cleaning.add(task)
        task.add_done_callback(self._cleaning.discard)

    def _stop_writing(self, error: HeliographError) -> None:
        """Fail the waiters: the bookies do not take writes now. The next change tries again with a snapshot."""
        self._own.writer, self._working, self._needs_snapshot = None, None, True
        self._fail_waiters(PersistenceError(f"the acknowledgement could not be stored: {error}"))

    def _fail_waiters(self, error: HeliographError) -> None:
        waiters, self._in_flight, self._queued = (self._in_flight, self._queued), None, None
        for waiter in waiters:
            if waiter is not None and not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # seen: there may be no caller any more

    def _lose(self, error: HeliographError) -> None:
        self._working = None
        self.abandon(error)
        self.on_lost(error)


async def _in_steps(steps: Generator[None, None, list[bytes]]) -> list[bytes]:
    """Run the steps, and let the event loop turn after each."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            parts: list[bytes] = done.value
            return parts
        await asyncio.sleep(0)


def _failed_future(loop: asyncio.AbstractEventLoop, error: HeliographError) -> asyncio.Future[None]:
    future: asyncio.Future[None] = loop.create_future()
    future.set_exception(error)
    future.exception()
    return future
