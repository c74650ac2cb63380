"""A consumer of one topic or one partition: subscribing, permits, acknowledging, redelivery, seeking."""

from __future__ import annotations

import asyncio
import enum
import logging

from heliograph.aio import consumer_commands as commands
from heliograph.aio.ack_group import AckSender
from heliograph.aio.chunks import ChunkAssembler
from heliograph.aio.connection import Connection
from heliograph.aio.delivery import Delivery
from heliograph.aio.inbox import Inbox
from heliograph.aio.session import Session
from heliograph.errors import (
    Advice,
    AlreadyClosedError,
    ConnectionLostError,
    ConsumerBusyError,
    HeliographError,
)
from heliograph.options import ConsumerOptions
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import MessageId, to_unsigned
from heliograph.protocol.topic_name import TopicName

READ_ACK_PAUSE_MS = 100  # a reader tells the broker its place at most this often

_T = pb.BaseCommand
_log = logging.getLogger(__name__)
_Position = tuple[int, int]


class State(enum.Enum):
    CONNECTING = "connecting"
    READY = "ready"
    SEEKING = "seeking"
    CLOSED = "closed"


class PartitionConsumer:
    """Delivers entries of one topic into an inbox.

    It asks for ``queue`` messages ahead and for more once half of them were taken. Each subscribing is an epoch:
    deliveries of an earlier one are dropped, since the broker sends them again.

    Attributes:
        start, start_inclusive: of a reader, where it starts, and whether with the message there.
        last_taken: of a reader, the last message its caller got; after a reconnect it goes on behind it.
    """

    def __init__(
        self, session: Session, topic: TopicName, options: ConsumerOptions, inbox: Inbox, *, queue: int, bytes_max: int
    ) -> None:
        self.topic_name = str(topic)
        self.partition = topic.partition
        self.epoch = 0
        self.held_bytes = 0
        self.last_taken: MessageId | None = None
        self._topic = topic
        self._session = session
        self._options = options
        self._inbox = inbox
        self._queue = queue
        self._bytes_max = bytes_max
        self._id = session.next_id()
        self._state = State.CONNECTING
        self._connection: Connection | None = None
        self._reconnecting: asyncio.Task[None] | None = None
        self._permits_due = 0
        self._read_ack_due = False
        self.start, self.start_inclusive = options.start, options.start_inclusive
        self._skip: tuple[MessageId, bool] | None = None  # where a seek or a reader starts, and whether with it
        self._not_before_ms: int | None = None  # where a reader's seek by time starts
        self._broker_epoch = 0
        self._nacked: set[_Position] = set()
        self._nack_timer: asyncio.TimerHandle | None = None
        self._chunks = ChunkAssembler()
        self.acks = AckSender(self._id, session.options.operation_timeout_ms, session.backoff().pause)

    async def open(self) -> None:
        """Subscribes at the topic's owner.

        Raises:
            ConsumerBusyError: the subscription is exclusive and has its consumer.
            TopicNotFoundError, NotPermittedError, ...: what the broker answered.
            ConnectionLostError, RequestTimeoutError: no broker could be reached within the operation timeout.
        """
        await self._session.retry(self._subscribe)

    # ------------------------------------------------------------ told by the inbox and the handle

    def on_delivery_taken(self, delivery: Delivery) -> None:
        """The caller starts on this delivery: what it took of the permits is granted again."""
        self.held_bytes -= delivery.size
        self._grant(delivery.permits)

    def on_read(self, message_id: MessageId) -> None:
        """A reader's caller got this message."""
        previous, self.last_taken = self.last_taken, message_id
        if previous is not None and previous.entry_id != message_id.entry_id and not self._read_ack_due:
            self._read_ack_due = True
            self._session.loop.call_later(READ_ACK_PAUSE_MS / 1000, self._acknowledge_read, self.epoch)

    def nack(self, position: _Position) -> None:
        """Asks for an entry again, after the pause that the options want."""
        self._nacked.add(position)
        if self._nack_timer is None:
            pause = self._options.nack_delay_ms / 1000
            self._nack_timer = self._session.loop.call_later(pause, self._redeliver)

    async def seek(self, target: MessageId | int, *, inclusive: bool) -> None:
        """Moves the subscription to a message id or to a publish time in ms; see ``AsyncConsumer.seek``."""
        await self._session.retry(lambda: self._seek(target, inclusive=inclusive))

    async def last_message_id(self) -> tuple[MessageId, MessageId | None]:
        """Id of the topic's last message (entry -1: there is none) and the subscription's mark-delete position."""
        answer = await self._session.retry(self._ask_last_message_id)
        mark = None
        if answer.HasField("consumer_mark_delete_position"):
            mark = MessageId.from_data(answer.consumer_mark_delete_position, self.topic_name)
        return MessageId.from_data(answer.last_message_id, self.topic_name), mark

    async def unsubscribe(self) -> None:
        """Deletes the subscription, unless an earlier call did."""
        if self._state is State.CLOSED:
            return
        await self._session.retry(
            lambda: self._ready_connection().request(lambda request_id: commands.unsubscribe(self._id, request_id))
        )
        self._leave()

    async def close(self) -> None:
        """Sends what is left of acknowledgements and leaves the topic; its messages go to other consumers."""
        if self._state is State.CLOSED:
            return
        if self._state is State.READY:
            await self.acks.drain()
        connection = self._leave()
        if connection is not None:
            try:
                await connection.request(lambda request_id: commands.close(self._id, request_id))
            except HeliographError as error:
                _log.debug("closing the consumer of %s: %s", self.topic_name, error)

    # ------------------------------------------------------------ told by the connection

    def on_message(self, message: pb.CommandMessage, section: memoryview) -> None:
        if self._state is not State.READY:
            return  # of before a seek; it comes again
        try:
            entries.verify(section)
            delivery = Delivery(self, message, section)
        except HeliographError as error:
            if self._connection is not None:
                self._connection.abort(error)  # damaged on the way: the broker sends it again
            return
        stale = message.HasField("consumer_epoch") and message.consumer_epoch < self._broker_epoch
        is_chunk = delivery.metadata.num_chunks_from_msg > 1
        if stale or self._is_skipped(delivery) or (is_chunk and not self._chunks.complete(delivery)):
            self._grant(delivery.permits)
        else:
            self.held_bytes += delivery.size
            self._inbox.put(delivery)

    def on_end_of_topic(self) -> None:
        self._inbox.end(self.topic_name)

    def on_closed_by_broker(self) -> None:
        if self._state is State.SEEKING:
            self._connection = None  # part of seeking: subscribe again when that is done
        elif self._state is State.READY:
            self._reconnect()

    def on_connection_lost(self, error: HeliographError) -> None:
        if self._state is State.READY:
            _log.info("consumer of %s lost its connection: %s", self.topic_name, error)
            self._reconnect()
        elif self._state is State.SEEKING:
            self._connection = None

    # ------------------------------------------------------------ permits

    def _grant(self, permits: int) -> None:
        self._permits_due += permits
        if self._permits_due * 2 >= self._queue and self.held_bytes <= self._bytes_max:  # I15
            self._flow()

    def _flow(self) -> None:
        connection, permits = self._connection, self._permits_due
        if connection is not None and permits > 0 and self._state is State.READY:
            self._permits_due = 0
            flow = pb.CommandFlow(consumer_id=self._id, message_permits=permits)
            connection.send(pb.BaseCommand(type=_T.FLOW, flow=flow))

    # ------------------------------------------------------------ redelivery

    def _redeliver(self) -> None:
        self._nack_timer = None
        positions, self._nacked = sorted(self._nacked), set()
        connection = self._connection
        if connection is None or self._state is not State.READY or not positions:
            return  # after subscribing again everything unacknowledged comes anyway
        command = pb.CommandRedeliverUnack(consumer_id=self._id)
        if self._options.is_shared:
            for ledger_id, entry_id in positions:
                command.message_ids.add(ledger_id=to_unsigned(ledger_id), entry_id=to_unsigned(entry_id))
        else:
            # An ordered subscription goes back to its first unacknowledged message as a whole.
            self._broker_epoch += 1
            command.consumer_epoch = self._broker_epoch
            permits = self._permits_due + self._inbox.permits_of(self)
            self._start_epoch()
            self._permits_due = permits
        connection.send(pb.BaseCommand(type=_T.REDELIVER_UNACK, redeliver_unack=command))
        self._flow()

    def _start_epoch(self) -> None:
        """Everything received and not taken yet is void."""
        self.epoch += 1
        self.held_bytes = 0
        self._permits_due = 0
        self._nacked.clear()
        self._chunks.clear()
        self._inbox.purge()

    def _acknowledge_read(self, epoch: int) -> None:
        """Lets the broker forget what a reader is past. It waits for no answer: nothing durable hangs on it."""
        self._read_ack_due = False
        place, connection = self.last_taken, self._connection
        if place is not None and connection is not None and self._state is State.READY and epoch == self.epoch:
            connection.send(commands.acknowledge_before(self._id, place))

    # ------------------------------------------------------------ subscribing

    async def _subscribe(self) -> None:
        """One attempt to subscribe; on success unconfirmed acknowledgements go first, then fresh permits."""
        connection = await self._session.lookup.owner(self._topic)
        start, inclusive = self.start, self.start_inclusive
        if start is not None and self.last_taken is not None:
            start, inclusive = self.last_taken, False
        connection.consumers[self._id] = self
        try:
            await connection.request(
                lambda request_id: commands.subscribe(
                    self.topic_name, self._options, self._id, request_id, self._broker_epoch, start, inclusive
                )
            )
        except BaseException as error:
            if connection.consumers.pop(self._id, None) is not None and not isinstance(error, HeliographError):
                connection.request(lambda request_id: commands.close(self._id, request_id))  # cancelled half-way
            raise
        if connection.closed or self._id not in connection.consumers:
            raise ConnectionLostError(f"the connection to the owner of {self.topic_name} ended")
        self._start_epoch()
        if start is not None:
            self._skip = (start, inclusive)
        self._connection = connection
        self._state = State.READY
        self.acks.attach(connection)
        self._permits_due = self._queue
        self._flow()

    def _reconnect(self) -> None:
        self._state = State.CONNECTING
        self._connection = None
        self.acks.detach()
        self.epoch += 1
        self._skip = None
        if self._reconnecting is None or self._reconnecting.done():
            self._reconnecting = self._session.loop.create_task(self._reconnect_until_ready())

    async def _reconnect_until_ready(self) -> None:
        backoff = self._session.backoff()
        while self._state is State.CONNECTING:
            try:
                await self._subscribe()
                return
            except HeliographError as error:
                # the broker may take a while to notice that this consumer's old connection is dead
                if error.advice is Advice.STOP and not isinstance(error, ConsumerBusyError):
                    _log.warning("consumer of %s failed for good: %s", self.topic_name, error)
                    self._inbox.fail(error)
                    self.acks.fail(error)
                    return
                _log.debug("consumer of %s is not back yet: %s", self.topic_name, error)
            await asyncio.sleep(backoff.pause())

    def _is_skipped(self, delivery: Delivery) -> bool:
        """Takes messages before the place that a seek or reader starts at out of the first deliveries."""
        if self._not_before_ms is not None:
            if delivery.metadata.publish_time < self._not_before_ms:
                return True
            self._not_before_ms = None
        if self._skip is not None:
            start, inclusive = self._skip
            place, first = (delivery.ledger_id, delivery.entry_id), (start.ledger_id, start.entry_id)
            if start == MessageId.LATEST or place > first:
                if not self._options.is_shared:
                    self._skip = None  # deliveries come in order: nothing before the start follows
            else:
                delivery.unacknowledged &= _wanted(start, inclusive) if place == first else 0
        if not delivery.unacknowledged and self._options.durable:
            self.acks.individual({(delivery.ledger_id, delivery.entry_id): 0})  # or it would come after each reconnect
        return not delivery.unacknowledged

    # ------------------------------------------------------------ seeking, asking, leaving

    async def _seek(self, target: MessageId | int, *, inclusive: bool) -> None:
        """The broker ends the subscribing, moves the cursor and answers; then this consumer subscribes again."""
        await self.acks.drain()  # sent later they would count for what comes again
        connection = self._ready_connection()
        self._state = State.SEEKING
        self.epoch += 1
        self.acks.detach()
        try:
            await connection.request(lambda request_id: commands.seek(self._id, request_id, target))
        except BaseException:
            self._resubscribe(connection)
            raise
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

    def _resubscribe(self, connection: Connection) -> None:
        if self._state is not State.SEEKING:
            return  # closed meanwhile
        if connection.consumers.pop(self._id, None) is not None:
            # This broker kept the subscribing: only a new one has no deliveries of before on their way.
            connection.request(lambda request_id: commands.close(self._id, request_id))
        self._reconnect()

    async def _ask_last_message_id(self) -> pb.CommandGetLastMessageIdResponse:
        answer: pb.CommandGetLastMessageIdResponse = await self._ready_connection().request(
            lambda request_id: commands.get_last_message_id(self._id, request_id)
        )
        return answer

    def _ready_connection(self) -> Connection:
        if self._state is State.CLOSED:
            raise AlreadyClosedError("the consumer was closed")
        if self._inbox.failure is not None:
            raise self._inbox.failure
        if self._state is not State.READY or self._connection is None:
            raise ConnectionLostError(f"the consumer of {self.topic_name} is reconnecting")
        return self._connection

    def _leave(self) -> Connection | None:
        """Ends this consumer; returns its connection when the broker still has to be told."""
        connection, self._connection = self._connection, None
        self._state = State.CLOSED
        if self._nack_timer is not None:
            self._nack_timer.cancel()
        if self._reconnecting is not None:
            self._reconnecting.cancel()
        self.acks.fail(AlreadyClosedError("the consumer was closed"))
        if connection is None or connection.consumers.pop(self._id, None) is None:
            return None
        return connection


def _wanted(start: MessageId, inclusive: bool) -> int:
    """Bits of the messages of entry ``start`` that are not before a start there."""
    if start.batch_index < 0:
        return -1 if inclusive else 0
    return -1 << (start.batch_index if inclusive else start.batch_index + 1)
