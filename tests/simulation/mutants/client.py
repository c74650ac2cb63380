"""Sabotages of our own client: calls, sending again, acknowledgements, permits, chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
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
from tests.simulation.mutants.mutant import CLIENT, mutant

# -- producers


@mutant(start=2, world=CLIENT)
def confirm_what_a_lost_connection_held() -> Iterator[None]:
    """An entry counts as stored when the connection is lost that it was sent on (I1, calls)."""
    real = PartitionProducer.on_connection_lost

    def lost(self: PartitionProducer, error: Any) -> None:
        while self.pending:
            entry = self.pending.popleft()
            self._window.release(entry.messages, entry.size)
            entry.confirm(-1, -1, -1, self._full_name)
        real(self, error)

    with patch.object(PartitionProducer, "on_connection_lost", lost):
        yield


@mutant(world=CLIENT)
def send_nothing_again() -> Iterator[None]:
    """A producer that comes back sends its later entries only (liveness, or a receipt out of order)."""
    real = PartitionProducer._register

    async def register(self: PartitionProducer) -> None:
        pending = list(self.pending)
        self.pending.clear()
        await real(self)
        self.pending.extendleft(reversed(pending))

    with patch.object(PartitionProducer, "_register", register):
        yield


@mutant(world=CLIENT)
def number_entries_again() -> Iterator[None]:
    """A producer that comes back gives its entries other numbers, so that they are stored twice (I12)."""
    real = PartitionProducer._register

    async def register(self: PartitionProducer) -> None:
        self._epoch, before = 0, self._epoch
        await real(self)
        self._epoch += before

    with patch.object(PartitionProducer, "_register", register):
        yield


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


@mutant(world=CLIENT)
def flush_what_is_sent_only() -> Iterator[None]:
    """A flush does not wait for calls that wait themselves, for the opening or for room (calls)."""

    async def flush(self: AsyncProducer[Any]) -> None:
        self._check_loop()
        for part in self._parts:
            await part.drain()

    with patch.object(AsyncProducer, "flush", flush):
        yield


@mutant(start=19, world=CLIENT)
def close_without_a_look_at_what_waits() -> Iterator[None]:
    """A producer that is closed while it reconnects leaves its entries without an outcome (calls)."""
    real = PartitionProducer.close

    async def close(self: PartitionProducer) -> None:
        if self._connection is None:
            self.pending.clear()
            self.batch = None
        await real(self)

    with patch.object(PartitionProducer, "close", close):
        yield


# -- acknowledgements


@mutant(world=CLIENT)
def confirm_acknowledgements_of_a_lost_connection() -> Iterator[None]:
    """An acknowledgement counts as durable when the connection is lost that it was sent on (I11)."""
    real = AckSender.detach

    def detach(self: AckSender) -> None:
        for group in self._in_flight.values():
            group.confirm()
        self._in_flight.clear()
        real(self)

    with patch.object(AckSender, "detach", detach):
        yield


@mutant(world=CLIENT)
def forget_acknowledgements_of_a_lost_connection() -> Iterator[None]:
    """An acknowledgement that was sent on a lost connection is not sent again (liveness)."""
    real = AckSender.detach

    def detach(self: AckSender) -> None:
        self._in_flight.clear()
        real(self)

    with patch.object(AckSender, "detach", detach):
        yield


@mutant(world=CLIENT)
def acknowledge_the_whole_batch() -> Iterator[None]:
    """The acknowledgement of one message of a batch names the entry (I11)."""
    real = consumer_module._acknowledge

    def acknowledge(message: Any, entries: Any) -> ReceivedEntry | None:
        found = real(message, entries)
        entries.update(dict.fromkeys(entries, 0))
        return found

    with patch.object(consumer_module, "_acknowledge", acknowledge):
        yield


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


@mutant(world=CLIENT)
def keep_the_permits_of_what_is_dropped() -> Iterator[None]:
    """The permits of a chunk are not granted again (liveness)."""
    real = PartitionConsumer.on_message

    def on_message(self: PartitionConsumer, message: Any, section: memoryview) -> None:
        held = self._permits_due
        chunk = self.last_chunk
        with patch.object(PartitionConsumer, "_grant", lambda self, permits: None):
            real(self, message, section)
        if self.last_chunk is chunk and self._inbox.permits_of(self) == 0:
            self._permits_due = held

    with patch.object(PartitionConsumer, "on_message", on_message):
        yield


@mutant(world=CLIENT)
def grant_permits_of_before_a_redelivery() -> Iterator[None]:
    """A consumer that subscribes again grants its queue, and what it owed before (I15)."""
    real = PartitionConsumer._subscribe

    async def subscribe(self: PartitionConsumer) -> None:
        await real(self)
        self._permits_due = self._queue
        self._flow()

    with patch.object(PartitionConsumer, "_subscribe", subscribe):
        yield


@mutant(start=2, world=CLIENT)
def leave_the_seek_to_the_broker() -> Iterator[None]:
    """A consumer whose seek is over does not subscribe again (I12, liveness)."""

    def resubscribe(self: PartitionConsumer, connection: Any) -> None:
        if self._state is ConsumerPartitionState.SEEKING and self._connection is not None:
            self._state = ConsumerPartitionState.READY
            self.acks.attach(connection)
        elif self._state is ConsumerPartitionState.SEEKING:
            self._state = ConsumerPartitionState.FAILED

    with patch.object(PartitionConsumer, "_resubscribe", resubscribe):
        yield


@mutant(world=CLIENT)
def expire_chunks_without_a_look_at_the_clock() -> Iterator[None]:
    """A message in chunks is given up although its chunks still come (I11)."""
    real = ChunkAssembler.complete

    def complete(self: ChunkAssembler, delivery: ReceivedEntry) -> bool:
        found = real(self, delivery)
        self._seconds, before = 0.0, self._seconds
        for partial in self._partial.values():
            partial.has_grace, partial.deadline = True, self._loop.time()
        self._expire()
        self._seconds = before
        return found

    with patch.object(ChunkAssembler, "complete", complete):
        yield


@mutant(start=106, world=CLIENT)
def never_expire_chunks() -> Iterator[None]:
    """The chunks of a producer that was killed hold the subscription back (liveness)."""
    with patch.object(ChunkAssembler, "_expire", lambda self: None):
        yield
