"""The asyncio producer: values in, message ids out."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from heliograph.aio.growth import GrowthWatch
from heliograph.aio.handle import AsyncHandle
from heliograph.aio.opening import open_all
from heliograph.aio.partition_producer import PartitionProducer
from heliograph.aio.send_window import SendWindow
from heliograph.aio.session import Session
from heliograph.errors import AlreadyClosedError, BadRequestError, MessageTooLargeError
from heliograph.options import ProducerOptions
from heliograph.protocol.batch import full_head, heads_of, keyed_head, plain_head
from heliograph.protocol.frame import FRAME_SLACK_BYTES
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from heliograph.routing import Router
from heliograph.types import Value

if TYPE_CHECKING:
    from heliograph.aio.client import AsyncClient

# Key, properties and event time of one message: they must fit what a frame has on top of its payload. # I15
HEAD_BYTES_MAX = 7 << 10
DELIVER_AFTER_SECONDS_MAX = 100 * 365 * 86_400

assert HEAD_BYTES_MAX < FRAME_SLACK_BYTES, "a message with the longest head fits its frame"

_Waiter = asyncio.Future[MessageId]


class AsyncProducer(AsyncHandle):
    """Publishes to one topic, partitioned or not.

    Messages of one producer with the same key, and all messages to an unpartitioned topic, are stored in the order of
    their calls. An id that was returned is durable: its message is on an ack quorum of disks. After a lost connection
    whatever is unconfirmed is sent again, in order, under the same sequence ids; without deduplication on the topic a
    message can then be stored twice, never lost. With it, the id of a message that was stored before is not known: its
    ledger and entry are -1.

    Opening raises ProducerBusyError, ProducerFencedError, TopicNotFoundError, NotPermittedError, or
    ConnectionLostError and RequestTimeoutError when no broker could be reached in time.
    """

    def __init__(self, client: AsyncClient, options: ProducerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        self._window = SendWindow(options.pending_messages_max, options.pending_bytes_max)
        self._parts: list[PartitionProducer] = []
        self._router = Router(1)
        self._growth: GrowthWatch | None = None

    @property
    def topic(self) -> str:
        """Full name of the topic."""
        return self.options.topic

    @property
    def name(self) -> str:
        """The name that the broker knows this producer by; empty before opening."""
        return self._parts[0].name if self._parts else self.options.name or ""

    @property
    def last_sequence_id(self) -> int:
        """The highest sequence id that is confirmed, of any partition; on opening, what the topic holds of this
        producer's name, where it deduplicates. -1 for none."""
        return max((part.last_sequence_id for part in self._parts), default=-1)

    @property
    def pending_messages(self) -> int:
        """Messages accepted and not confirmed yet."""
        return self._window.messages

    async def send(
        self,
        value: Value,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_after: float | None = None,
        deliver_at: int | None = None,
    ) -> MessageId:
        """Publishes one message and waits until it is durable.

        Args:
            value: the payload; text is sent as UTF-8.
            key: messages with the same key stay in one partition and in order.
            properties: names and values to attach.
            event_time_ms: the caller's time for it, in ms since the epoch.
            deliver_after: seconds that consumers of shared and key-shared subscriptions have to wait for it.
            deliver_at: the same as a time, in ms since the epoch. Such a message is never part of a batch.

        Returns:
            The id of the stored message.

        Raises:
            MessageTooLargeError: above the broker's limit; nothing was sent.
            RequestTimeoutError: not confirmed within ``send_timeout_ms``; it may be stored nevertheless.
            BadRequestError, TopicTerminatedError, ProducerFencedError, QuotaExceededError, AlreadyClosedError:
                nothing was stored.
        """
        waiter = await self.enqueue(
            value,
            key=key,
            properties=properties,
            event_time_ms=event_time_ms,
            deliver_after=deliver_after,
            deliver_at=deliver_at,
        )
        return await waiter

    async def enqueue(
        self,
        value: Value,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_after: float | None = None,
        deliver_at: int | None = None,
    ) -> _Waiter:
        """Accepts one message, and returns a future of its id; for keeping many on their way in a fixed order.

        It waits only while the producer has too much unconfirmed. Arguments and errors are those of ``send``, which
        the future raises as far as they come from the broker.
        """
        if not self._is_open or self._is_closed:
            await self.open()
        payload = value if type(value) is bytes else _to_bytes(value)
        self._check_payload_size(payload)
        due = 0 if deliver_after is None and deliver_at is None else _due_ms(deliver_after, deliver_at)
        if properties or event_time_ms is not None:
            head = _checked_head(len(payload), key, properties, event_time_ms)
        elif key is None:
            head = plain_head(len(payload))
        else:
            head = keyed_head(_checked_key(key), len(payload))
        _check_head_size(head)
        size = len(head) + len(payload)
        if not self._window.try_acquire(1, size):
            await self._wait_for_room(1, size)
        if due:
            return self._choose(key).add_delayed(head, payload, due)
        return self._choose(key).add(head, payload, key)

    async def send_many(
        self,
        values: Sequence[Value],
        *,
        keys: Sequence[str | None] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        event_times_ms: Sequence[int | None] | None = None,
    ) -> list[MessageId]:
        """Publishes many messages and waits until all are durable.

        The list is cut into entries of ``batch_messages`` and ``batch_bytes``, without an object per message on the
        way, and the entries are sent without waiting for each other.

        Args:
            values: the payloads, in order.
            keys, properties, event_times_ms: one for each value, where given.

        Returns:
            One id per value, in the order of ``values``.

        Raises:
            MessageTooLargeError, BadRequestError: a value is not acceptable; nothing was sent.
            RequestTimeoutError, TopicTerminatedError, ...: as ``send``; any of the messages may be stored
                nevertheless, of each partition a prefix.
        """
        if not self._is_open or self._is_closed:
            await self.open()
        payloads = [value if type(value) is bytes else _to_bytes(value) for value in values]
        _check_length(payloads, keys=keys, properties=properties, event_times_ms=event_times_ms)
        if not payloads:
            return []
        self._check_payload_size(max(payloads, key=len))
        heads = _heads_of(payloads, keys, properties, event_times_ms)
        _check_head_size(max(heads, key=len))
        shares = self._shares(len(payloads), keys)
        ids: list[MessageId | None] = [None] * len(payloads)
        waiting: list[tuple[_Waiter, Sequence[int]]] = []
        try:
            for part, positions, key in shares:
                await self._push_share(part, heads, payloads, positions, key, waiting)
        finally:
            failures = await _collect(waiting, ids)
        if failures:
            raise failures[0]
        return ids  # type: ignore[return-value]

    async def flush(self) -> None:
        """Waits until everything accepted so far is durable or failed; the futures of ``enqueue`` tell which."""
        await asyncio.gather(*(part.drain() for part in self._parts))

    # ------------------------------------------------------------ inside

    async def _do_open(self) -> None:
        session = await self.client.session()
        topic = TopicName.parse(self.options.topic)
        count = await session.partitions(topic)
        parts = self._parts = await self._open_parts(session, topic.partitions(count))
        self._router = Router(len(parts), self.options.hashing, session.random.randrange(len(parts)))
        self._growth = GrowthWatch(session, {topic: count}, lambda names: self._grow(session, names))
        self._growth.start()
        self.client.adopt(self)

    async def _open_parts(self, session: Session, names: Sequence[TopicName]) -> list[PartitionProducer]:
        parts = [PartitionProducer(session, name, self.options, self._window) for name in names]
        await open_all(parts)
        return parts

    async def _grow(self, session: Session, names: Sequence[TopicName]) -> None:
        """Partitions were added: they take their turns, and their share of the keys, from now on."""
        self._parts = [*self._parts, *await self._open_parts(session, names)]
        self._router.partitions = len(self._parts)

    async def _do_close(self) -> None:
        """Sends what is left, waits for its confirmation, then leaves the topic."""
        if self._growth is not None:
            await self._growth.stop()
        await asyncio.gather(*(part.close() for part in self._parts))
        self.client.release(self)

    def _choose(self, key: str | None) -> PartitionProducer:
        router = self._router
        if key is not None:
            return self._parts[router.of_key(key)]
        if self._parts[router.current].batch is None:  # a turn lasts as long as a batch
            router.advance()
        return self._parts[router.current]

    def _shares(
        self, count: int, keys: Sequence[str | None] | None
    ) -> list[tuple[PartitionProducer, Sequence[int], str | None]]:
        """Which partition gets which positions, and under which key where batches hold one key each."""
        if keys is None:
            return [(self._parts[self._router.advance()], range(count), None)]
        shares: list[tuple[PartitionProducer, Sequence[int], str | None]] = []
        for partition, positions in self._router.split(keys).items():
            part = self._parts[partition]
            if not self.options.batch_by_key:
                shares.append((part, range(count) if len(positions) == count else positions, None))
                continue
            by_key: dict[str | None, list[int]] = {}
            for position in positions:
                by_key.setdefault(keys[position], []).append(position)
            shares.extend((part, own, key) for key, own in by_key.items())
        return shares

    async def _push_share(
        self,
        part: PartitionProducer,
        all_heads: Sequence[bytes],
        all_payloads: Sequence[bytes],
        positions: Sequence[int],
        key: str | None,
        waiting: list[tuple[_Waiter, Sequence[int]]],
    ) -> None:
        """Cuts one partition's share into entries and sends them."""
        heads, payloads = all_heads, all_payloads
        if not isinstance(positions, range):
            heads = [all_heads[position] for position in positions]
            payloads = [all_payloads[position] for position in positions]
        sizes = [len(head) + len(payload) for head, payload in zip(heads, payloads, strict=True)]
        totals = [0, *accumulate(sizes)]
        start, loop = 0, asyncio.get_running_loop()
        while start < len(sizes):
            end = bisect_right(totals, totals[start] + part.batch_bytes) - 1
            end = max(start + 1, min(end, start + self.options.batch_messages))
            size = totals[end] - totals[start]
            if not self._window.try_acquire(end - start, size):
                await self._wait_for_room(end - start, size)
            part.flush_batch()  # what was sent one by one before stays before
            waiter: _Waiter = loop.create_future()
            part.push(heads[start:end], payloads[start:end], [waiter], key)
            waiting.append((waiter, positions[start:end]))
            start = end

    async def _wait_for_room(self, messages: int, size: int) -> None:
        for part in self._parts:
            part.flush_batch()  # room only comes back for what was sent
        await self._window.acquire(messages, size)
        if self._is_closed:
            self._window.release(messages, size)
            raise AlreadyClosedError("the producer was closed")

    def _check_payload_size(self, payload: bytes) -> None:
        limit = self._parts[0].max_message_bytes
        if len(payload) > limit:
            raise MessageTooLargeError(
                f"a message of {len(payload)} bytes is above the broker's limit of {limit} bytes: split it "
                "(HELIOGRAPH_MAX_MESSAGE_BYTES sets the limit when a cluster is started, 5 MiB at most)",
                field="value",
                limit=f"{limit} bytes",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncProducer, (self.client, self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}, name={self.name!r})"


async def _collect(
    waiting: Sequence[tuple[_Waiter, Sequence[int]]], ids: list[MessageId | None]
) -> list[BaseException]:
    """Waits for every entry and spreads its id over the messages in it."""
    failures: list[BaseException] = []
    if waiting:
        await asyncio.wait([waiter for waiter, _ in waiting])
    for waiter, positions in waiting:
        error = waiter.exception()
        if error is not None:
            failures.append(error)
            continue
        place, size = waiter.result(), len(positions)
        if size == 1:
            ids[positions[0]] = place
            continue
        ledger_id, entry_id, partition, topic = place.ledger_id, place.entry_id, place.partition, place.topic
        for index, position in enumerate(positions):
            ids[position] = MessageId(ledger_id, entry_id, partition, index, size, topic)
    return failures


def _heads_of(
    payloads: Sequence[bytes],
    keys: Sequence[str | None] | None,
    properties: Sequence[Mapping[str, str] | None] | None,
    event_times_ms: Sequence[int | None] | None,
) -> list[bytes]:
    if properties is None and event_times_ms is None:
        for key in keys or ():
            if key is not None:
                _checked_key(key)
        return heads_of(payloads, keys)
    nothing: list[None] = [None] * len(payloads)
    columns = zip(payloads, keys or nothing, properties or nothing, event_times_ms or nothing, strict=True)
    return [_checked_head(len(payload), key, pairs, event_time) for payload, key, pairs, event_time in columns]


def _checked_head(size: int, key: str | None, properties: Mapping[str, str] | None, event_time_ms: int | None) -> bytes:
    if event_time_ms is not None and (type(event_time_ms) is not int or not 0 <= event_time_ms < 1 << 63):
        raise BadRequestError(
            f"event_time_ms is {event_time_ms!r}, no time in ms since the epoch", field="event_time_ms"
        )
    for name, value in (properties or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise BadRequestError(f"property {name!r} is not text", field="properties")
    return full_head(size, key if key is None else _checked_key(key), properties, event_time_ms)


def _due_ms(deliver_after: float | None, deliver_at: int | None) -> int:
    """When a message is due, in ms since the epoch; 0 for at once."""
    if deliver_after is not None and deliver_at is not None:
        raise BadRequestError("give deliver_after or deliver_at, not both", field="deliver_at")
    if deliver_at is not None:
        if type(deliver_at) is not int or not 0 <= deliver_at < 1 << 63:
            raise BadRequestError(f"deliver_at is {deliver_at!r}, no time in ms since the epoch", field="deliver_at")
        return deliver_at
    if not isinstance(deliver_after, int | float) or not 0 <= deliver_after <= DELIVER_AFTER_SECONDS_MAX:
        raise BadRequestError(
            f"deliver_after is {deliver_after!r}", field="deliver_after", limit=f"0 to {DELIVER_AFTER_SECONDS_MAX} s"
        )
    return time.time_ns() // 1_000_000 + round(deliver_after * 1_000)


def _check_head_size(head: bytes) -> None:
    if len(head) > HEAD_BYTES_MAX:
        raise MessageTooLargeError(
            f"key and properties of a message have {len(head)} bytes",
            field="properties",
            limit=f"{HEAD_BYTES_MAX} bytes",
        )


def _checked_key(key: str) -> str:
    if not isinstance(key, str):
        raise BadRequestError(f"a key is text, not {type(key).__name__}", field="key")
    return key


def _check_length(payloads: Sequence[bytes], **columns: Sequence[Any] | None) -> None:
    for name, column in columns.items():
        if column is not None and len(column) != len(payloads):
            raise BadRequestError(f"{name} has {len(column)} items for {len(payloads)} values", field=name)


def _to_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise BadRequestError(f"a value is bytes or text, not {type(value).__name__}", field="value")
