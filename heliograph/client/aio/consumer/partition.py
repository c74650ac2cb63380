"""A consumer of one unpartitioned topic or one partition: subscribing, permits, redelivery, seeking."""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from heliograph.base.errors import (
    Advice,
    AlreadyClosedError,
    ConnectionLostError,
    ConsumerBusyError,
    HeliographError,
    ProtocolError,
)
from heliograph.base.lifecycle import Lifecycle
from heliograph.client.aio.consumer import commands
from heliograph.client.aio.consumer.ack_group import AckSender
from heliograph.client.aio.consumer.chunks import ChunkAssembler
from heliograph.client.aio.consumer.decoders import ValueDecoders
from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.aio.consumer.inbox import Inbox, PermitTurns
from heliograph.client.aio.consumer.redelivery import RedeliverySchedule
from heliograph.client.aio.session import ClientSession
from heliograph.client.aio.transport.connection import BrokerConnection
from heliograph.client.options import ConsumerOptions
from heliograph.client.schemas.schema import Schema
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import MessageId, to_unsigned, words_of
from heliograph.protocol.topic_name import TopicName

READ_ACK_PAUSE_MS = 100  # a reader tells the broker its position at most this often

_T = pb.BaseCommand
log = logging.getLogger(__name__)
_Position = tuple[int, int]


class ConsumerPartitionState(enum.Enum):
    """Whether a partition's consumer is subscribed at the owner of the partition."""

    CONNECTING = "connecting"
    READY = "ready"
    SEEKING = "seeking"
    FAILED = "failed"
    CLOSED = "closed"


CONSUMER_PARTITION_LIFECYCLE = Lifecycle(
    {
        ConsumerPartitionState.CONNECTING: (
            "Acknowledgements are kept until the consumer is subscribed at the owner of the partition.",
            {ConsumerPartitionState.READY, ConsumerPartitionState.FAILED, ConsumerPartitionState.CLOSED},
        ),
        ConsumerPartitionState.READY: (
            "The broker delivers messages and takes acknowledgements.",
            {ConsumerPartitionState.CONNECTING, ConsumerPartitionState.SEEKING, ConsumerPartitionState.CLOSED},
        ),
        ConsumerPartitionState.SEEKING: (
            "The broker moves the cursor; deliveries are dropped until the consumer has subscribed again.",
            {ConsumerPartitionState.CONNECTING, ConsumerPartitionState.CLOSED},
        ),
        ConsumerPartitionState.FAILED: (
            "The broker refused the consumer for good; receiving fails with the reason.",
            {ConsumerPartitionState.CLOSED},
        ),
        ConsumerPartitionState.CLOSED: ("The consumer has left the topic.", ()),
    }
)
_READY = ConsumerPartitionState.READY  # looked up once: every delivery compares with it


class PartitionConsumer:
    """Delivers the entries of one partition into an inbox.

    It requests ``queue`` messages ahead, and more when half of them were taken. Every subscribing and every seek begins
    an epoch: deliveries of an earlier epoch are dropped, since the broker sends them again.

    Attributes:
        epoch: Number of the current epoch; it only grows.
        seeks: How often it has sought.
        decoders: Decoders of payloads, for a consumer with a schema.
        held_bytes: Payload bytes of the deliveries of this epoch that wait in the inbox.
        start, start_inclusive: For a reader, its start, and whether the message there is included.
        redelivery: When entries that were handed out are requested again.
        last_taken: For a reader, the last message that its caller received; after a reconnect it resumes after it.
        last_chunk: Position of the newest chunk, in this epoch, of a message that is not complete.
    """

    def __init__(
        self,
        session: ClientSession,
        topic: TopicName,
        options: ConsumerOptions,
        inbox: Inbox,
        *,
        queue: int,
        turns: PermitTurns | None = None,
        bytes_max: int,
        schema: Schema | None,
        on_failed: Callable[[PartitionConsumer, HeliographError], None],
        on_ack_timeout: Callable[[Sequence[MessageId]], None],
    ) -> None:
        self.topic_name: str = str(topic)
        self.partition = topic.partition
        self.epoch = self.seeks = 0
        self.held_bytes = 0
        self.last_taken: MessageId | None = None
        self.last_chunk: _Position | None = None
        self.topic = topic
        self.decoders = None if schema is None else ValueDecoders(session, topic, schema)
        self._schema = None if schema is None else schema.info
        self._on_failed = on_failed
        self._on_ack_timeout = on_ack_timeout
        self._session = session
        self.tenant, self.unpacked = topic.tenant, session.unpacked
        self._options = options
        self._inbox = inbox
        self._queue = queue
        self._turns = turns
        self._bytes_max = bytes_max
        self._id = session.next_id()
        self._state = ConsumerPartitionState.CONNECTING
        self._connection: BrokerConnection | None = None
        self._was_refused = False  # by the owner that was found last
        self._reconnecting: asyncio.Task[None] | None = None
        self._permits_due = 0
        self._read_ack_due = False
        self.start, self.start_inclusive = options.start, options.start_inclusive
        if self.start is not None and self.start_inclusive:
            self.start = self.start.begin
        self._skip: tuple[MessageId, bool] | None = (
            None  # where a seek or a reader starts, and whether with the message there
        )
        self._not_before_ms: int | None = None  # publish time at which a reader starts after a seek by time
        self._broker_epoch = 0
        self._dropped_chunks: set[_Position] = set()  # of those that wait in ``redelivery``; no caller had them
        self.redelivery = RedeliverySchedule(options, session.loop, self._redeliver_due, self._tell_timeout)
        self._chunks = ChunkAssembler(
            options, session.loop, self._chunks_again, self._chunks_expired, self._may_receive
        )
        self._asked_stats: asyncio.Future[pb.CommandConsumerStatsResponse] | None = None  # whether it is blocked
        self.acks = AckSender(
            self._id,
            session.options.operation_timeout_ms,
            session.backoff().pause,
            may_be_divided=options.is_shared,
        )

    @property
    def is_closed(self) -> bool:
        """Return whether the consumer has left the topic."""
        return self._state is ConsumerPartitionState.CLOSED

    async def open(self) -> None:
        """Subscribe at the owner of the partition.

        Raises:
            ConsumerBusyError: The subscription is exclusive and has a consumer.
            TopicNotFoundError, NotPermittedError, ...: The broker refused the consumer.
            ConnectionLostError, RequestTimeoutError: No broker could be reached within the operation timeout.
        """
        within_ms = self._session.options.operation_timeout_ms
        await self._session.retry(lambda: self._subscribe(within_ms))

    # -- called by the inbox and the handle

    def on_delivery_taken(self, delivery: ReceivedEntry) -> None:
        """Grant the permits of a delivery again when the caller takes its first message."""
        self.held_bytes -= delivery.size
        self._grant(delivery.permits)

    def on_read(self, message_id: MessageId) -> None:
        """Note the last message that a reader's caller received, and tell the broker so from time to time."""
        previous, self.last_taken = self.last_taken, message_id
        if previous is not None and previous.entry_id != message_id.entry_id and not self._read_ack_due:
            self._read_ack_due = True
            self._session.loop.call_later(READ_ACK_PAUSE_MS / 1000, self._acknowledge_read, self.epoch)

    async def seek(self, target: MessageId | int, *, inclusive: bool) -> None:
        """Move the subscription to a message id or a publish time in ms; raises as ``AsyncConsumer.seek``."""
        await self._session.retry(lambda: self._seek(target, inclusive=inclusive))

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """Return the id of the last message (entry -1 for none) and the subscription's mark-delete position."""
        answer = await self._session.retry(self._ask_last_message_id)
        mark = None
        if answer.HasField("consumer_mark_delete_position"):
            mark = MessageId.from_data(answer.consumer_mark_delete_position, self.topic_name)
        return MessageId.from_data(answer.last_message_id, self.topic_name), mark

    async def unsubscribe(self) -> None:
        """Delete the subscription, unless an earlier call did."""
        if self._state is ConsumerPartitionState.CLOSED:
            return
        await self._session.retry(
            lambda: self._ready_connection().request(lambda request_id: commands.unsubscribe(self._id, request_id))
        )
        self._leave()

    async def close(self) -> None:
        """Send the acknowledgements that are left and leave the topic; its other messages go to other consumers."""
        if self._state is ConsumerPartitionState.CLOSED:
            return
        if self._state is _READY:
            await self.acks.drain()
        connection = self._leave()
        if connection is not None:
            try:
                await connection.request(lambda request_id: commands.close(self._id, request_id))
            except HeliographError as error:
                log.debug("closing the consumer of %s: %s", self.topic_name, error)

    # -- called by the connection

    def on_message(self, message: pb.CommandMessage, section: memoryview) -> None:
        if self._state is not _READY:
            return  # sent before a seek; the broker sends it again
        try:
            delivery = ReceivedEntry(self, message, section)
        except HeliographError as error:
            if self._connection is not None:
                self._connection.abort(error)  # damaged on the way: the broker sends it again
            return
        if (turns := self._turns_in_use) is not None:
            turns.answered(self)
        if self._chunks.is_waiting:
            self._chunks.received(delivery)
        self.redelivery.leave_out_held(delivery)
        stale = message.HasField("consumer_epoch") and message.consumer_epoch < self._broker_epoch
        if stale or self._is_skipped(delivery) or not delivery.unacknowledged:
            self._grant(delivery.permits)
        elif delivery.metadata.num_chunks_from_msg > 1 and not self._chunks.complete(delivery):
            self.last_chunk = delivery.position
            self._grant(delivery.permits)
        elif turns is not None and turns.is_full:
            chunks = dict.fromkeys(delivery.earlier_chunks, 0)
            self._redeliver({**chunks, delivery.position: delivery.unacknowledged}, is_unhandled=True)
        else:
            self.held_bytes += delivery.size
            self._inbox.put(delivery)
            if turns is not None:
                turns.end_surplus()

    def on_end_of_topic(self) -> None:
        self._inbox.end(self.topic_name)

    def on_active_change(self, is_active: bool) -> None:
        if not is_active:
            self._chunks.stop()  # the active consumer has them now

    def on_closed_by_broker(self) -> None:
        if self._state is ConsumerPartitionState.SEEKING:
            self._connection = None  # the broker does so for a seek: subscribe again when the seek is done
        elif self._state is _READY:
            self._reconnect()

    def on_connection_lost(self, error: HeliographError) -> None:
        if self._state is _READY:
            log.info("consumer of %s lost its connection: %s", self.topic_name, error)
            self._reconnect()
        elif self._state is ConsumerPartitionState.SEEKING:
            self._connection = None

    # -- permits

    @property
    def _turns_in_use(self) -> PermitTurns | None:
        """Return the turns by which partitions share permits, if the broker takes messages back."""
        connection = self._connection
        return self._turns if connection is not None and connection.takes_messages_back else None

    def ask(self, permits: int) -> None:
        """Ask for so many messages, whatever was asked for before."""
        if self._connection is not None:
            if not permits:
                self._chunks.renew()  # it may have been asked too briefly
            flow = pb.CommandFlow(consumer_id=self._id, message_permits=permits, takes_back=True)
            self._connection.send(pb.BaseCommand(type=_T.FLOW, flow=flow))

    def tell_in_hand(self, delivery: ReceivedEntry, *, is_alone: bool) -> asyncio.Future[Any] | None:
        """Tell the broker which one message callers of the client have, or that there is none such.

        Returns:
            A future that resolves when the broker knows the message: it answers another command that comes after.
        """
        connection = self._connection
        if connection is None or delivery.epoch != self.epoch:
            return None
        flow = pb.CommandFlow(consumer_id=self._id, message_permits=0)
        flow.in_hand.ledger_id = to_unsigned(delivery.ledger_id if is_alone else -1)
        flow.in_hand.entry_id = to_unsigned(delivery.entry_id)
        flow.in_hand.batch_index = delivery.in_hand.bit_length() - 1
        connection.send(pb.BaseCommand(type=_T.FLOW, flow=flow))
        if not is_alone:
            return None
        answer = connection.request(lambda request_id: commands.consumer_stats(self._id, request_id))
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        return answer

    def _grant(self, permits: int) -> None:
        if self._turns_in_use is not None:
            self._turns_in_use.next()
            return
        self._permits_due += permits
        if self._permits_due * 2 >= self._queue and self.held_bytes <= self._bytes_max:  # I15
            self._flow()

    @property
    def _can_receive(self) -> bool:
        """Whether the broker has permits to send an entry."""
        if (turns := self._turns_in_use) is not None:
            return turns.has_asked(self)
        return self._state is _READY and self._queue > self._permits_due + self._inbox.permits_of(self)

    def _flow(self) -> None:
        connection, permits = self._connection, self._permits_due
        if connection is not None and permits > 0 and self._state is _READY and self._turns_in_use is None:
            if self._chunks.is_waiting and not self._can_receive:
                self._chunks.renew()
            self._permits_due = 0
            flow = pb.CommandFlow(consumer_id=self._id, message_permits=permits)
            connection.send(pb.BaseCommand(type=_T.FLOW, flow=flow))

    # -- chunks

    def _may_receive(self) -> bool:
        """Return whether the broker may send chunks. The permits tell; of a shared subscription it is asked, too,
        whether it waits for acknowledgements."""
        connection, asked = self._connection, self._asked_stats
        if connection is None or not self._can_receive or (asked is not None and not asked.done()):
            return False
        if self._options.is_shared:
            self._asked_stats = connection.request(lambda request_id: commands.consumer_stats(self._id, request_id))
            self._asked_stats.add_done_callback(self._on_stats)
        return True

    def _on_stats(self, asked: asyncio.Future[pb.CommandConsumerStatsResponse]) -> None:
        if asked.cancelled() or asked.exception() is not None or _is_blocked(asked.result()):
            self._chunks.renew()

    def _chunks_again(self, entries: Iterable[_Position]) -> None:
        for position in entries:
            self._dropped_chunks.add(position)
            self.redelivery.nack(position)

    def _chunks_expired(self, entries: Iterable[_Position]) -> None:
        if self._options.durable and (positions := dict.fromkeys(entries, 0)):
            try:
                self.acks.individual(positions)
            except HeliographError as error:  # too many wait: the broker sends them again after a reconnect
                log.debug("chunks of %s cannot be acknowledged: %s", self.topic_name, error)

    # -- redelivery

    def _tell_timeout(self, positions: Sequence[_Position]) -> None:
        self._on_ack_timeout([MessageId(*each, self.partition, topic=self.topic_name) for each in positions])

    def _redeliver_due(self, entries: Mapping[_Position, int]) -> None:
        """Request messages whose pause is over. Chunks that were dropped for room were not refused."""
        dropped = entries.keys() & self._dropped_chunks
        self._dropped_chunks -= dropped
        if dropped and self._options.is_shared:
            self._redeliver(dict.fromkeys(dropped, 0), is_unhandled=True)
            entries = {position: bits for position, bits in entries.items() if position not in dropped}
        if entries:
            self._redeliver(entries)

    def _redeliver(self, entries: Mapping[_Position, int], *, is_unhandled: bool = False) -> None:
        """Request entries again: of each the messages whose bits are given, 0 for all that are delivered. If no caller
        had them (``is_unhandled``), that is no refusal."""
        connection = self._connection
        if connection is None or self._state is not _READY:
            return  # subscribing again brings everything unacknowledged
        command = pb.CommandRedeliverUnack(consumer_id=self._id)
        if is_unhandled:
            command.is_unhandled = True
        if self._options.is_shared:
            for (ledger_id, entry_id), bits in sorted(entries.items()):
                entry = command.message_ids.add(ledger_id=to_unsigned(ledger_id), entry_id=to_unsigned(entry_id))
                if bits:  # earlier brokers read no bits, and send all that is not acknowledged
                    entry.ack_set.extend(words_of(bits))
        else:
            # An ordered subscription goes back to its first unacknowledged message.
            self._broker_epoch += 1
            command.consumer_epoch = self._broker_epoch
            permits = self._permits_due + self._inbox.permits_of(self)
            self._start_epoch()
            self._permits_due = permits
        connection.send(pb.BaseCommand(type=_T.REDELIVER_UNACK, redeliver_unack=command))
        self._flow()

    def _start_epoch(self) -> None:
        """Begin an epoch: everything received and not taken yet is dropped."""
        self.epoch += 1
        self.last_chunk = None
        self.held_bytes = 0
        self._permits_due = 0
        self.redelivery.clear()
        self._dropped_chunks.clear()
        self._chunks.clear()
        self._inbox.purge()

    def _acknowledge_read(self, epoch: int) -> None:
        """Acknowledge a reader's messages, so that the broker may trim them; do not wait for an answer."""
        self._read_ack_due = False
        last, connection = self.last_taken, self._connection
        if last is not None and connection is not None and self._state is _READY and epoch == self.epoch:
            connection.send(commands.acknowledge_before(self._id, last))

    # -- subscribing

    def _move(self, to: ConsumerPartitionState) -> None:
        self._state = CONSUMER_PARTITION_LIFECYCLE.move(self._state, to)

    async def _subscribe(self, within_ms: int | None = None) -> None:
        """Try once to subscribe; on success send unconfirmed acknowledgements, then permits.

        Args:
            within_ms: how long to wait while other handles register; None: as long as it takes.
        """
        with await self._session.registering.turn(self.topic, within_ms):
            connection = await self._session.lookup.owner(self.topic, is_confirmed=self._was_refused)
            start, inclusive = self.start, self.start_inclusive
            if start is not None and self.last_taken is not None:
                start, inclusive = self.last_taken, False
            connection.consumers[self._id] = self
            try:
                await connection.request(
                    lambda request_id: commands.subscribe(
                        self.topic_name,
                        self._options,
                        self._id,
                        request_id,
                        self._broker_epoch,
                        start,
                        inclusive,
                        self._schema,
                    )
                )
            except BaseException as error:
                self._was_refused = True
                if connection.consumers.pop(self._id, None) is not None and not isinstance(error, HeliographError):
                    connection.request(
                        lambda request_id: commands.close(self._id, request_id)
                    )  # cancelled: the broker may have subscribed it
                raise
        if connection.closed or self._id not in connection.consumers:
            raise ConnectionLostError(f"the connection to the owner of {self.topic_name} ended")
        self._start_epoch()
        if start is not None:
            self._skip = (start, inclusive)
        self._connection = connection
        self._was_refused = False
        self._move(ConsumerPartitionState.READY)
        self.acks.attach(connection)
        self._permits_due = self._queue
        self._flow()
        if (turns := self._turns_in_use) is not None:
            turns.join(self)

    def _reconnect(self) -> None:
        self._move(ConsumerPartitionState.CONNECTING)
        self._connection = None
        if self._turns is not None:
            self._turns.leave(self)
        self.acks.detach()
        self.epoch += 1
        self.last_chunk = None
        self._skip = None
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = self._session.loop.create_task(self._reconnect_until_ready())

    async def _reconnect_until_ready(self) -> None:
        backoff = self._session.backoff()
        while self._state is ConsumerPartitionState.CONNECTING:
            try:
                await self._subscribe()
                return
            except HeliographError as error:
                # As a producer does: busy may mean itself, other bytes come from another program.
                if error.advice is Advice.STOP and not isinstance(error, (ConsumerBusyError, ProtocolError)):
                    log.warning("consumer of %s failed for good: %s", self.topic_name, error)
                    self._move(ConsumerPartitionState.FAILED)
                    self._on_failed(self, error)
                    self.acks.fail(error)
                    self._chunks.stop()
                    return
                log.debug("consumer of %s is not back yet: %s", self.topic_name, error)
            await asyncio.sleep(backoff.pause())

    def _is_skipped(self, delivery: ReceivedEntry) -> bool:
        """Remove messages before the start of a seek or reader; return whether nothing is left of the delivery."""
        delivered = delivery.unacknowledged
        if self._not_before_ms is not None:
            if delivery.published_ms < self._not_before_ms:
                return True
            self._not_before_ms = None
        if self._skip is not None:
            start, inclusive = self._skip
            position, first = (delivery.ledger_id, delivery.entry_id), (start.ledger_id, start.entry_id)
            if start == MessageId.LATEST or position > first:
                if not self._options.is_shared:
                    self._skip = None  # deliveries come in order: nothing before the start follows
            else:
                delivery.unacknowledged &= _bits_from(start, inclusive) if position == first else 0
        if (delivery.unacknowledged != delivered or not delivered) and self._options.durable:
            # Otherwise they would be delivered after each reconnect, or stay here while the rest goes to others.
            self.acks.individual({delivery.position: delivery.unacknowledged | delivery.others})
        return not delivery.unacknowledged

    # -- seeking, asking, leaving

    async def _seek(self, target: MessageId | int, *, inclusive: bool) -> None:
        """Have the broker disconnect this consumer and move the cursor; then subscribe again."""
        if isinstance(target, MessageId) and inclusive:
            target = target.begin
        await self.acks.drain()  # sent later they would acknowledge messages that are delivered again
        connection = self._ready_connection()
        self._move(ConsumerPartitionState.SEEKING)
        self.epoch += 1
        self.last_chunk = None
        self.acks.detach()
        try:
            await connection.request(lambda request_id: commands.seek(self._id, request_id, target))
        except BaseException:
            self._resubscribe(connection)
            raise
        self.seeks += 1
        self.acks.supersede()
        self._inbox.resume(self.topic_name)
        self.last_taken = None
        if isinstance(target, MessageId):
            start, not_before = target, None
        else:
            start, not_before = MessageId.EARLIEST, target
        if self.start is not None:
            self.start, self.start_inclusive = start, inclusive
            self._not_before_ms = not_before
        self._resubscribe(connection)
        if isinstance(target, MessageId):
            self._skip = (target, inclusive)

    def _resubscribe(self, connection: BrokerConnection) -> None:
        if self._state is not ConsumerPartitionState.SEEKING:
            return  # the consumer was closed meanwhile
        if connection.consumers.pop(self._id, None) is not None:
            # The broker did not disconnect it: only a new subscribing gets no delivery from before the seek.
            connection.request(lambda request_id: commands.close(self._id, request_id))
        self._reconnect()

    async def _ask_last_message_id(self) -> pb.CommandGetLastMessageIdResponse:
        answer: pb.CommandGetLastMessageIdResponse = await self._ready_connection().request(
            lambda request_id: commands.get_last_message_id(self._id, request_id)
        )
        return answer

    def _ready_connection(self) -> BrokerConnection:
        if self._state is ConsumerPartitionState.CLOSED:
            raise AlreadyClosedError("the consumer was closed")
        if self._inbox.failure is not None:
            raise self._inbox.failure
        if self._state is not _READY or self._connection is None:
            raise ConnectionLostError(f"the consumer of {self.topic_name} is reconnecting")
        return self._connection

    def _leave(self) -> BrokerConnection | None:
        """End this consumer; return its connection if the broker still has to hear of it."""
        connection, self._connection = self._connection, None
        if self._turns is not None:
            self._turns.leave(self)
        if self._state is not ConsumerPartitionState.CLOSED:
            self._move(ConsumerPartitionState.CLOSED)
        self.redelivery.clear()
        self._chunks.stop()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        self.acks.fail(AlreadyClosedError("the consumer was closed"))
        if connection is None or connection.consumers.pop(self._id, None) is None:
            return None
        return connection


def _is_blocked(stats: pb.CommandConsumerStatsResponse) -> bool:
    return stats.HasField("error_code") or stats.blocked_consumer_on_unacked_msgs


def _bits_from(start: MessageId, inclusive: bool) -> int:
    """Return the bits of the messages of the entry of ``start`` that are not before ``start``."""
    if start.batch_index < 0:
        return -1 if inclusive else 0
    return -1 << (start.batch_index if inclusive else start.batch_index + 1)
