"""The sync reader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from heliograph.aio.reader import AsyncReader
from heliograph.errors import AlreadyClosedError
from heliograph.handle import Handle
from heliograph.message import Message
from heliograph.options import ConsumerOptions
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client import Client


class Reader(Handle[AsyncReader]):
    """Reads a topic without a subscription; see ``AsyncReader``. Thread-safe and picklable.

    A pickled reader starts where it was made to start, not where the original stands.
    """

    def __init__(self, client: Client, options: ConsumerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return self.options.topics[0]

    def receive(self, timeout: float | None = None) -> Message:
        """The next message, waiting up to ``timeout`` seconds; see ``AsyncConsumer.receive``."""
        return self._run(lambda it: it.receive(timeout))

    def receive_many(self, max_messages: int = 1000, timeout: float | None = None) -> list[Message]:
        """What there is, as soon as there is anything; see ``AsyncConsumer.receive_many``."""
        return self._run(lambda it: it.receive_many(max_messages, timeout))

    def has_message_available(self) -> bool:
        """Whether ``receive`` would find a message that is in the topic now."""
        return self._run(lambda it: it.has_message_available())

    def seek(self, target: MessageId | str | int, *, inclusive: bool = False) -> None:
        """Moves the reader; see ``AsyncConsumer.seek``."""
        self._run(lambda it: it.seek(target, inclusive=inclusive))

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except AlreadyClosedError:
            raise StopIteration from None

    def _make(self) -> AsyncReader:
        return AsyncReader(self.client.aio(), self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, (self.client, self.options)

    def __repr__(self) -> str:
        return f"Reader({self.topic})"
