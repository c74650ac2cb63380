"""A producer of one unpartitioned topic or one partition: sequence ids, pending entries, reconnecting."""

from __future__ import annotations

import asyncio
import enum
import logging
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice

from heliograph.base.clock import wall_ms
from heliograph.base.completion import shielded
from heliograph.base.errors import (
    Advice,
    AlreadyClosedError,
    ConnectionLostError,
    HeliographError,
    ProducerBusyError,
    ProducerHeldError,
    ProtocolError,
    QuotaExceededError,
    RequestTimeoutError,
    TooFewBookiesError,
)
from heliograph.base.lifecycle import Lifecycle
from heliograph.client.aio.producer import commands
from heliograph.client.aio.producer.commands import PlainFrames, key_field_of
from heliograph.client.aio.producer.outgoing import OpenBatch, PendingEntry, Waiter
from heliograph.client.aio.producer.send_window import SendWindow
from heliograph.client.aio.session import ClientSession
from heliograph.client.aio.transport.connection import BrokerConnection
from heliograph.client.options import ProducerOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import INLINE_BYTES_MAX
from heliograph.protocol.compression import NAMES as CODECS
from heliograph.protocol.frame import MESSAGE_BYTES_MAX
from heliograph.protocol.message_id import MessageId, to_signed
from heliograph.protocol.schema import SchemaInfo
from heliograph.protocol.server_error import exception_of
from heliograph.protocol.topic_name import TopicName

log = logging.getLogger(__name__)


class ProducerPartitionState(enum.Enum):
    """Whether a partition's producer is registered at the owner of the partition."""

    CONNECTING = "connecting"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


PRODUCER_PARTITION_LIFECYCLE = Lifecycle(
    {
        ProducerPartitionState.CONNECTING: (
            "Entries are kept until the producer is registered at the owner of the partition.",
            {ProducerPartitionState.READY, ProducerPartitionState.FAILED, ProducerPartitionState.CLOSED},
        ),
        ProducerPartitionState.READY: (
            "Entries are sent to the broker at once.",
            {ProducerPartitionState.CONNECTING, ProducerPartitionState.CLOSED},
        ),
        ProducerPartitionState.FAILED: (
            "The broker refused the producer for good; every entry fails with the reason.",
            {ProducerPartitionState.CLOSED},
        ),
        ProducerPartitionState.CLOSED: ("Entries are refused, and the producer has left the topic.", ()),
    }
)
_READY = ProducerPartitionState.READY  # looked up once: every entry compares with it


class PartitionProducer:
    """Sends entries in order and keeps each until it is confirmed.

    After a lost connection or a change of owner it looks the topic up again and sends everything unconfirmed once
    more, in the same order with the same sequence ids, so that a broker with deduplication stores nothing twice.
    Receipts come in the order of the entries (I2); one out of order ends the connection.

    Attributes:
        last_sequence_id: Sequence id of the last confirmed message. After opening, of the last message that the topic
            holds of this producer's name.
        failure: Why entries are refused: the state is FAILED, or an entry failed and the producer stops at that.
    """

    def __init__(
        self,
        session: ClientSession,
        topic: TopicName,
        options: ProducerOptions,
        window: SendWindow,
        schema: SchemaInfo | None = None,
    ) -> None:
        self.topic = topic
        self.name = options.name or ""
        self.max_message_bytes = MESSAGE_BYTES_MAX  # of the broker that it is connected to
        self.batch_bytes = min(options.batch_bytes, MESSAGE_BYTES_MAX)  # at which a batch is full
        self.batch: OpenBatch | None = None
        self.batches_by_key, self.batch_messages = options.batch_by_key, options.batch_messages
        self.pending: deque[PendingEntry] = deque()
        self.failure: HeliographError | None = None
        self._full_name = str(topic)
        self._session = session
        self._options = options
        self._codec = CODECS[options.compression]
        self._inline_bytes_max = sys.maxsize if self._codec == pb.NONE else INLINE_BYTES_MAX
        self._window = window
        self._schema = schema
        self._schema_version = b""  # in the topic's registry
        self._id = session.next_id()
        self._epoch = 0
        self._topic_epoch: int | None = None
        self.last_sequence_id = -1
        self._next_sequence_id = 0 if options.initial_sequence_id is None else options.initial_sequence_id + 1
        self._state = ProducerPartitionState.CONNECTING
        self._connection: BrokerConnection | None = None
        self._was_refused = False  # by the owner that was found last
        self._reconnecting: asyncio.Task[None] | None = None
        self._too_few: TooFewBookiesError | None = None  # the last answer, if that was it
        self._timer: asyncio.TimerHandle | None = None  # not after the deadline of the first of ``pending``
        self._flush: asyncio.Handle | None = None
        # The entries that wait for their frame or for an earlier one's: the end of ``pending`` from the first without.
        self._unsent: deque[PendingEntry] = deque()
        self._packing: set[asyncio.Future[tuple[bytes, int]]] = set()
        self._plain: PlainFrames | None = None  # for messages that need no other frame; None with compression

    async def open(self) -> None:
        """Register with the owner of the partition.

        Raises:
            ProducerBusyError, TopicNotFoundError, ...: The broker refused the producer.
            ConnectionLostError, RequestTimeoutError: No broker could be reached within the operation timeout.
            TooFewBookiesError: The topic had no ledger for the time that a message may take, ``send_timeout_ms``.
        """
        within_ms = self._session.options.operation_timeout_ms
        await self._session.retry(
            lambda: self._register(within_ms), too_few_bookies_ms=self._options.send_timeout_ms or None
        )

    # -- sending

    def add(self, head: bytes, payload: bytes, key: str | None) -> asyncio.Future[MessageId]:
        """Add a message to the open batch and return the future of its id. The caller took its room in the window."""
        batch = self.batch
        if batch is None and self.batch_messages == 1:
            waiter: asyncio.Future[MessageId] = self._session.loop.create_future()
            self.push((head,), (payload,), [waiter], key if self.batches_by_key else None)
            return waiter
        size = len(head) + len(payload)
        if batch is not None and not self._fits(batch, size, key):
            self.flush_batch()
            batch = None
        if batch is None:
            batch = self.batch = OpenBatch(key)
            self._schedule_flush()
        waiter = self._session.loop.create_future()
        batch.heads.append(head)
        batch.payloads.append(payload)
        batch.waiters.append(waiter)
        batch.size += size
        if len(batch.payloads) >= self.batch_messages or batch.size >= self.batch_bytes:
            self.flush_batch()
        return waiter

    def add_delayed(self, head: bytes, payload: bytes, deliver_at_ms: int) -> asyncio.Future[MessageId]:
        """Send a message in an entry of its own, delivered at ``deliver_at_ms`` or later; otherwise as ``add``."""
        self.flush_batch()
        waiter: asyncio.Future[MessageId] = self._session.loop.create_future()
        self.push([head], [payload], [waiter], deliver_at_ms=deliver_at_ms)
        return waiter

    def flush_batch(self) -> None:
        """Send the open batch, if there is one."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush = None
        batch, self.batch = self.batch, None
        if batch is not None:
            key = batch.key if self.batches_by_key else None
            self.push(batch.heads, batch.payloads, batch.waiters, key)

    def push(
        self,
        heads: Sequence[bytes],
        payloads: Sequence[bytes],
        waiters: Sequence[Waiter],
        key: str | None = None,
        deliver_at_ms: int = 0,
    ) -> None:
        """Send one entry. The caller took room in the window for its heads and payloads."""
        is_single = len(payloads) == 1
        size = len(heads[0]) + len(payloads[0]) if is_single else sum(map(len, heads)) + sum(map(len, payloads))
        deadline = self._session.loop.time() + self._options.send_timeout_ms / 1000
        entry = PendingEntry(0, 0, len(payloads), size, b"", waiters, deadline)
        is_large = is_single and len(payloads[0]) > self.max_message_bytes
        is_packed_aside = is_large or size > self._inline_bytes_max
        plain = self._plain if is_single and not deliver_at_ms and not is_large else None
        key_field = None if plain is None else key_field_of(heads[0], len(payloads[0]))
        try:
            self._check_usable()
            if plain is not None and key_field is not None:
                entry.sequence_id = entry.last_sequence_id = self._next_sequence_id
                self._next_sequence_id += 1
                entry.frame = plain.frame(entry.sequence_id, wall_ms(), payloads[0], key_field)
            else:
                pack = self._numbered(entry, heads, payloads, key, deliver_at_ms)
                if not is_packed_aside:
                    entry.frame, entry.frames = pack()
        except HeliographError as error:
            self._window.release(entry.messages, entry.size)
            entry.fail(error)
            return
        self.pending.append(entry)
        if self._timer is None and self._options.send_timeout_ms > 0:
            self._timer = self._session.loop.call_at(deadline, self._expire)
        if is_packed_aside:
            self._pack_aside(entry, pack)
        elif self._unsent:
            self._unsent.append(entry)  # it follows the entries before it
        elif self._state is _READY and self._connection is not None:
            write = self._connection.write_last if len(self.pending) == 1 else self._connection.write
            write(entry.frame)
        if self._state is ProducerPartitionState.CONNECTING:
            self._find_owner(pause=False)  # not under way yet, if the producer rejoins when it sends

    async def drain(self) -> None:
        """Wait until every entry sent so far is confirmed or failed; entries sent meanwhile do not count."""
        if self.batch is not None:
            self.flush_batch()
        if self.pending:
            last = self.pending[-1]
            if last.settled is None:
                last.settled = self._session.loop.create_future()
            await shielded(last.settled)

    async def close(self) -> None:
        """Send the open batch, wait until every entry is confirmed, and leave the topic."""
        while self._is_alive() and (self.pending or self.batch is not None):
            await self.drain()  # again, for what a call that had already begun has sent meanwhile
        if self._state is ProducerPartitionState.CLOSED:
            return
        connection, self._connection = self._connection, None
        self._move(ProducerPartitionState.CLOSED)
        self._stop_timers()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        self._fail_pending(AlreadyClosedError("the producer was closed"))
        if self._packing:
            await asyncio.wait(self._packing)  # a thread that ends later would find no loop
        if connection is not None and connection.producers.pop(self._id, None) is not None:
            try:
                await connection.request(self._close_command)
            except HeliographError as error:
                log.debug("closing the producer of %s: %s", self.topic, error)

    # -- called by the connection

    def on_receipt(self, receipt: pb.CommandSendReceipt) -> None:
        pending = self.pending
        if not pending or receipt.sequence_id < pending[0].sequence_id:
            return  # its entry has failed, or was confirmed before a reconnect
        entry = pending[0]
        if receipt.sequence_id not in (entry.sequence_id, entry.last_sequence_id) or not entry.frame:  # I2
            if self._connection is not None:
                error = ProtocolError(
                    f"the receipt of sequence id {receipt.sequence_id} came before that of {entry.sequence_id}"
                )
                self._connection.abort(error)
            return
        entry.receipts += 1
        if entry.receipts < entry.frames:
            position = receipt.message_id
            if entry.receipts == 1 and to_signed(position.ledger_id) >= 0:  # else it was stored before
                entry.first_chunk = to_signed(position.ledger_id), to_signed(position.entry_id)
            return  # chunks of a large message: the last one stores it
        pending.popleft()
        self._window.release(entry.messages, entry.size)
        self.last_sequence_id = entry.last_sequence_id
        self._too_few = None
        stored = receipt.message_id
        entry.confirm(to_signed(stored.ledger_id), to_signed(stored.entry_id), self.topic.partition, self._full_name)
        if self.batch is not None and not pending:
            self.flush_batch()

    def on_send_error(self, answer: pb.CommandSendError) -> None:
        error = exception_of(answer.error, answer.message)
        first = self.pending[0] if self.pending else None
        if error.advice is Advice.STOP and (first is None or answer.sequence_id < first.sequence_id):
            return  # a further chunk of a message that has failed
        if error.advice is Advice.STOP and first and first.frame and first.sequence_id == answer.sequence_id:
            entry = self.pending.popleft()
            self._window.release(entry.messages, entry.size)
            self.failure = self.failure or (error if self._options.stop_at_failure else None)
            entry.fail(error)
            if not self.pending:
                self.flush_batch()
            return
        if isinstance(error, TooFewBookiesError):
            self._too_few = error
        connection = self._connection
        if connection is not None and connection.producers.pop(self._id, None) is not None:
            # The broker may still read the entries that follow on this connection: only a new one keeps the order.
            connection.abort(ConnectionLostError(f"the broker could not store an entry of {self.topic}: {error}"))
            self._reconnect(pause=True)

    def on_closed_by_broker(self) -> None:
        if self._state is not _READY:
            return  # the registering that is under way fails, and is tried again
        if self._options.rejoin == "when_sending" and not self.pending and self.batch is None:
            self._move(ProducerPartitionState.CONNECTING)
            self._connection = None
            return
        log.info("the broker closed the producer of %s; looking up the topic's new owner", self.topic)
        self._reconnect(pause=False)

    def on_connection_lost(self, error: HeliographError) -> None:
        if self._state is _READY:
            log.info("producer of %s lost its connection: %s", self.topic, error)
            self._reconnect(pause=False)

    # -- packing

    def _fits(self, batch: OpenBatch, size: int, key: str | None) -> bool:
        if self.batches_by_key and key != batch.key:
            return False
        return batch.size + size <= self.batch_bytes

    def _schedule_flush(self) -> None:
        """Send the batch at the end of this turn of the loop, or after ``linger_ms`` while entries are pending."""
        loop = self._session.loop
        if self.pending and self._options.linger_ms > 0:
            self._flush = loop.call_later(self._options.linger_ms / 1000, self.flush_batch)
        else:
            self._flush = loop.call_soon(self.flush_batch)

    def _numbered(
        self,
        entry: PendingEntry,
        heads: Sequence[bytes],
        payloads: Sequence[bytes],
        key: str | None,
        deliver_at_ms: int,
    ) -> Callable[[], tuple[bytes, int]]:
        """Give an entry its sequence ids. Return what makes its frames, and counts them, on any thread."""
        first = self._next_sequence_id
        last = first + len(payloads) - 1
        metadata = pb.MessageMetadata(producer_name=self.name, sequence_id=first, publish_time=wall_ms())
        send = pb.CommandSend(producer_id=self._id, sequence_id=first, num_messages=len(payloads))
        if last > first:
            metadata.highest_sequence_id = last
            send.highest_sequence_id = last
        if key is not None:
            metadata.partition_key = key
        if self._schema_version:
            metadata.schema_version = self._schema_version
        if deliver_at_ms:
            metadata.deliver_at_time = deliver_at_ms
        entry.sequence_id, entry.last_sequence_id, self._next_sequence_id = first, last, last + 1
        return partial(commands.frames, metadata, send, heads, payloads, self._codec, bytes_max=self.max_message_bytes)

    def _pack_aside(self, entry: PendingEntry, pack: Callable[[], tuple[bytes, int]]) -> None:
        """Make the frame of an entry on a thread, then send what may be sent, up to the first entry without a frame."""
        self._unsent.append(entry)
        packing = self._session.loop.run_in_executor(None, pack)
        self._packing.add(packing)

        def packed(done: asyncio.Future[tuple[bytes, int]]) -> None:
            self._packing.discard(done)
            if done.cancelled():
                return
            entry.frame, entry.frames = done.result()
            self._send_packed()

        packing.add_done_callback(packed)

    def _send_packed(self) -> None:
        """Send the entries whose frames are complete, up to the first that is not."""
        unsent = self._unsent
        while unsent and unsent[0].frame:
            entry = unsent.popleft()
            if self._state is _READY and self._connection is not None:
                self._connection.write(entry.frame)

    def _check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self._state is ProducerPartitionState.CLOSED:
            raise AlreadyClosedError("the producer was closed")

    # -- registering

    def _move(self, to: ProducerPartitionState) -> None:
        self._state = PRODUCER_PARTITION_LIFECYCLE.move(self._state, to)

    def _is_alive(self) -> bool:
        return self._state in (ProducerPartitionState.CONNECTING, ProducerPartitionState.READY)

    async def _register(self, within_ms: int | None = None) -> None:
        """Try once to become a producer of the topic; on success send everything unconfirmed again.

        Args:
            within_ms: how long to wait while other handles register; None: as long as it takes.
        """
        with await self._session.registering.turn(self.topic, within_ms) as turn:
            connection = await self._session.lookup.owner(self.topic, is_confirmed=self._was_refused)
            if self._options.access_mode == "wait_for_exclusive":
                turn.end()  # its answer may take as long as another producer is there
            connection.producers[self._id] = self
            try:
                answer = await connection.request(self._producer_command)
            except BaseException as error:
                self._was_refused = True
                if connection.producers.pop(self._id, None) is not None and not isinstance(error, HeliographError):
                    connection.request(self._close_command)  # cancelled: the broker may have registered it
                raise
        if connection.closed or self._id not in connection.producers:
            raise ConnectionLostError(f"the connection to the owner of {self.topic} ended")
        self.name = answer.producer_name
        if self._schema is not None:
            self._schema_version = answer.schema_version
        if answer.HasField("topic_epoch"):
            self._topic_epoch = answer.topic_epoch
        if self._epoch == 0:
            self.last_sequence_id = answer.last_sequence_id
            if self._options.initial_sequence_id is None:
                self._next_sequence_id = answer.last_sequence_id + 1
        self._epoch += 1
        self.max_message_bytes = connection.max_message_bytes
        self.batch_bytes = min(self._options.batch_bytes, self.max_message_bytes)
        self.batches_by_key = self._options.batch_by_key or answer.batching == "by_key"
        self.batch_messages = 1 if answer.batching == "none" else self._options.batch_messages
        self._connection = connection
        if self._codec == pb.NONE:
            self._plain = PlainFrames(self._id, self.name, self._schema_version)
        self._was_refused = False
        self._move(ProducerPartitionState.READY)
        for entry in islice(self.pending, len(self.pending) - len(self._unsent)):
            entry.receipts = 0
            connection.write(entry.frame)

    def _reconnect(self, *, pause: bool) -> None:
        self._move(ProducerPartitionState.CONNECTING)
        self._connection = None
        self._find_owner(pause=pause)

    def _find_owner(self, *, pause: bool) -> None:
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = self._session.loop.create_task(self._reconnect_until_ready(pause))

    async def _reconnect_until_ready(self, pause: bool) -> None:
        backoff = self._session.backoff()
        while True:
            if pause:
                await asyncio.sleep(backoff.pause())
            pause = True
            try:
                await self._register()
                return
            except HeliographError as error:
                # Busy may mean this producer itself: the broker notices late that its old connection is dead. Other
                # bytes come from another program, at the address of a broker that ended.
                if error.advice is Advice.STOP and not isinstance(error, (ProducerBusyError, ProtocolError)):
                    self._fail(error)
                    return
                if isinstance(error, QuotaExceededError) and not isinstance(error, ProducerHeldError):
                    self._fail_pending(error)  # the backlog policy says: tell producers, do not hold them
                self._too_few = error if isinstance(error, TooFewBookiesError) else self._too_few
                log.debug("producer of %s is not back yet: %s", self.topic, error)

    def _fail(self, error: HeliographError) -> None:
        log.warning("producer of %s failed for good: %s", self.topic, error)
        self._move(ProducerPartitionState.FAILED)
        self.failure = error
        self._stop_timers()
        self._fail_pending(error)

    def _fail_pending(self, error: HeliographError) -> None:
        if self._options.stop_at_failure and (self.pending or self.batch is not None):
            self.failure = self.failure or error  # before any caller learns of it and sends more
        batch, self.batch = self.batch, None
        if batch is not None:
            self._window.release(len(batch.payloads), batch.size)
            PendingEntry(0, 0, 0, 0, b"", batch.waiters, 0).fail(error)
        self._unsent.clear()
        while self.pending:
            entry = self.pending.popleft()
            self._window.release(entry.messages, entry.size)
            entry.fail(error)

    def _expire(self) -> None:
        self._timer = None
        if not self.pending:
            return
        if self.pending[0].deadline > self._session.loop.time():
            self._timer = self._session.loop.call_at(self.pending[0].deadline, self._expire)
            return
        # Later entries fail with the first: they must not be stored without it.
        limit = f"{self._options.send_timeout_ms} ms"
        late = f"sending to {self.topic} was not confirmed in time"
        too_few, error = self._too_few, RequestTimeoutError(late, limit=limit)
        self._fail_pending(error if too_few is None else type(too_few)(f"{too_few}; {late}", limit=limit))

    def _stop_timers(self) -> None:
        for handle in (self._timer, self._flush):
            if handle is not None:
                handle.cancel()
        self._timer = self._flush = None

    def _producer_command(self, request_id: int) -> pb.BaseCommand:
        options, schema = self._options, self._schema
        return commands.register(
            self._full_name, options, self._id, request_id, self._epoch, self.name, self._topic_epoch, schema
        )

    def _close_command(self, request_id: int) -> pb.BaseCommand:
        return commands.close(self._id, request_id)
