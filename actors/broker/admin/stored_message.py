"""The messages of a stored entry, as administration shows them, and where an entry is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from heliograph.actors.broker.limits.unpacking import unpacked
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, HeliographError, NotFoundError, QuotaExceededError, UnsupportedError
from heliograph.operations.cursors import MASKED
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import TRACEPARENT

Json = dict[str, Any]

SEARCHED_ENTRIES_MAX = 10_000  # of one search, from the newest entry back
SEARCHED_BYTES_MAX = 256 << 20
SEARCHED_SECONDS_MAX = 10.0
SEARCHED_AT_ONCE = 64  # entries that one thread looks through  # I15
SEARCHED_AT_ONCE_BYTES = 16 << 20  # of them; a larger entry is looked through alone  # I15
SEARCHES_MAX = 4  # that run at the same time; others wait  # I15
SEARCHES_WAITING_MAX = 32  # further ones are refused  # I15


class Whereabouts:
    """Says where an entry of a topic of this broker is, and finds entries by a property."""

    def __init__(self, topics: Topics, ledgers: LedgersPort) -> None:
        self._topics = topics
        self._ledgers = ledgers
        self._gate = asyncio.Semaphore(SEARCHES_MAX)
        self._searches = 0  # that run or wait
        self.methods: dict[str, Callable[..., Awaitable[Any]]] = {"trace": self._trace, "find": self._find}

    async def _trace(self, name: TopicName, ledger_id: int, entry_id: int) -> Json:
        topic = await self._stored(name)
        position, chain = Position(ledger_id, entry_id), topic.ledger.chain
        await chain.load(position)
        index = chain.find(position)
        if index is None:
            raise NotFoundError(f"{name} has no entry {position}: it was never stored, or trimmed", field="messageId")
        record = (await self._ledgers.metadata(ledger_id)).record
        copies, entry = await asyncio.gather(self._ledgers.copies(ledger_id, entry_id), _entry_of(topic, index))
        await topic.recoveries.all_recovered()
        tracer = tracing.active
        return {
            "topic": str(name),
            "message_id": f"{position}:{name.partition}",
            "now_ms": wall_ms(),
            "messages": 0 if entry is None else entry.messages,
            "bytes": 0 if entry is None else len(entry.client_bytes()),
            "published_ms": 0 if entry is None else entry.publish_time_ms,
            "stored_ms": 0 if entry is None else entry.stored_by(topic.reader.closed_ms(index)),
            "ledger": {
                "ledger_id": ledger_id,
                "entry_id": entry_id,
                "state": record.state.value,
                "write_quorum": record.write_quorum,
                "ack_quorum": record.ack_quorum,
                "ensemble": list(record.segment_of(entry_id).bookies),
            },
            "copies": [{"bookie": bookie, "copy": found} for bookie, found in copies.items()],
            "subscriptions": [_state_in(one, position) for one in list(topic.subscriptions.values())],
            "trace_id": "" if tracer is None else tracer.followed.trace_of(position),
            "steps": [] if tracer is None else tracer.followed.steps(position),
        }

    async def _find(self, name: TopicName, property_name: str, value: str, limit: int) -> Json:
        topic = await self._stored(name)
        if self._searches >= SEARCHES_MAX + SEARCHES_WAITING_MAX:
            raise QuotaExceededError("too many searches wait at this broker", limit=f"{SEARCHES_WAITING_MAX} searches")
        self._searches += 1
        try:
            async with self._gate:
                return await self._found(topic, name, property_name, value, limit)
        finally:
            self._searches -= 1

    async def _found(self, topic: BrokerTopic, name: TopicName, property_name: str, value: str, limit: int) -> Json:
        chain = topic.ledger.chain
        found: list[str] = []
        entries = size = 0
        deadline = time.monotonic() + SEARCHED_SECONDS_MAX
        stop = chain.end
        while stop > chain.first and len(found) < limit:
            if entries >= SEARCHED_ENTRIES_MAX or size >= SEARCHED_BYTES_MAX or time.monotonic() > deadline:
                break
            first = max(stop - SEARCHED_AT_ONCE, chain.first)
            await chain.load_index(first)
            batch, held = await _newest(topic, range(max(first, chain.first), stop))
            look = partial(_ids_with, name.partition, property_name, value)
            hits = await unpacked(name.tenant, batch, _section_of, look)
            found += [one for ids in hits for one in ids]
            entries, size, stop = entries + len(batch), size + held, stop - len(batch)
        return {"message_ids": found[:limit], "entries": entries, "is_cut": stop > chain.first}

    async def _stored(self, name: TopicName) -> BrokerTopic:
        if not name.is_persistent:
            raise UnsupportedError("a non-persistent topic stores no messages", field="topic")
        return await self._topics.get(name)


def followed_here(trace_id: str) -> list[Json]:
    """Return the entries of a trace that this process remembers: ``topic``, ``message_id`` and ``steps`` of each.

    Raises:
        BadRequestError: that is no trace id.
    """
    try:
        wanted = int(trace_id, 16)
    except ValueError:
        raise BadRequestError(f"{trace_id!r:.80} is no trace id", field="trace_id", limit="32 digits") from None
    if tracing.active is None:
        return []
    found = []
    for entry in tracing.active.followed.entries_of(wanted):
        steps = tracing.active.followed.steps(entry)
        topic = next((step["topic"] for step in steps if "topic" in step), "")
        found.append({"topic": topic, "message_id": f"{entry[0]}:{entry[1]}", "steps": steps})
    return found


def masked(shown: Json) -> Json:
    """Return a message or an entry of ``peek`` without its payload and the values of its properties.

    An entry is shown as one message, because its payload, which has the messages of a batch, is left out.
    """
    found = shown | {"payload": MASKED.encode(), "is_masked": True}
    if "properties" in shown:
        found["properties"] = dict.fromkeys(shown["properties"], MASKED)
    if "metadata" in shown:
        metadata = pb.MessageMetadata.FromString(shown["metadata"])
        for pair in metadata.properties:
            pair.value = MASKED
        for name in ("num_messages_in_batch", "compression", "encryption_keys", "uncompressed_size"):
            metadata.ClearField(name)
        found["metadata"] = metadata.SerializeToString()
    return found


async def _newest(topic: BrokerTopic, span: range) -> tuple[list[tuple[Position, TopicEntry]], int]:
    """Return the newest entries of a span, newest first, of ``SEARCHED_AT_ONCE_BYTES`` or one more, and their bytes."""
    batch, size = list[tuple[Position, TopicEntry]](), 0
    for index in reversed(span):
        if size >= SEARCHED_AT_ONCE_BYTES:
            break
        entry = await topic.reader.entry(index)
        batch.append((topic.ledger.chain.position_at(index), entry))
        size += len(entry.payload)
    return batch, size


async def _entry_of(topic: BrokerTopic, index: int) -> TopicEntry | None:
    """Return an entry, or None if no copy can be read now, which the answer is to say."""
    try:
        return await topic.reader.entry(index)
    except HeliographError:
        return None


def _state_in(subscription: Subscription, position: Position) -> Json:
    cursor, dispatcher, delayed = subscription.cursor, subscription.dispatcher, subscription.delays.index
    index = subscription.chain.find(position)
    if index is None:  # it counts by the compacted form, which has not kept the entry
        return {"subscription": subscription.name, "state": "compacted away", "unacknowledged": 0, "held_by": []}
    holders = [
        {"consumer": one.name, "messages": one.state.pending[index], "delivered_ms": one.delivered_ms}
        for one in subscription.consumers.values()
        if index in one.state.pending
    ]
    left = cursor.unacknowledged_bits(index)
    if cursor.is_acknowledged(index):
        state = "acknowledged"
    elif holders:
        state = "delivered"
    elif delayed.count and delayed.next_not_waiting(index) != index:
        state = "delayed"
    elif index < dispatcher.read_index and subscription.consumers:
        state = "to be delivered again"
    else:
        state = "waits"
    return {
        "subscription": subscription.name,
        "state": state,
        "unacknowledged": None if left is None else left.bit_count(),
        "held_by": holders,
        "refused": cursor.refused.of(index).entry,
        "crashed": cursor.crashed.of(index).entry,
    }


def _ids_with(partition: int, name: str, value: str, item: tuple[Position, TopicEntry]) -> list[str]:
    """Return the ids of the messages of an entry whose property has a value; of ``traceparent`` the trace id is
    enough."""
    position, entry = item
    found = []
    for message in messages_of(position, partition, entry.payload):
        given = message["properties"].get(name)
        if given == value or (name == TRACEPARENT and given is not None and f"-{value.lower()}-" in given):
            found.append(message["message_id"])
    return found[::-1]


def _section_of(item: tuple[Position, TopicEntry]) -> bytes | memoryview:
    return item[1].payload


def messages_of(
    position: Position, partition: int, payload: bytes | memoryview, open_bits: int | None = None
) -> Iterator[Json]:
    """Yield every message of an entry, or of its batch.

    Args:
        open_bits: a bit for each message of a batch that is to be shown; None for all.

    Yields:
        ``message_id`` (``ledger:entry:partition[:batch_index]``), ``payload`` (bytes, as the producer gave them, or as
        stored where they are encrypted or cannot be decompressed: then ``is_raw``), ``key``, ``properties``, times in
        ms, ``producer_name``, ``sequence_id``, ``batch_size`` (0: no batch), and ``index`` and
        ``broker_publish_time_ms``, which are None where the broker noted none.
    """
    metadata, body = codec.split(payload)
    noted = codec.broker_metadata_of(payload)
    last = noted.index if noted.HasField("index") else None
    base = f"{position}:{partition}"
    common: Json = {
        "publish_time_ms": metadata.publish_time,
        "deliver_at_ms": metadata.deliver_at_time,
        "producer_name": metadata.producer_name,
        "sequence_id": metadata.sequence_id,
        "is_raw": bool(metadata.encryption_keys),
        "is_marker": metadata.HasField("marker_type"),
        "index": last,
        "broker_publish_time_ms": noted.broker_timestamp if noted.HasField("broker_timestamp") else None,
    }
    try:
        plain = codec.plain_payload(metadata, body)
    except HeliographError:
        plain, common["is_raw"] = bytes(body), True
    if common["is_raw"] or not codec.is_batch(metadata):
        size = metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else 0
        yield common | _fields_of(metadata) | {"message_id": base, "payload": plain, "batch_size": size}
        return
    size = metadata.num_messages_in_batch
    # A shift of a long integer for each message would take the square of their number.
    marks = None if open_bits is None else open_bits.to_bytes(max(size, open_bits.bit_length()) // 8 + 1, "little")
    for index, (single, message) in enumerate(codec.iterate_batch(metadata, plain)):
        if marks is None or marks[index >> 3] >> (index & 7) & 1:
            own = _fields_of(single)
            if last is not None:
                own["index"] = last - (size - 1 - index)
            yield common | own | {"message_id": f"{base}:{index}", "payload": message, "batch_size": size}


def entry_of(position: Position, partition: int, payload: bytes | memoryview) -> Json:
    """Return a whole entry: what Pulsar's administrative clients unpack by themselves.

    Returns:
        ``message_id`` (``ledger:entry:partition``), ``payload`` (decompressed, a batch with the headers of its
        messages; as stored where it is encrypted, or a chunk, which cannot be decompressed without the others),
        ``metadata`` (bytes of ``MessageMetadata``), ``broker_metadata`` (bytes of ``BrokerEntryMetadata``).

    Raises:
        UnsupportedError: it is compressed with an unknown codec.
        ChecksumError: it cannot be decompressed.
    """
    metadata, body = codec.split(payload)
    is_chunk = metadata.num_chunks_from_msg > 1
    return {
        "message_id": f"{position}:{partition}",
        "payload": bytes(body) if is_chunk else codec.plain_payload(metadata, body),
        "metadata": metadata.SerializeToString(),
        "broker_metadata": codec.broker_metadata_of(payload).SerializeToString(),
    }


def _fields_of(metadata: pb.MessageMetadata | pb.SingleMessageMetadata) -> Json:
    return {
        "key": metadata.partition_key if metadata.HasField("partition_key") else None,
        "properties": {pair.key: pair.value for pair in metadata.properties},
        "event_time_ms": metadata.event_time,
    }
