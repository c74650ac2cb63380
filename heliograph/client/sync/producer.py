"""The sync producer; ``make handles`` generates this file from ``heliograph/client/aio/producer/producer.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Generic

from typing_extensions import override

from heliograph.base.clock import Duration, Moment
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.options import ProducerOptions
from heliograph.client.sync.handle import TopicHandle
from heliograph.client.types import Sent
from heliograph.protocol.message_id import MessageId


class Producer(TopicHandle[AsyncProducer[Sent], ProducerOptions], Generic[Sent]):
    """A producer of one topic, partitioned or not.

    Threads may share it. In a forked child it opens connections of its own.

    Messages of one producer with the same key, and all messages to an unpartitioned topic, are stored in the order of
    their calls. A message whose id was returned is durable: an ack quorum of bookies has it on disk. After a lost
    connection the producer sends everything unconfirmed again, in order, with the same sequence ids. If the topic does
    not deduplicate, a message can then be stored twice, but is never lost. If it does, the id of a message that was
    stored before is not known: its ledger and entry are -1.

    Opening raises ProducerBusyError, ProducerFencedError, TopicNotFoundError, NotPermittedError,
    IncompatibleSchemaError, or ConnectionLostError and RequestTimeoutError when no broker could be reached in time.
    """

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.options.topic

    @property
    def name(self) -> str:
        """Return the name by which the broker knows this producer; empty before opening if none was given."""
        return self._async().name

    @property
    def last_sequence_id(self) -> int:
        """Return the highest confirmed sequence id over all partitions, -1 for none.

        After opening it is the last one that the topic holds of this producer's name, if the topic deduplicates.
        """
        return self._async().last_sequence_id

    def send(
        self,
        value: Sent | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: Moment | None = None,
        deliver_after: Duration | None = None,
        deliver_at: Moment | None = None,
    ) -> MessageId:
        """Publish one message and wait until it is durable.

        Args:
            value: A value of the producer's schema; without a schema, bytes, or text, which is sent as UTF-8. None
                is a null value, which deletes its key from the compacted topic.
            key: Messages with the same key stay in one partition and in order.
            properties: Names and values to attach.
            event_time_ms: The caller's own time of the message: an aware datetime, or ms since the epoch.
            deliver_after: Seconds, or a timedelta, before shared and key-shared subscriptions deliver the message.
            deliver_at: The same as a time, as ``event_time_ms`` takes it. A delayed message is never part of a batch.

        Returns:
            The id of the stored message.

        Raises:
            MessageTooLargeError: The message has more than 64 MiB; nothing was sent.
            RequestTimeoutError: Not confirmed within ``send_timeout_ms``; it may be stored nevertheless.
            StorageFullError: The same, because disks of bookies are full; names them.
            BadRequestError, TopicTerminatedError, ProducerFencedError, QuotaExceededError, AlreadyClosedError:
                Nothing was stored.
        """
        return self._run(
            self._async().send(
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
        value: Sent | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: Moment | None = None,
        deliver_after: Duration | None = None,
        deliver_at: Moment | None = None,
    ) -> Future[MessageId]:
        """Publish one message without waiting, and return the future of its id.

        Arguments and errors are those of ``send``; the future raises the errors. Calls of one thread keep their order.
        Nothing but the caller bounds the number of calls in flight.
        """
        return self._start(
            self._async().send(
                value,
                key=key,
                properties=properties,
                event_time_ms=event_time_ms,
                deliver_after=deliver_after,
                deliver_at=deliver_at,
            )
        )

    def send_many(
        self,
        values: Sequence[Sent | None],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times_ms: Sequence[Moment | None] | None = None,
        ordering_keys: Sequence[bytes | None] | None = None,
        deliver_times_ms: Sequence[Moment | None] | None = None,
    ) -> list[MessageId]:
        """Publish many messages and wait until all are durable.

        The list is cut into entries of at most ``batch_messages`` and ``batch_bytes``, which are sent without waiting
        for each other.

        Args:
            values: In order, what the schema of the producer takes; without a schema, bytes or text. None is a null
                value, which deletes its key from the compacted topic.
            keys: If given, one for each value. Keys of bytes are stored as stock producers do it, in base64.
            properties, event_times_ms, ordering_keys: If given, one item for each value.
            deliver_times_ms: The same; times as ``deliver_at`` has them. A message with one is an entry of its own.

        Returns:
            One id per value, in the order of ``values``.

        Raises:
            MessageTooLargeError, BadRequestError: A value is not acceptable; nothing was sent.
            RequestTimeoutError, TopicTerminatedError, ...: As ``send`` raises them. Any of the messages may be stored
                nevertheless: in each partition, the first ones of its share.
        """
        return self._run(
            self._async().send_many(
                values,
                keys=keys,
                properties=properties,
                event_times_ms=event_times_ms,
                ordering_keys=ordering_keys,
                deliver_times_ms=deliver_times_ms,
            )
        )

    def send_many_async(
        self,
        values: Sequence[Sent | None],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times_ms: Sequence[Moment | None] | None = None,
        ordering_keys: Sequence[bytes | None] | None = None,
        deliver_times_ms: Sequence[Moment | None] | None = None,
    ) -> Future[list[MessageId]]:
        """Publish many messages without waiting, and return the future of their ids.

        Arguments and errors are those of ``send_many``; the future raises the errors. Calls of one thread keep their
        order, once the producer is open. Nothing but the caller bounds the number of calls in flight.
        """
        return self._start(
            self._async().send_many(
                values,
                keys=keys,
                properties=properties,
                event_times_ms=event_times_ms,
                ordering_keys=ordering_keys,
                deliver_times_ms=deliver_times_ms,
            )
        )

    def flush(self) -> None:
        """Wait until all messages of the calls that began before this one are durable or failed.

        Calls that still wait, for the opening of the producer or for room in its window, count.
        The ids and errors reach the callers and the futures of ``send_async``.

        Raises:
            AlreadyClosedError: The producer was closed, which settled everything.
        """
        self._run(self._async().flush())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}, name={self.name!r})"

    @override
    def _make(self) -> AsyncProducer[Sent]:
        return AsyncProducer(self.client.aio(), self.options)
