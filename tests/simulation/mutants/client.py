"""Sabotages of our own client: calls, sending again, acknowledgements, permits, chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest.mock import patch

from heliograph.client.aio.consumer import consumer as consumer_module
from heliograph.client.aio.consumer.ack_group import AckSender
from heliograph.client.aio.consumer.chunks import ChunkAssembler
from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.aio.consumer.partition import ConsumerPartitionState, PartitionConsumer
from heliograph.client.aio.producer.partition import PartitionProducer
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.aio.producer.send_window import CallLine
from tests.simulation.mutants.mutant import CLIENT, changed, mutant, replaced

# -- producers


@changed(PartitionProducer, "on_connection_lost", start=2, world=CLIENT)
def confirm_what_a_lost_connection_held(real: Callable[..., None], self: PartitionProducer, error: Any) -> None:
    """An entry counts as stored when the connection is lost that it was sent on (I1, calls)."""
    while self.pending:
        entry = self.pending.popleft()
        self._window.release(entry.messages, entry.size)
        entry.confirm(-1, -1, -1, self._full_name)
    real(self, error)


@changed(PartitionProducer, "_register", world=CLIENT)
async def send_nothing_again(
    real: Callable[..., Awaitable[None]], self: PartitionProducer, within_ms: int | None = None
) -> None:
    """A producer that comes back sends its later entries only (liveness, or a receipt out of order)."""
    pending = list(self.pending)
    self.pending.clear()
    await real(self, within_ms)
    self.pending.extendleft(reversed(pending))


@changed(PartitionProducer, "_register", world=CLIENT)
async def number_entries_again(
    real: Callable[..., Awaitable[None]], self: PartitionProducer, within_ms: int | None = None
) -> None:
    """A producer that comes back gives its entries other numbers, so that they are stored twice (I12)."""
    self._epoch, before = 0, self._epoch
    await real(self, within_ms)
    self._epoch += before


@mutant(world=CLIENT)
def let_calls_pass_each_other() -> Iterator[None]:
    """A call that waits for room does not hold back those behind it (I2)."""

    def join(self: CallLine) -> asyncio.Future[None]:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        turn.set_result(None)
        return turn

    def acquire(self: Any, messages: int, size: int) -> Any:
        async def wait() -> None:
            while not self.try_acquire(messages, size):  # noqa: ASYNC110
                await asyncio.sleep(0.001)

        return wait()

    with (
        patch.object(CallLine, "join", join),
        patch.object(CallLine, "leave", lambda self, turn: None),
        patch("heliograph.client.aio.producer.send_window.SendWindow.acquire", acquire),
    ):
        yield


@replaced(AsyncProducer, "flush", world=CLIENT)
async def flush_what_is_sent_only(self: AsyncProducer[Any]) -> None:
    """A flush does not wait for calls that wait themselves, for the opening or for room (calls)."""
    self._check_loop()
    for part in self._parts:
        await part.drain()


@changed(PartitionProducer, "close", start=19, world=CLIENT)
async def close_without_a_look_at_what_waits(real: Callable[..., Awaitable[None]], self: PartitionProducer) -> None:
    """A producer that is closed while it reconnects leaves its entries without an outcome (calls)."""
    if self._connection is None:
        self.pending.clear()
        self.batch = None
    await real(self)


# -- acknowledgements


@changed(AckSender, "detach", world=CLIENT)
def confirm_acknowledgements_of_a_lost_connection(real: Callable[..., None], self: AckSender) -> None:
    """An acknowledgement counts as durable when the connection is lost that it was sent on (I11)."""
    for group in self._in_flight.values():
        group.confirm()
    self._in_flight.clear()
    real(self)


@changed(AckSender, "detach", world=CLIENT)
def forget_acknowledgements_of_a_lost_connection(real: Callable[..., None], self: AckSender) -> None:
    """An acknowledgement that was sent on a lost connection is not sent again (liveness)."""
    self._in_flight.clear()
    real(self)


@changed(consumer_module, "_acknowledge", world=CLIENT)
def acknowledge_the_whole_batch(
    real: Callable[..., ReceivedEntry | None], message: Any, entries: Any
) -> ReceivedEntry | None:
    """The acknowledgement of one message of a batch names the entry (I11)."""
    found = real(message, entries)
    entries.update(dict.fromkeys(entries, 0))
    return found


# -- deliveries and permits


@mutant(world=CLIENT)
def keep_deliveries_over_a_reconnect() -> Iterator[None]:
    """What was delivered before a reconnect is handed out, and again when the broker sends it again (I12)."""

    def start_epoch(self: PartitionConsumer) -> None:
        self._permits_due = 0

    real = PartitionConsumer._reconnect

    def reconnect(self: PartitionConsumer) -> None:
        epoch = self.epoch
        real(self)
        self.epoch = epoch

    with (
        patch.object(PartitionConsumer, "_start_epoch", start_epoch),
        patch.object(PartitionConsumer, "_reconnect", reconnect),
    ):
        yield


@changed(PartitionConsumer, "on_message", world=CLIENT)
def keep_the_permits_of_what_is_dropped(
    real: Callable[..., None], self: PartitionConsumer, message: Any, section: memoryview
) -> None:
    """The permits of a chunk are not granted again (liveness)."""
    held = self._permits_due
    chunk = self.last_chunk
    with patch.object(PartitionConsumer, "_grant", lambda self, permits: None):
        real(self, message, section)
    if self.last_chunk is chunk and self._inbox.permits_of(self) == 0:
        self._permits_due = held


@changed(PartitionConsumer, "_subscribe", world=CLIENT)
async def grant_permits_of_before_a_redelivery(
    real: Callable[..., Awaitable[None]], self: PartitionConsumer, within_ms: int | None = None
) -> None:
    """A consumer that subscribes again grants its queue, and what it owed before (I15)."""
    await real(self, within_ms)
    self._permits_due = self._queue
    self._flow()


@replaced(PartitionConsumer, "_resubscribe", start=2, world=CLIENT)
def leave_the_seek_to_the_broker(self: PartitionConsumer, connection: Any) -> None:
    """A consumer whose seek is over does not subscribe again (I12, liveness)."""
    if self._state is ConsumerPartitionState.SEEKING and self._connection is not None:
        self._state = ConsumerPartitionState.READY
        self.acks.attach(connection)
    elif self._state is ConsumerPartitionState.SEEKING:
        self._state = ConsumerPartitionState.FAILED


@changed(ChunkAssembler, "complete", world=CLIENT)
def expire_chunks_without_a_look_at_the_clock(
    real: Callable[..., bool], self: ChunkAssembler, delivery: ReceivedEntry
) -> bool:
    """A message in chunks is given up although its chunks still come (I11)."""
    found = real(self, delivery)
    self._seconds, before = 0.0, self._seconds
    for partial in self._partial.values():
        partial.has_grace, partial.deadline = True, self._loop.time()
    self._expire()
    self._seconds = before
    return found


@mutant(start=106, world=CLIENT)
def never_expire_chunks() -> Iterator[None]:
    """The chunks of a producer that was killed hold the subscription back (liveness)."""
    with patch.object(ChunkAssembler, "_expire", lambda self: None):
        yield
