"""The asyncio consumer: it receives messages and acknowledges them."""

from __future__ import annotations

import asyncio
import logging
from asyncio import get_running_loop
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic

from heliograph.base.clock import Duration, Moment, seconds_of
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    HeliographError,
    ReceiveTimeoutError,
    UnsupportedError,
)
from heliograph.client.aio.consumer.commands import seek_target
from heliograph.client.aio.consumer.inbox import Inbox
from heliograph.client.aio.consumer.interceptors import ConsumerInterceptors
from heliograph.client.aio.consumer.letters import LetterTopics
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.consumer.partition import PartitionConsumer
from heliograph.client.aio.consumer.parts import SubscribedParts
from heliograph.client.aio.handle import AsyncHandle, HandleState
from heliograph.client.aio.in_hand import TOLD_SECONDS, InHand
from heliograph.client.options import ConsumerOptions
from heliograph.client.schemas.choice import schema_of
from heliograph.client.types import Received
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.delivery import ReceivedEntry
    from heliograph.client.aio.session import HandleOwner

_OPEN = HandleState.OPEN  # looked up once: every receive compares with it
LETTERS_IN_FLIGHT_MAX = 1000  # dead letters being published; receiving waits for one of them # I15

log = logging.getLogger(__name__)
_Position = tuple[int, int]
_Entries = dict[_Position, int]  # by position, the bits of the messages that stay unacknowledged


class AsyncConsumer(AsyncHandle, Generic[Received]):
    """A consumer of one or several topics, partitioned or not, under a subscription.

    A message belongs to the subscription until it is acknowledged: when a consumer leaves, its unacknowledged messages
    go to the other consumers or to the next one. A consumer is alive as long as its connection is, however long the
    caller takes between two calls. After a lost connection it subscribes again, and messages that were not acknowledged
    are delivered again. An unpickled consumer subscribes where it is used first; on an exclusive subscription the
    original must be closed before.

    Opening raises ConsumerBusyError, TopicNotFoundError, NotPermittedError, IncompatibleSchemaError, or
    ConnectionLostError and RequestTimeoutError when no broker could be reached in time.
    """

    def __init__(self, client: HandleOwner, options: ConsumerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        self._inbox = Inbox(sources=1)
        self._parts: dict[str, PartitionConsumer] = {}
        self._subscribed: SubscribedParts | None = None
        self._schema = schema_of(options.schema)
        self._interceptors = ConsumerInterceptors(options.interceptors)
        self._letters = LetterTopics(client, options)
        self._in_hand: InHand  # of the client, once it is open
        self._burials: set[asyncio.Task[None]] = set()
        self._returned: deque[Message[Received]] = deque()  # were handed out to callers that did not get them

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the full names of the topics, without partition suffixes; none for a consumer of a pattern."""
        return self.options.topics

    @property
    def subscription(self) -> str:
        """Return the name of the subscription."""
        return self.options.subscription

    async def receive(self, timeout: Duration | None = None) -> Message[Received]:
        """Return the next message.

        Args:
            timeout: Seconds to wait, or a timedelta; None waits for ever.

        Raises:
            ReceiveTimeoutError: No message came in time (it is a TimeoutError too).
            AlreadyClosedError: The consumer was closed.
            UnsupportedError, ChecksumError: The next entry cannot be unpacked; it is skipped, not acknowledged.
            TopicTerminatedError: All topics were terminated, and every message in them was received.
            HeliographError: Why subscribing again failed for good.
        """
        messages = await self._receive(1, timeout)
        if not messages:
            raise ReceiveTimeoutError(f"no message within {seconds_of(timeout, 'timeout')} s", field="timeout")
        return messages[0]

    async def receive_many(self, max_messages: int = 1000, timeout: Duration | None = None) -> list[Message[Received]]:
        """Return 1 to ``max_messages`` messages as soon as there are any; an empty list after ``timeout``.

        Args:
            max_messages: At least 1.
            timeout: Seconds, or a timedelta, to wait for the first message; None waits for ever.

        Raises:
            AlreadyClosedError, UnsupportedError, ...: As ``receive`` raises them, but never ReceiveTimeoutError.
        """
        if type(max_messages) is not int or max_messages < 1:
            raise BadRequestError(f"max_messages is {max_messages!r}, not a number from 1", field="max_messages")
        return await self._receive(max_messages, timeout)

    async def ack(self, message: Message | MessageId) -> None:
        """Acknowledge one message. When the call returns, the acknowledgement is durable: it survives a crash.

        Raises:
            RequestTimeoutError: Not confirmed within the operation timeout; the message may be delivered again.
            AlreadyClosedError: The consumer was closed before the confirmation.
            BadRequestError: The message is of no topic of this consumer.
        """
        await self.ack_many([message])

    async def ack_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge many messages in few commands; durable when the call returns.

        Raises:
            RequestTimeoutError, AlreadyClosedError, BadRequestError: As ``ack`` raises them. A failed call may have
                acknowledged any of the messages.
        """
        await self.open()
        await self._ack(messages)

    async def _ack(self, messages: Iterable[Message | MessageId]) -> None:
        if not self._interceptors:
            await self._acknowledge(messages)
            return
        messages = list(messages)
        found = [_id_of(message) for message in messages]
        try:
            await self._acknowledge(messages)
        except HeliographError as error:
            self._interceptors.acknowledged(found, error)
            raise
        self._interceptors.acknowledged(found, None)

    async def _acknowledge(self, messages: Iterable[Message | MessageId]) -> None:
        by_part: dict[PartitionConsumer, _Entries] = {}
        for message in messages:
            part = self._part_of(message)
            if _is_left_behind(message):
                continue
            entries = by_part.get(part)
            if entries is None:
                entries = by_part[part] = {}
            delivery = _acknowledge(message, entries)
            if isinstance(message, MessageId):
                position = (message.ledger_id, message.entry_id)
                delivery = part.redelivery.acknowledged_by_id(position, message.batch_index)
            if delivery is not None and not delivery.unacknowledged & ~delivery.returned:
                part.redelivery.acknowledged(delivery)
        if self.options.max_crashes is not None:
            self._in_hand.changed()
        if not by_part:
            return
        waiters = [waiter for part, entries in by_part.items() for waiter in part.acks.individual(entries)]
        if len(waiters) == 1:
            await waiters[0]
        else:
            await asyncio.gather(*waiters)

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge a message and all messages of its partition before it; durable when the call returns.

        Raises:
            UnsupportedError: The subscription is shared or key-shared: its messages have no order.
            RequestTimeoutError, AlreadyClosedError, BadRequestError: As ``ack`` raises them.
        """
        await self.open()
        if self.options.is_shared:
            raise UnsupportedError(f"{self.options.type} subscriptions have no cumulative acknowledgement")
        last = _id_of(message)
        bits = 0
        if last.batch_index >= 0 and last.batch_size > 0:
            bits = (1 << last.batch_size) - (1 << (last.batch_index + 1))
        part = self._part_of(message)
        if _is_left_behind(message):
            return
        part.redelivery.acknowledged_up_to((last.ledger_id, last.entry_id - (bits != 0)))
        confirmed = part.acks.cumulative((last.ledger_id, last.entry_id), bits)
        if not self._interceptors:
            await confirmed
            return
        try:
            await confirmed
        except HeliographError as error:
            self._interceptors.acknowledged_cumulatively(last, error)
            raise
        self._interceptors.acknowledged_cumulatively(last, None)

    async def nack(self, message: Message | MessageId) -> None:
        """Acknowledge a message negatively: it is delivered again after ``nack_delay_ms``.

        On shared and key-shared subscriptions that one message is delivered again, after a pause that grows with
        ``nack_multiplier``. The others of its batch stay with their callers.
        Exclusive and failover subscriptions go back to their first unacknowledged message, to keep
        the order. A message that was delivered again ``max_redeliver`` times becomes a dead letter instead: when the
        call returns, it is stored in the dead letter topic and acknowledged.
        """
        await self.open()
        part = self._part_of(message)
        is_last = isinstance(message, Message) and self._letters.is_last_delivery(message)
        if not is_last or not await self._bury(message):  # type: ignore[arg-type]  # ``is_last`` is of messages only
            self._nack(part, message)
        if self._interceptors:
            self._interceptors.negatively_acknowledged([_id_of(message)])

    async def reconsume_later(
        self, message: Message, delay: Duration = 0, *, properties: Mapping[str, str] | None = None
    ) -> None:
        """Publish a message to the retry topic, from which this subscription receives it later, and acknowledge it.

        Unlike ``nack``, it delays no other message, and works for any delay. Messages of the retry topic have the
        properties REAL_TOPIC, ORIGIN_MESSAGE_ID, RECONSUMETIMES and DELAY_TIME besides its own. After
        ``max_redeliver`` retries, if that is set, the message goes to the dead letter topic instead.

        Args:
            message: A message that this consumer received.
            delay: Seconds, or a timedelta, before it is delivered again.
            properties: Names and values to attach, besides those of the message.

        Raises:
            UnsupportedError: The consumer has no retry topic: it was made without ``retry=True``.
            RequestTimeoutError, ...: As ``AsyncProducer.send`` and ``ack`` raise them. The message was not
                acknowledged, and may be in the retry topic nevertheless.
        """
        await self.open()
        self._part_of(message)
        if not isinstance(message, Message):
            raise BadRequestError("reconsume_later takes a message, since its id has no payload", field="message")
        await self._letters.retry(message, seconds_of(delay, "delay"), properties)
        await self.ack_many([message])

    async def seek(self, target: MessageId | str | Moment, *, inclusive: bool = False) -> None:
        """Move the subscription; acknowledging a message that was received before has no effect any more.

        Args:
            target: The id of the message after which reading resumes; ``earliest`` or ``latest``; or a publish time at
                or after which reading resumes: an aware datetime, or an int in ms since the epoch. An id moves only the
                partition that it is of.
            inclusive: Resume with the message at ``target`` itself.

        Raises:
            InvalidMessageIdError: The target is none of these, such as a time in seconds; nothing was moved.
            ConnectionLostError, RequestTimeoutError: The broker could not be reached in time; the outcome is unknown.
        """
        destination = seek_target(target)
        await self.open()
        if destination in (MessageId.EARLIEST, MessageId.LATEST) or isinstance(destination, int):
            parts = list(self._parts.values())
        else:
            parts = [self._part_of(destination)]
        await asyncio.gather(*(part.seek(destination, inclusive=inclusive) for part in parts))

    @property
    def has_reached_end(self) -> bool:
        """Return whether every topic was terminated and delivered to its end.

        A durable subscription has reached the end when it has acknowledged all messages.
        """
        return self._inbox.has_ended

    async def last_message_ids(self) -> dict[str, MessageId]:
        """Return the id of the last message of each topic or partition that has one, by full name."""
        await self.open()
        parts = list(self._parts.values())
        answers = await asyncio.gather(*(part.last_message_id() for part in parts))
        return {part.topic_name: last for part, (last, _) in zip(parts, answers, strict=True) if last.entry_id >= 0}

    async def unsubscribe(self) -> None:
        """Delete the subscription with its cursor, and close this consumer.

        Raises:
            ConflictError: The subscription has other consumers.
        """
        await self.open()
        await asyncio.gather(*(part.unsubscribe() for part in self._parts.values()))
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message[Received]]:
        return self

    async def __anext__(self) -> Message[Received]:
        try:
            return await self.receive()
        except AlreadyClosedError:
            raise StopAsyncIteration from None

    # -- receiving

    async def _receive(self, limit: int, timeout: Duration | None) -> list[Message[Received]]:
        if self._state is not _OPEN or get_running_loop() is not self._loop:
            await self.open()
        inbox = self._inbox
        deadline: float | None = None
        while True:
            if len(self._burials) >= LETTERS_IN_FLIGHT_MAX:  # I15
                await asyncio.wait(list(self._burials), return_when=asyncio.FIRST_COMPLETED)
            if self._returned and (messages := self._taken_again(limit)):
                return messages
            at_once = limit
            if self.options.max_crashes is not None:
                if timeout is not None and deadline is None:
                    deadline = get_running_loop().time() + seconds_of(timeout, "timeout")
                at_once = self._at_once(limit)
                if not at_once:
                    if await self._or_pass_on(self._in_hand.wait(deadline)):
                        continue
                    return []
            messages = inbox.take(at_once)
            if messages and self.options.has_dead_letters:
                messages = self._without_dead(messages)
            if messages and self.options.max_crashes is not None:
                await self._note_in_hand(messages, deadline)
            if messages:
                return self._handed_out(messages)
            if timeout is not None and deadline is None:
                deadline = get_running_loop().time() + seconds_of(timeout, "timeout")
            if not await self._more(deadline):
                return []

    async def _more(self, deadline: float | None) -> bool:
        """Wait until there may be messages to take. Return False if the ``deadline`` (loop time) comes first."""
        packed = self._inbox.packed()
        if packed is not None:
            left = None if deadline is None else max(0.0, deadline - get_running_loop().time())
            return await self._or_pass_on(packed.unpack(left))
        if self._inbox.failure is not None:
            raise self._inbox.failure
        return await self._inbox.wait(deadline)

    def _at_once(self, limit: int) -> int:
        """Return how many of the next messages may go to a caller together; 0 while they have to wait for others."""
        found = self._inbox.never_lost(limit)
        if not found:
            return limit
        was_lost = found < 0
        if not self._in_hand.may_hand_out(was_lost=was_lost):
            return 0
        return 1 if was_lost else found

    async def _or_pass_on(self, wait: Awaitable[bool]) -> bool:
        """Return the result of ``wait``. If the caller then takes nothing, another caller is woken in its place."""
        goes_on = False
        try:
            goes_on = await wait
        finally:
            if not goes_on and self._inbox.has_messages():
                self._inbox.wake()
        return goes_on

    async def _note_in_hand(self, messages: Sequence[Message], deadline: float | None) -> None:
        """Note what callers get. Of a message that goes out alone the broker knows before the caller has it, unless
        that takes ``TOLD_SECONDS`` or until the ``deadline`` (loop time)."""
        for delivery in dict.fromkeys(message._delivery for message in messages):
            told = None if delivery is None else self._in_hand.hand_out(delivery, was_lost=delivery.crashes > 0)
            if told is not None:
                left = TOLD_SECONDS if deadline is None else deadline - get_running_loop().time()
                try:
                    await asyncio.wait((told,), timeout=max(0.0, min(left, TOLD_SECONDS)))
                except asyncio.CancelledError:
                    self._put_back(messages)
                    raise

    def _put_back(self, messages: Sequence[Message]) -> None:
        """Take back the messages of an interrupted receiving call; the next calls return them first.

        Messages that the broker delivers again in the meantime, or that a seek left behind, are dropped.
        """
        self._returned.extendleft(reversed(messages))
        self._inbox.wake()

    def _taken_again(self, limit: int) -> list[Message[Received]]:
        taken: list[Message[Received]] = []
        while self._returned and len(taken) < limit:
            message = self._returned.popleft()
            if _is_current(message):
                taken.append(message)
        if self._returned:
            self._inbox.wake()  # another waiting caller may take the rest
        return taken

    def _handed_out(self, messages: list[Message[Received]]) -> list[Message[Received]]:
        """Return messages as callers get them."""
        if self.options.ack_timeout_ms or self.options.max_crashes is not None:
            _note_deliveries(messages)
        if self.options.ack_timeout_ms:
            _begin_ack_timeouts(messages)
        if self._interceptors:
            return [self._interceptors.before_consume(message) for message in messages]
        return messages

    def _without_dead(self, messages: list[Message]) -> list[Message[Received]]:
        """Return the messages that callers may receive; begin to publish the others as dead letters."""
        for message in messages:
            if self._letters.is_dead(message):
                task = asyncio.get_running_loop().create_task(self._bury_or_keep(message))
                self._burials.add(task)
                task.add_done_callback(self._burials.discard)
        return [message for message in messages if not self._letters.is_dead(message)]

    async def _bury_or_keep(self, message: Message) -> None:
        if not await self._bury(message) and self._state is _OPEN:
            self._nack(self._part_of(message), message)

    async def _bury(self, message: Message) -> bool:
        """Publish a dead letter and acknowledge the message; return False if it must be delivered again."""
        if not await self._letters.bury(message):
            return False
        try:
            await self._ack([message])
        except HeliographError as error:  # it may become a dead letter once more
            log.warning("%s of %s is a dead letter, not acknowledged yet: %s", message.message_id, message.topic, error)
            return False
        return True

    # -- opening and closing

    def _subscribing(self) -> ConsumerOptions:
        """Return the options with which the partitions subscribe."""
        return self.options

    async def _do_open(self) -> None:
        session = await self.client.session()
        parts = SubscribedParts(
            session, self._subscribing(), self._schema, self._letters.retry_topics, self._interceptors.timed_out
        )
        await parts.open()
        self._subscribed, self._inbox, self._parts = parts, parts.inbox, parts.by_name
        self._in_hand = session.in_hand
        self.client.adopt(self)

    async def _do_close(self) -> None:
        """Send the acknowledgements that are left, then leave the topics."""
        if self._subscribed is not None:
            await self._subscribed.stop_watching()
        self._inbox.fail(AlreadyClosedError("the consumer was closed"))
        if self._burials:
            await asyncio.wait(list(self._burials))
        await self._letters.close()
        if self._subscribed is not None:
            await self._subscribed.close()
        self.client.release(self)

    # -- acknowledging

    def _nack(self, part: PartitionConsumer, message: Message | MessageId) -> None:
        found, delivery, count = _id_of(message), None, 0
        if isinstance(message, Message):
            delivery, count = message._delivery, message.redelivery_count
        bit = 1 << found.batch_index if found.batch_index >= 0 else 0
        if delivery is None:
            part.redelivery.nack((found.ledger_id, found.entry_id), bit, count)
            return
        if delivery.returned & (bit or 1):
            return  # it was requested again, and another delivery has it  # I22
        delivery.returned |= bit or 1
        if not delivery.unacknowledged & ~delivery.returned:
            part.redelivery.acknowledged(delivery)
        if self.options.max_crashes is not None:
            self._in_hand.changed()
        for position in (*delivery.earlier_chunks, delivery.position):
            part.redelivery.nack(position, bit, count, delivery)

    def _part_of(self, message: Message | MessageId) -> PartitionConsumer:
        if isinstance(message, Message) and message._delivery is not None:
            part = message._delivery.consumer
            if self._parts.get(part.topic_name) is part:
                return part
        message_id = _id_of(message)
        found = self._parts.get(message_id.topic)
        if found is not None:
            return found
        if len(self._parts) == 1 and not message_id.topic:
            return next(iter(self._parts.values()))
        matching = [part for part in self._parts.values() if part.partition == message_id.partition]
        if len(matching) != 1 or message_id.topic:
            raise BadRequestError(f"message id {message_id} belongs to no topic of this consumer", field="messageId")
        return matching[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.options)

    def __repr__(self) -> str:
        topics = self.options.pattern or ", ".join(self.topics)
        return f"{type(self).__name__}({topics}, {self.subscription!r}, {self.options.type})"


def _note_deliveries(messages: Sequence[Message[Any]]) -> None:
    for message in messages:
        if (delivery := message._delivery) is not None:
            delivery.consumer.redelivery.note(delivery)


def _begin_ack_timeouts(messages: Sequence[Message[Any]]) -> None:
    for message in messages:
        if (delivery := message._delivery) is not None:
            delivery.consumer.redelivery.handed_out(delivery)


def _is_current(message: Message) -> bool:
    """Return whether a message that was taken back is not delivered again: a reader resumes behind it."""
    delivery = message._delivery
    if delivery is None:
        return True
    if delivery.epoch == delivery.consumer.epoch:
        return not delivery.returned >> max(message.message_id.batch_index, 0) & 1
    return delivery.consumer.last_taken is not None  # of a reader that sought nothing since


def _is_left_behind(message: Message | MessageId) -> bool:
    """Return whether a seek came since a message was received: acknowledging it has no effect."""
    delivery = message._delivery if isinstance(message, Message) else None
    return delivery is not None and delivery.seeks != delivery.consumer.seeks


def _id_of(message: Message | MessageId) -> MessageId:
    found = message.message_id if isinstance(message, Message) else message
    if not isinstance(found, MessageId):
        raise BadRequestError(f"{found!r:.80} is no message and no message id", field="messageId")
    return found


def _acknowledge(message: Message | MessageId, entries: _Entries) -> ReceivedEntry | None:
    """Write into ``entries`` which messages of the entry stay unacknowledged when ``message`` is acknowledged.

    Return the delivery that it came in, if that is known.
    """
    if isinstance(message, Message):
        message_id, delivery = message.message_id, message._delivery
    else:
        message_id, delivery = message, None
    position = (message_id.ledger_id, message_id.entry_id)
    if delivery is not None:
        delivery.unacknowledged &= ~(1 << message_id.batch_index) if message_id.batch_index >= 0 else 0
        left = delivery.unacknowledged | delivery.others
        entries[position] = entries.get(position, left) & left  # parts of an entry come in several deliveries
        for earlier in delivery.earlier_chunks:
            entries[earlier] = 0
    elif message_id.batch_index < 0:
        entries[position] = 0
    else:
        if message_id.batch_size <= message_id.batch_index:
            raise BadRequestError(f"message id {message_id} lacks the size of its batch", field="messageId")
        all_messages = (1 << message_id.batch_size) - 1
        entries[position] = entries.get(position, all_messages) & ~(1 << message_id.batch_index)
    return delivery
