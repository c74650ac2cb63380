"""The asyncio consumer: messages out, acknowledgements in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heliograph.aio.growth import GrowthWatch
from heliograph.aio.handle import AsyncHandle
from heliograph.aio.inbox import Inbox
from heliograph.aio.opening import open_all
from heliograph.aio.partition_consumer import PartitionConsumer
from heliograph.aio.session import Session
from heliograph.errors import AlreadyClosedError, BadRequestError, ReceiveTimeoutError, UnsupportedError
from heliograph.message import Message
from heliograph.options import ConsumerOptions
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.aio.client import AsyncClient

_Entries = dict[tuple[int, int], int]


class AsyncConsumer(AsyncHandle):
    """Takes messages of one or several topics, partitioned or not, under a subscription.

    A message stays the subscription's until it is acknowledged; a consumer that goes away leaves its unacknowledged
    messages to the others, or to its next incarnation. It counts as alive while its connection is, however long the
    caller takes between two calls. After a lost connection it subscribes again by itself, and messages that were not
    acknowledged come again.

    Opening raises ConsumerBusyError, TopicNotFoundError, NotPermittedError, or ConnectionLostError and
    RequestTimeoutError when no broker could be reached in time.
    """

    def __init__(self, client: AsyncClient, options: ConsumerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        self._inbox = Inbox(sources=1)
        self._parts: dict[str, PartitionConsumer] = {}
        self._growth: GrowthWatch | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """Full names of the topics, without partition suffixes."""
        return self.options.topics

    @property
    def subscription(self) -> str:
        """Name of the subscription."""
        return self.options.subscription

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            ReceiveTimeoutError: no message came in time (it is a TimeoutError too).
            AlreadyClosedError: the consumer was closed.
            UnsupportedError, ChecksumError: the next entry cannot be unpacked; it is skipped, not acknowledged.
            TopicTerminatedError: all topics ended and everything up to there was received.
            HeliographError: why subscribing again failed for good.
        """
        messages = await self._receive(1, timeout)
        if not messages:
            raise ReceiveTimeoutError(f"no message within {timeout} s", field="timeout")
        return messages[0]

    async def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> list[Message]:
        """What there is, as soon as there is anything: 1 to ``max_messages`` messages, or none after ``timeout``.

        Args:
            max_messages: at least 1.
            timeout: seconds to wait for the first message; None waits for ever.

        Raises:
            As ``receive``, but for the timeout.
        """
        if max_messages < 1:
            raise BadRequestError("max_messages must be at least 1", field="max_messages")
        return await self._receive(max_messages, timeout)

    async def ack(self, message: Message | MessageId) -> None:
        """Acknowledges one message. When this returns the acknowledgement is durable: it survives a crash.

        Raises:
            RequestTimeoutError: not confirmed within the operation timeout; the message may come again.
            AlreadyClosedError: the consumer was closed before the confirmation.
            BadRequestError: the message is of no topic of this consumer.
        """
        await self.ack_many([message])

    async def ack_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledges many messages in few commands; see ``ack``. A failed call may have acknowledged any of them."""
        self._check_open()
        by_part: dict[PartitionConsumer, _Entries] = {}
        for message in messages:
            part = self._part_of(message)
            entries = by_part.get(part)
            if entries is None:
                entries = by_part[part] = {}
            _acknowledge(message, entries)
        if not by_part:
            return
        waiters = [waiter for part, entries in by_part.items() for waiter in part.acks.individual(entries)]
        if len(waiters) == 1:
            await waiters[0]
        else:
            await asyncio.gather(*waiters)

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledges a message and all of its partition before it; durable when this returns.

        Raises:
            UnsupportedError: on shared subscriptions, where there is no "before".
            RequestTimeoutError, AlreadyClosedError, BadRequestError: as ``ack``.
        """
        self._check_open()
        if self.options.is_shared:
            raise UnsupportedError(f"{self.options.type} subscriptions have no cumulative acknowledgement")
        place = message.message_id if isinstance(message, Message) else message
        bits = 0
        if place.batch_index >= 0 and place.batch_size > 0:
            bits = (1 << place.batch_size) - (1 << (place.batch_index + 1))
        await self._part_of(message).acks.cumulative((place.ledger_id, place.entry_id), bits)

    async def nack(self, message: Message | MessageId) -> None:
        """Gives a message back, to be delivered again after ``nack_delay_ms``.

        On shared subscriptions this concerns the message's entry; exclusive and failover ones go back to their first
        unacknowledged message, so that the order holds.
        """
        self._check_open()
        place = message.message_id if isinstance(message, Message) else message
        part = self._part_of(message)
        part.nack((place.ledger_id, place.entry_id))
        if isinstance(message, Message) and message._delivery is not None:
            for position in message._delivery.earlier_chunks:
                part.nack(position)

    async def seek(self, target: MessageId | str | int, *, inclusive: bool = False) -> None:
        """Moves the subscription; messages received before and not acknowledged lose their claim.

        Args:
            target: a message id, behind which it goes on; ``earliest`` or ``latest``; or a publish time in ms since
                the epoch, at or after which it goes on. With several partitions an id moves its own one only.
            inclusive: go on with the message at ``target`` itself.

        Raises:
            InvalidMessageIdError: the target is none of these.
            ConnectionLostError, RequestTimeoutError: the broker could not be reached in time; the outcome is unknown.
        """
        await self.open()
        place = MessageId.parse(target) if isinstance(target, str) else target
        if place in (MessageId.EARLIEST, MessageId.LATEST) or isinstance(place, int):
            parts = list(self._parts.values())
        else:
            parts = [self._part_of(place)]
        await asyncio.gather(*(part.seek(place, inclusive=inclusive) for part in parts))

    @property
    def has_reached_end(self) -> bool:
        """Whether every topic was terminated and is read, and of a durable subscription acknowledged, to its end."""
        return self._inbox.has_ended

    async def last_message_ids(self) -> dict[str, MessageId]:
        """Id of the last message of each topic or partition that has one, by full name."""
        await self.open()
        parts = list(self._parts.values())
        answers = await asyncio.gather(*(part.last_message_id() for part in parts))
        return {part.topic_name: last for part, (last, _) in zip(parts, answers, strict=True) if last.entry_id >= 0}

    async def unsubscribe(self) -> None:
        """Deletes the subscription with its cursor, and closes this consumer.

        Raises:
            ConflictError: other consumers are on the subscription.
        """
        await self.open()
        await asyncio.gather(*(part.unsubscribe() for part in self._parts.values()))
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except AlreadyClosedError:
            raise StopAsyncIteration from None

    # ------------------------------------------------------------ inside

    async def _receive(self, limit: int, timeout: float | None) -> list[Message]:
        if not self._is_open or self._is_closed:
            await self.open()
        inbox = self._inbox
        deadline: float | None = None
        while True:
            messages = inbox.take(limit)
            if messages:
                return messages
            if inbox.failure is not None:
                raise inbox.failure
            if timeout is not None and deadline is None:
                deadline = asyncio.get_running_loop().time() + timeout
            if not await inbox.wait(deadline):
                return []

    def _subscribing(self) -> ConsumerOptions:
        """The options that the partitions subscribe with."""
        return self.options

    async def _do_open(self) -> None:
        options = self._subscribing()
        session = await self.client.session()
        counts = {}
        for topic in map(TopicName.parse, self.options.topics):
            counts[topic] = await session.partitions(topic)
        names = [name for topic, count in counts.items() for name in topic.partitions(count)]
        self._inbox = Inbox(sources=len(names))
        parts = self._new_parts(session, names, options, len(names))
        await open_all(parts)
        self._parts = {part.topic_name: part for part in parts}
        self._growth = GrowthWatch(session, counts, lambda names: self._grow(session, names))
        self._growth.start()
        self.client.adopt(self)

    def _new_parts(
        self, session: Session, names: Sequence[TopicName], options: ConsumerOptions, sharers: int
    ) -> list[PartitionConsumer]:
        queue = max(1, self.options.receiver_queue // sharers)
        bytes_max = max(1, self.options.receiver_bytes_max // sharers)
        return [
            PartitionConsumer(session, name, options, self._inbox, queue=queue, bytes_max=bytes_max) for name in names
        ]

    async def _grow(self, session: Session, names: Sequence[TopicName]) -> None:
        """Partitions were added: everything in them is new to this consumer."""
        options = replace(self._subscribing(), initial_position="earliest")
        if options.start is not None:
            options = replace(options, start=MessageId.EARLIEST)
        parts = self._new_parts(session, names, options, len(self._parts) + len(names))
        self._inbox.sources += len(names)
        self._parts |= {part.topic_name: part for part in parts}  # the first may deliver before the last is open
        try:
            await open_all(parts)
        except BaseException:
            self._inbox.sources -= len(names)
            for part in parts:
                del self._parts[part.topic_name]
            raise

    async def _do_close(self) -> None:
        """Sends what is left of acknowledgements, then leaves the topics."""
        if self._growth is not None:
            await self._growth.stop()
        self._inbox.fail(AlreadyClosedError("the consumer was closed"))
        await asyncio.gather(*(part.close() for part in self._parts.values()))
        self.client.release(self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise AlreadyClosedError("the consumer was closed")

    def _part_of(self, message: Message | MessageId) -> PartitionConsumer:
        if isinstance(message, Message) and message._delivery is not None:
            part = message._delivery.consumer
            if self._parts.get(part.topic_name) is part:
                return part
        place = message.message_id if isinstance(message, Message) else message
        if not isinstance(place, MessageId):
            raise BadRequestError(f"{place!r:.80} is no message and no message id", field="messageId")
        found = self._parts.get(place.topic)
        if found is not None:
            return found
        if len(self._parts) == 1 and not place.topic:
            return next(iter(self._parts.values()))
        matching = [part for part in self._parts.values() if part.partition == place.partition]
        if len(matching) != 1 or place.topic:
            raise BadRequestError(f"message id {place} belongs to no topic of this consumer", field="messageId")
        return matching[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.topics)}, {self.subscription!r}, {self.options.type})"


def _acknowledge(message: Message | MessageId, entries: _Entries) -> None:
    """Notes in ``entries`` what acknowledging ``message`` leaves unacknowledged of its entry."""
    if isinstance(message, Message):
        place, delivery = message.message_id, message._delivery
    else:
        place, delivery = message, None
    where = (place.ledger_id, place.entry_id)
    if delivery is not None:
        delivery.unacknowledged &= ~(1 << place.batch_index) if place.batch_index >= 0 else 0
        entries[where] = delivery.unacknowledged
        for position in delivery.earlier_chunks:
            entries[position] = 0
    elif place.batch_index < 0:
        entries[where] = 0
    else:
        if place.batch_size <= place.batch_index:
            raise BadRequestError(f"message id {place} lacks the size of its batch", field="messageId")
        whole = (1 << place.batch_size) - 1
        entries[where] = entries.get(where, whole) & ~(1 << place.batch_index)
