"""The sync consumer; ``make handles`` generates this file from ``heliograph/client/aio/consumer/consumer.py``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Generic

from typing_extensions import override

from heliograph.base.clock import Duration, Moment
from heliograph.base.errors import AlreadyClosedError
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.sync.handle import ReceivingHandle
from heliograph.client.types import Received
from heliograph.protocol.message_id import MessageId


class Consumer(ReceivingHandle[AsyncConsumer[Received]], Generic[Received]):
    """A consumer of one or several topics, partitioned or not, under a subscription.

    Threads may share it. In a forked child it opens connections of its own.

    A message belongs to the subscription until it is acknowledged: when a consumer leaves, its unacknowledged messages
    go to the other consumers or to the next one. A consumer is alive as long as its connection is, however long the
    caller takes between two calls. After a lost connection it subscribes again, and messages that were not acknowledged
    are delivered again. An unpickled consumer subscribes where it is used first; on an exclusive subscription the
    original must be closed before.

    Opening raises ConsumerBusyError, TopicNotFoundError, NotPermittedError, IncompatibleSchemaError, or
    ConnectionLostError and RequestTimeoutError when no broker could be reached in time.
    """

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the full names of the topics, without partition suffixes; none for a consumer of a pattern."""
        return self.options.topics

    @property
    def subscription(self) -> str:
        """Return the name of the subscription."""
        return self.options.subscription

    def receive(self, timeout: Duration | None = None) -> Message[Received]:
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
        return self._run(self._async().receive(timeout))

    def receive_many(self, max_messages: int = 1000, timeout: Duration | None = None) -> list[Message[Received]]:
        """Return 1 to ``max_messages`` messages as soon as there are any; an empty list after ``timeout``.

        Args:
            max_messages: At least 1.
            timeout: Seconds, or a timedelta, to wait for the first message; None waits for ever.

        Raises:
            AlreadyClosedError, UnsupportedError, ...: As ``receive`` raises them, but never ReceiveTimeoutError.
        """
        return self._run(self._async().receive_many(max_messages, timeout))

    def ack(self, message: Message | MessageId) -> None:
        """Acknowledge one message. When the call returns, the acknowledgement is durable: it survives a crash.

        Raises:
            RequestTimeoutError: Not confirmed within the operation timeout; the message may be delivered again.
            AlreadyClosedError: The consumer was closed before the confirmation.
            BadRequestError: The message is of no topic of this consumer.
        """
        self.ack_many([message])

    def ack_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge many messages in few commands; durable when the call returns.

        Raises:
            RequestTimeoutError, AlreadyClosedError, BadRequestError: As ``ack`` raises them. A failed call may have
                acknowledged any of the messages.
        """
        self._run(self._async().ack_many(list(messages)))

    def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge a message and all messages of its partition before it; durable when the call returns.

        Raises:
            UnsupportedError: The subscription is shared or key-shared: its messages have no order.
            RequestTimeoutError, AlreadyClosedError, BadRequestError: As ``ack`` raises them.
        """
        self._run(self._async().ack_cumulative(message))

    def nack(self, message: Message | MessageId) -> None:
        """Acknowledge a message negatively: it is delivered again after ``nack_delay_ms``.

        On shared and key-shared subscriptions that one message is delivered again, after a pause that grows with
        ``nack_multiplier``. The others of its batch stay with their callers.
        Exclusive and failover subscriptions go back to their first unacknowledged message, to keep
        the order. A message that was delivered again ``max_redeliver`` times becomes a dead letter instead: when the
        call returns, it is stored in the dead letter topic and acknowledged.
        """
        self._run(self._async().nack(message))

    def reconsume_later(
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
            RequestTimeoutError, ...: As ``Producer.send`` and ``ack`` raise them. The message was not
                acknowledged, and may be in the retry topic nevertheless.
        """
        self._run(self._async().reconsume_later(message, delay, properties=properties))

    def seek(self, target: MessageId | str | Moment, *, inclusive: bool = False) -> None:
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
        self._run(self._async().seek(target, inclusive=inclusive))

    @property
    def has_reached_end(self) -> bool:
        """Return whether every topic was terminated and delivered to its end.

        A durable subscription has reached the end when it has acknowledged all messages.
        """
        return self._async().has_reached_end

    def last_message_ids(self) -> dict[str, MessageId]:
        """Return the id of the last message of each topic or partition that has one, by full name."""
        return self._run(self._async().last_message_ids())

    def unsubscribe(self) -> None:
        """Delete the subscription with its cursor, and close this consumer.

        Raises:
            ConflictError: The subscription has other consumers.
        """
        self._run(self._async().unsubscribe())

    def __iter__(self) -> Iterator[Message[Received]]:
        return self

    def __next__(self) -> Message[Received]:
        try:
            return self.receive()
        except AlreadyClosedError:
            raise StopIteration from None

    def __repr__(self) -> str:
        topics = self.options.pattern or ", ".join(self.topics)
        return f"{type(self).__name__}({topics}, {self.subscription!r}, {self.options.type})"

    @override
    def _make(self) -> AsyncConsumer[Received]:
        return AsyncConsumer(self.client.aio(), self.options)
