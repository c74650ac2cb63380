"""The sync consumer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from heliograph.aio.consumer import AsyncConsumer
from heliograph.errors import AlreadyClosedError
from heliograph.handle import Handle
from heliograph.message import Message
from heliograph.options import ConsumerOptions
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client import Client


class Consumer(Handle[AsyncConsumer]):
    """Takes messages under a subscription; see ``AsyncConsumer`` for what it promises. Thread-safe and picklable.

    A pickled consumer subscribes where it lands, so on an exclusive subscription the original must be closed before.
    """

    def __init__(self, client: Client, options: ConsumerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options

    @property
    def topics(self) -> tuple[str, ...]:
        """Full names of the topics, without partition suffixes."""
        return self.options.topics

    @property
    def subscription(self) -> str:
        """Name of the subscription."""
        return self.options.subscription

    def receive(self, timeout: float | None = None) -> Message:
        """The next message, waiting up to ``timeout`` seconds; see ``AsyncConsumer.receive``."""
        return self._run(lambda it: it.receive(timeout))

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> list[Message]:
        """What there is, as soon as there is anything; see ``AsyncConsumer.receive_many``."""
        return self._run(lambda it: it.receive_many(max_messages, timeout))

    def ack(self, message: Message | MessageId) -> None:
        """Acknowledges one message; durable when this returns. See ``AsyncConsumer.ack``."""
        self._run(lambda it: it.ack(message))

    def ack_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledges many messages; durable when this returns. See ``AsyncConsumer.ack_many``."""
        listed = list(messages)  # not on the loop thread: the iterable may block
        self._run(lambda it: it.ack_many(listed))

    def ack_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledges a message and all before it; see ``AsyncConsumer.ack_cumulative``."""
        self._run(lambda it: it.ack_cumulative(message))

    def nack(self, message: Message | MessageId) -> None:
        """Gives a message back; see ``AsyncConsumer.nack``."""
        self._run(lambda it: it.nack(message))

    def seek(self, target: MessageId | str | int, *, inclusive: bool = False) -> None:
        """Moves the subscription; see ``AsyncConsumer.seek``."""
        self._run(lambda it: it.seek(target, inclusive=inclusive))

    @property
    def has_reached_end(self) -> bool:
        """See ``AsyncConsumer.has_reached_end``."""
        return self._async().has_reached_end

    def last_message_ids(self) -> dict[str, MessageId]:
        """See ``AsyncConsumer.last_message_ids``."""
        return self._run(lambda it: it.last_message_ids())

    def unsubscribe(self) -> None:
        """Deletes the subscription and closes this consumer; see ``AsyncConsumer.unsubscribe``."""
        self._run(lambda it: it.unsubscribe())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except AlreadyClosedError:
            raise StopIteration from None

    def _make(self) -> AsyncConsumer:
        return AsyncConsumer(self.client.aio(), self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.client, self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.topics)}, {self.subscription!r}, {self.options.type})"
