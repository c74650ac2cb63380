"""The sync reader; ``make handles`` generates this file from ``heliograph/client/aio/consumer/reader.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from typing_extensions import override

from heliograph.base.clock import Duration, Moment
from heliograph.base.errors import AlreadyClosedError, HeliographError
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.consumer.reader import AsyncReader
from heliograph.client.sync.handle import ReceivingHandle
from heliograph.client.types import Received
from heliograph.protocol.message_id import MessageId


class Reader(ReceivingHandle[AsyncReader[Received]], Generic[Received]):
    """A reader of one topic. It has no durable subscription: it acknowledges nothing, and nothing is kept for it.

    Threads may share it. In a forked child it opens connections of its own.

    After a lost connection it resumes after the last message that its caller received: no message is missed or
    repeated. An unpickled reader starts at its original start, not where the pickled one stood.

    Opening raises the errors of ``Consumer``.
    """

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.options.topics[0]

    @property
    def failure(self) -> HeliographError | None:
        """Return the error of every receive once no message is left; None while the reader goes on."""
        return self._async().failure

    def has_message_available(self) -> bool:
        """Return whether the topic holds a message after the last one received, without waiting for new ones.

        Raises:
            ConnectionLostError, RequestTimeoutError: The broker could not be reached in time.
        """
        return self._run(self._async().has_message_available())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic})"

    def receive(self, timeout: Duration | None = None) -> Message[Received]:
        """Return the next message.

        Args:
            timeout: Seconds to wait, or a timedelta; None waits for ever.

        Raises:
            ReceiveTimeoutError: No message came in time (it is a TimeoutError too).
            AlreadyClosedError: The reader was closed.
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

    def seek(self, target: MessageId | str | Moment, *, inclusive: bool = False) -> None:
        """Move the reader.

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

    def __iter__(self) -> Iterator[Message[Received]]:
        return self

    def __next__(self) -> Message[Received]:
        try:
            return self.receive()
        except AlreadyClosedError:
            raise StopIteration from None

    @override
    def _make(self) -> AsyncReader[Received]:
        return AsyncReader(self.client.aio(), self.options)
