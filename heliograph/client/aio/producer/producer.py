"""The asyncio producer: it publishes values and returns message ids."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import override

from heliograph.base.clock import Duration, Moment
from heliograph.base.errors import AlreadyClosedError, HeliographError, MessageTooLargeError
from heliograph.client.aio.growth import GrowthWatch
from heliograph.client.aio.handle import AsyncHandle, HandleState, open_all
from heliograph.client.aio.producer.arguments import (
    all_encoded,
    all_heads,
    check_head_size,
    checked_head,
    checked_text,
    checked_values,
    columns_of,
    deliver_at_ms_of,
    encoded,
    key_texts,
    to_bytes,
)
from heliograph.client.aio.producer.interceptors import OutgoingMessage, ProducerInterceptors
from heliograph.client.aio.producer.outgoing import ListOutcome
from heliograph.client.aio.producer.partition import PartitionProducer
from heliograph.client.aio.producer.routing import Router
from heliograph.client.aio.producer.send_window import CallLine, SendWindow, WaitingCall
from heliograph.client.aio.session import ClientSession
from heliograph.client.options import ProducerOptions
from heliograph.client.schemas.choice import schema_of
from heliograph.client.types import Sent
from heliograph.protocol.batch import LARGE_MESSAGE_BYTES_MAX, keyed_head, plain_head
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.session import HandleOwner

_OPEN = HandleState.OPEN  # looked up once: every message compares with it
_Waiter = asyncio.Future[MessageId]


class AsyncProducer(AsyncHandle, Generic[Sent]):
    """A producer of one topic, partitioned or not.

    Messages of one producer with the same key, and all messages to an unpartitioned topic, are stored in the order of
    their calls. A message whose id was returned is durable: an ack quorum of bookies has it on disk. After a lost
    connection the producer sends everything unconfirmed again, in order, with the same sequence ids. If the topic does
    not deduplicate, a message can then be stored twice, but is never lost. If it does, the id of a message that was
    stored before is not known: its ledger and entry are -1.

    Opening raises ProducerBusyError, ProducerFencedError, TopicNotFoundError, NotPermittedError,
    IncompatibleSchemaError, or ConnectionLostError and RequestTimeoutError when no broker could be reached in time.
    """

    def __init__(self, client: HandleOwner, options: ProducerOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        self._schema = schema_of(options.schema)
        self._interceptors = ProducerInterceptors(options.interceptors) if options.interceptors else None
        self._window = SendWindow(options.pending_messages_max, options.pending_bytes_max)
        self._calls: set[asyncio.Future[None]] = (
            set()
        )  # a future for each call that waits to have its messages accepted
        self._line = CallLine()
        self._parts: list[PartitionProducer] = []
        self._router = Router(1)
        self._growth: GrowthWatch | None = None

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.options.topic

    @property
    def name(self) -> str:
        """Return the name by which the broker knows this producer; empty before opening if none was given."""
        return self._parts[0].name if self._parts else self.options.name or ""

    @property
    def last_sequence_id(self) -> int:
        """Return the highest confirmed sequence id over all partitions, -1 for none.

        After opening it is the last one that the topic holds of this producer's name, if the topic deduplicates.
        """
        return max((part.last_sequence_id for part in self._parts), default=-1)

    @property
    def pending_messages(self) -> int:
        """Return the number of messages that were accepted and are not confirmed yet."""
        return self._window.messages

    async def send(
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
        value: Sent | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: Moment | None = None,
        deliver_after: Duration | None = None,
        deliver_at: Moment | None = None,
    ) -> asyncio.Future[MessageId]:
        """Accept one message and return a future of its id, to send many messages in a fixed order without waiting.

        The call waits only while the producer has too much unconfirmed. Arguments and errors are those of ``send``;
        the future raises the errors that come from the broker.
        """
        wait: WaitingCall | None = None  # made once this call has to wait
        try:
            if self._state is not _OPEN or get_running_loop() is not self._loop or self._line.turns:
                wait = self._begin_wait()
                await self._reach_turn(wait)
            message: OutgoingMessage | None = None
            if self._interceptors is not None:
                message = self._interceptors.before_send(OutgoingMessage(value, key, properties, event_time_ms))
                value, key, properties, event_time_ms = _parts_of(message)
            is_null = value is None
            if self._schema is not None:
                value, properties = encoded(self._schema, value, properties)  # type: ignore[assignment]  # bytes now
            payload = value if type(value) is bytes else to_bytes(value)
            if len(payload) > self._parts[0].max_message_bytes:
                self._check_payload_size(payload)
            deliver_at_ms = 0
            if deliver_after is not None or deliver_at is not None:
                deliver_at_ms = deliver_at_ms_of(deliver_after, deliver_at)
            if properties or event_time_ms is not None or is_null:
                key = key if key is None else checked_text(key)
                head = checked_head(len(payload), key, properties, event_time_ms, None, is_null)
                check_head_size(head)
            elif key is None:
                head = plain_head(len(payload))
            else:
                head = keyed_head(checked_text(key), len(payload))
                check_head_size(head)
            size = len(head) + len(payload)
            if not self._window.try_acquire(1, size):
                wait = wait or self._begin_wait()
                await self._wait_for_room(1, size)
            if deliver_at_ms:
                waiter = self._choose(key).add_delayed(head, payload, deliver_at_ms)
            else:
                waiter = self._choose(key).add(head, payload, key)
            if message is not None:
                self._tell_outcome(message, waiter)
            return waiter
        finally:
            if wait is not None:
                self._line.leave(wait.turn)
                self._end_call(wait.call)

    async def send_many(
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
        call = self._begin_call()
        try:
            return await self._send_many(values, keys, properties, event_times_ms, ordering_keys, deliver_times_ms)
        except HeliographError as error:
            if self.options.stop_at_failure:
                for part in self._parts:  # before a later call is served
                    part.failure = part.failure or error
            raise
        finally:
            self._end_call(call)

    async def _send_many(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None,
        properties: Sequence[Mapping[str, str] | None] | None,
        event_times_ms: Sequence[Moment | None] | None,
        ordering_keys: Sequence[bytes | None] | None,
        deliver_times_ms: Sequence[Moment | None] | None,
    ) -> list[MessageId]:
        outcome: ListOutcome | None = None
        turn = self._line.join()
        try:
            if self._state is not _OPEN:
                await self.open()
            values = checked_values(
                values,
                keys=keys,
                properties=properties,
                event_times_ms=event_times_ms,
                ordering_keys=ordering_keys,
                deliver_times_ms=deliver_times_ms,
            )
            if not values:
                return []
            messages, payloads, heads, texts = self._packed(values, keys, properties, event_times_ms, ordering_keys)
            delays = [None if at is None else deliver_at_ms_of(None, at) for at in deliver_times_ms or ()]
            outcome = ListOutcome(len(payloads))
            await turn
            for part, positions, key in self._shares(len(payloads), texts):
                if len(positions) == 1 and not delays:  # nothing to cut, as where each key has an entry
                    first = positions[0]
                    head, payload = heads[first], payloads[first]
                    size = len(head) + len(payload)
                    if not self._window.try_acquire(1, size):
                        await self._wait_for_room(1, size)
                    if part.batch is not None:
                        part.flush_batch()
                    part.push((head,), (payload,), (outcome.expect(positions),), key)
                else:
                    await self._push_share(part, heads, payloads, positions, key, delays, outcome)
        finally:
            self._line.leave(turn)
            if outcome is not None:
                failures = await outcome.wait()
                self._tell_outcomes(messages, outcome.ids, failures)
        if failures:
            raise failures[0]
        return outcome.ids  # type: ignore[return-value]

    def _packed(
        self,
        values: Sequence[Any],
        keys: Sequence[str | bytes | None] | None,
        properties: Sequence[Mapping[str, str] | None] | None,
        event_times_ms: Sequence[Moment | None] | None,
        ordering_keys: Sequence[bytes | None] | None,
    ) -> tuple[list[OutgoingMessage], list[bytes], list[bytes], Sequence[str | None] | None]:
        """Return the messages as interceptors want them, none without interceptors, with payloads, heads and keys."""
        messages: list[OutgoingMessage] = []
        if self._interceptors is not None:
            columns = columns_of(values, keys, properties, event_times_ms)
            messages = [self._interceptors.before_send(OutgoingMessage(*each)) for each in columns]
            values, keys = [each.value for each in messages], [each.key for each in messages]
            properties = [each.properties for each in messages]
            event_times_ms = [each.event_time_ms for each in messages]
        if self._schema is not None:
            values, properties = all_encoded(self._schema, values, properties)
        payloads = [each if type(each) is bytes else to_bytes(each) for each in values]
        self._check_payload_size(max(payloads, key=len))
        nulls = [value is None for value in values] if None in values else None
        heads = all_heads(payloads, keys, properties, event_times_ms, ordering_keys, nulls)
        check_head_size(max(heads, key=len))
        return messages, payloads, heads, None if keys is None else key_texts(keys)

    def _tell_outcome(self, message: OutgoingMessage, waiter: _Waiter) -> None:
        """Tell the interceptors of the outcome, once it is known."""

        def settled(done: _Waiter) -> None:
            if done.cancelled():
                return  # by the caller, who does not want to know
            error = done.exception()
            if error is None:
                self._tell_outcomes([message], [done.result()], ())
            elif isinstance(error, HeliographError):
                self._tell_outcomes([message], [None], [error])

        waiter.add_done_callback(settled)

    def _tell_outcomes(
        self, messages: Sequence[OutgoingMessage], ids: Sequence[MessageId | None], failures: Sequence[BaseException]
    ) -> None:
        if self._interceptors is not None:
            failed = failures[0] if failures and isinstance(failures[0], HeliographError) else None
            for message, found in zip(messages, ids, strict=True):
                self._interceptors.acknowledged(message, found, None if found is not None else failed)

    async def flush(self) -> None:
        """Wait until all messages of the calls that began before this one are durable or failed.

        Calls that still wait, for the opening of the producer or for room in its window, count.
        The ids and errors reach their own callers.

        Raises:
            AlreadyClosedError: The producer was closed, which settled everything.
        """
        if self._state in (HandleState.FINISHING, HandleState.CLOSED):
            raise AlreadyClosedError("the producer was closed: closing it has settled every message")
        self._check_loop()
        await asyncio.sleep(0)  # tasks that were made before begin their calls
        if self._calls:
            for part in self._parts:
                part.flush_batch()  # the window only gets room back for what was sent
            await asyncio.wait(list(self._calls))
        if len(self._parts) == 1:
            await self._parts[0].drain()
        else:
            await asyncio.gather(*(part.drain() for part in self._parts))
        await asyncio.sleep(0)  # calls whose last receipt came in this turn of the event loop end before this one

    # -- opening and closing

    def _begin_wait(self) -> WaitingCall:
        return WaitingCall(self._begin_call(), self._line.join())

    async def _reach_turn(self, wait: WaitingCall) -> None:
        if self._state is not _OPEN:
            await self.open()
        await wait.turn

    @override
    def _unfinished(self) -> Collection[asyncio.Future[None]]:
        return list(self._calls)

    def _begin_call(self) -> asyncio.Future[None]:
        self._check_loop()
        call: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.add(call)
        self.client.adopt(self)  # so that closing the client waits for the call, too
        return call

    def _end_call(self, call: asyncio.Future[None]) -> None:
        self._calls.discard(call)
        if self._state is HandleState.NEW and not self._calls:
            self.client.release(self)
        if not call.done():  # a loop that ends has cancelled it
            call.set_result(None)

    async def _do_open(self) -> None:
        session = await self.client.session()
        topic = TopicName.parse(self.options.topic)
        count = await session.partitions(topic)
        parts = self._parts = await self._open_parts(session, topic.partitions(count))
        self._router = Router(len(parts), self.options.hashing, session.random.randrange(len(parts)))
        self._growth = GrowthWatch(session, {topic: count}, lambda names: self._grow(session, names))
        self._growth.start()
        self.client.adopt(self)

    async def _open_parts(self, session: ClientSession, names: Sequence[TopicName]) -> list[PartitionProducer]:
        info = None if self._schema is None else self._schema.info
        parts = [PartitionProducer(session, name, self.options, self._window, info) for name in names]
        await open_all(parts)
        return parts

    async def _grow(self, session: ClientSession, names: Sequence[TopicName]) -> None:
        """Open partitions that were added to the topic; the router uses them for the next message on."""
        self._parts = [*self._parts, *await self._open_parts(session, names)]
        self._router.partitions = len(self._parts)

    @override
    async def _do_close(self) -> None:
        """Send the open batches, wait until every message is confirmed, then leave the topic."""
        if self._growth is not None:
            await self._growth.stop()
        await asyncio.gather(*(part.close() for part in self._parts))
        self.client.release(self)

    # -- choosing partitions, packing entries

    def _choose(self, key: str | None) -> PartitionProducer:
        router = self._router
        if router.partitions == 1:
            return self._parts[0]
        if key is not None:
            return self._parts[router.of_key(key)]
        if self._parts[router.current].batch is None:  # a turn lasts as long as a batch
            router.advance()
        return self._parts[router.current]

    def _shares(
        self, count: int, keys: Sequence[str | None] | None
    ) -> list[tuple[PartitionProducer, Sequence[int], str | None]]:
        """Return which partition gets which positions, and their common key if batches hold one key each."""
        if keys is None:
            return [(self._parts[self._router.advance()], range(count), None)]
        shares: list[tuple[PartitionProducer, Sequence[int], str | None]] = []
        for partition, positions in self._router.split(keys).items():
            part = self._parts[partition]
            if not part.batches_by_key:
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
        delays: Sequence[int | None],
        outcome: ListOutcome,
    ) -> None:
        """Cut one partition's share into entries and send them."""
        heads, payloads = all_heads, all_payloads
        delayed = [index for index, position in enumerate(positions) if delays[position]] if any(delays) else []
        delayed.reverse()  # the next one is the last
        if not isinstance(positions, range):
            heads = [all_heads[position] for position in positions]
            payloads = [all_payloads[position] for position in positions]
        sizes = [len(head) + len(payload) for head, payload in zip(heads, payloads, strict=True)]
        totals = [0, *accumulate(sizes)]
        start = 0
        while start < len(sizes):
            end = bisect_right(totals, totals[start] + part.batch_bytes) - 1
            end = max(start + 1, min(end, start + part.batch_messages))
            deliver_at_ms = 0
            if delayed and delayed[-1] == start:
                end, deliver_at_ms = start + 1, delays[positions[delayed.pop()]] or 0
            elif delayed:
                end = min(end, delayed[-1])
            size = totals[end] - totals[start]
            if not self._window.try_acquire(end - start, size):
                await self._wait_for_room(end - start, size)
            part.flush_batch()  # messages that were sent one by one before stay before
            waiter = outcome.expect(positions[start:end])
            part.push(heads[start:end], payloads[start:end], (waiter,), key, deliver_at_ms)
            start = end

    async def _wait_for_room(self, messages: int, size: int) -> None:
        for part in self._parts:
            part.flush_batch()  # the window only gets room back for what was sent
        await self._window.acquire(messages, size)
        if self._state is HandleState.CLOSED:
            self._window.release(messages, size)
            raise AlreadyClosedError("the producer was closed")

    def _check_payload_size(self, payload: bytes) -> None:
        if len(payload) > LARGE_MESSAGE_BYTES_MAX:
            raise MessageTooLargeError(
                f"a message of {len(payload)} bytes is too large, also for chunks: split it",
                field="value",
                limit=f"{LARGE_MESSAGE_BYTES_MAX} bytes",
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncProducer, (self.client, self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}, name={self.name!r})"


def _parts_of(message: OutgoingMessage) -> tuple[Any, str | None, Mapping[str, str] | None, Moment | None]:
    """Return value, key, properties and event time of a message that interceptors may have changed."""
    key = None if message.key is None else checked_text(message.key)
    return message.value, key, message.properties, message.event_time_ms
