"""The sync producer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from heliograph import loop_thread
from heliograph.aio.producer import AsyncProducer
from heliograph.handle import Handle
from heliograph.options import ProducerOptions
from heliograph.protocol.message_id import MessageId
from heliograph.types import Value

if TYPE_CHECKING:
    from heliograph.client import Client


class Producer(Handle[AsyncProducer]):
    """Publishes to one topic; see ``AsyncProducer`` for what it promises. Thread-safe and picklable.

    A pickled producer with a ``name`` of its own cannot be open in two places; without one, each place gets its name
    from the broker.
    """

    def __init__(self, client: Client, options: ProducerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return self.options.topic

    @property
    def name(self) -> str:
        """The name that the broker knows this producer by; empty before opening."""
        return self._async().name

    @property
    def last_sequence_id(self) -> int:
        """See ``AsyncProducer.last_sequence_id``."""
        return self._async().last_sequence_id

    def send(
        self,
        value: Value,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_after: float | None = None,
        deliver_at: int | None = None,
    ) -> MessageId:
        """Publishes one message and waits until it is durable; see ``AsyncProducer.send``."""
        return self._run(
            lambda it: it.send(
                value,
                key=key,
                properties=properties,
                event_time_ms=event_time_ms,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
            )
        )

    def send_async(
        self,
        value: Value,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_after: float | None = None,
        deliver_at: int | None = None,
    ) -> Future[MessageId]:
        """Publishes one message without waiting; arguments and errors as ``AsyncProducer.send``.

        Calls of one thread keep their order. Nothing bounds the calls in flight but the caller.
        """
        sending = self._async().send(
            value,
            key=key,
            properties=properties,
            event_time_ms=event_time_ms,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        )
        return loop_thread.current().start(sending)

    def send_many(
        self,
        values: Sequence[Value],
        *,
        keys: Sequence[str | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times_ms: Sequence[int | None] | None = None,
    ) -> list[MessageId]:
        """Publishes many messages and waits until all are durable; see ``AsyncProducer.send_many``."""
        return self._run(
            lambda it: it.send_many(values, keys=keys, properties=properties, event_times_ms=event_times_ms)
        )

    def flush(self) -> None:
        """Waits until everything accepted so far is durable or failed."""
        self._run(lambda it: it.flush())

    def _make(self) -> AsyncProducer:
        return AsyncProducer(self.client.aio(), self.options)

    def __reduce__(self) -> tuple[Any, ...]:
        return Producer, (self.client, self.options)

    def __repr__(self) -> str:
        return f"Producer({self.topic})"
