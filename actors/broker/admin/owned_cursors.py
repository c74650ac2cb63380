"""Administration of the subscriptions of a topic, at the broker that owns it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from heliograph.actors.broker.admin.stored_message import entry_of, messages_of
from heliograph.actors.broker.limits.answers import MESSAGE_BYTES, PEEK_BYTES_MAX
from heliograph.actors.broker.limits.unpacking import unpacked
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.properties import changed_properties
from heliograph.actors.broker.subscription.subscription import OWN_PROPERTIES, Subscription
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.actors.broker.upkeep.expiry import expire_older_than, expire_up_to
from heliograph.base.completion import shielded
from heliograph.base.errors import BadRequestError, NotFoundError, ServiceNotReadyError, UnsupportedError
from heliograph.protocol.entry import ENTRY_MESSAGES_MAX
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]

ANALYSIS_ENTRIES_MAX = 10_000  # read for one answer
ANALYSIS_BYTES_MAX = 1 << 30
ANALYSIS_SECONDS_MAX = 20.0


class OwnedCursors:
    """The methods on subscriptions that ``OwnedTopics`` runs; ``methods`` has them by name."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self.methods: dict[str, Callable[..., Awaitable[Any]]] = {
            "skip": self._skip,
            "expire": self._expire,
            "expire_to": self._expire_to,
            "reset_to_time": self._reset_to_time,
            "reset_to_id": self._reset_to_id,
            "subscription_properties": self._properties,
            "set_subscription_properties": self._set_properties,
            "peek": self._peek,
            "examine": self._examine,
            "message": self._message,
            "message_id_at": self._message_id_at,
            "last_message_id": self._last_message_id,
            "backlog_size": self._backlog_size,
            "analyze_backlog": self._analyze_backlog,
        }

    async def _skip(self, name: TopicName, subscription: str, count: int | None) -> None:
        found = await self._find(name, subscription)
        await durable(found.skip(count))

    async def _expire(self, name: TopicName, subscription: str | None, seconds: int) -> int:
        topic = await self._topics.get(name)
        if subscription is None:
            await topic.recoveries.all_recovered()
            wanted = [one for one in topic.subscriptions.values() if one.is_durable and not one.is_internal]
        else:
            wanted = [await topic.subscription(subscription)]
        expired = await expire_older_than(topic, wanted, seconds)
        for one in wanted:
            await durable(one.persist())
        return expired

    async def _expire_to(self, name: TopicName, subscription: str, message_id: str, excluded: bool) -> int:
        wanted = MessageId.parse(message_id)
        topic = await self._topics.get(name)
        found = await topic.subscription(subscription)
        position = Position(wanted.ledger_id, wanted.entry_id)
        chain = topic.ledger.chain
        await chain.load(position)
        mark = chain.at_or_after(position) if excluded else chain.after(position)
        expired = await expire_up_to(topic, found, mark, "an administrator expired them")
        await durable(found.persist())
        return expired

    async def _reset_to_time(self, name: TopicName, subscription: str, time_ms: int) -> None:
        topic = await self._topics.get(name)
        found = await topic.subscription(subscription)
        await found.reset(found.chain.from_base(await topic.index_at_time(time_ms)))

    async def _reset_to_id(self, name: TopicName, subscription: str, message_id: str, excluded: bool) -> None:
        topic = await self._topics.get(name)
        found = await topic.subscription(subscription)
        chain = found.chain
        wanted = MessageId.parse(message_id)
        if wanted in (MessageId.EARLIEST, MessageId.LATEST):
            await found.reset(chain.first if wanted == MessageId.EARLIEST else chain.end)
            return
        position = Position(wanted.ledger_id, wanted.entry_id)
        await chain.load(position)
        index = chain.find(position)
        if index is not None and wanted.batch_index >= 0:
            messages = (await (await _reader(topic, found)).entry(index)).messages
            first = wanted.batch_index + (1 if excluded else 0)
            if 0 < first < messages:
                await found.reset(index, (1 << messages) - (1 << first))
                return
            excluded = first >= messages
        await found.reset(chain.after(position) if excluded else chain.at_or_after(position))

    async def _properties(self, name: TopicName, subscription: str) -> dict[str, str]:
        return dict((await self._find(name, subscription)).properties)

    async def _set_properties(self, name: TopicName, subscription: str, properties: Mapping[str, str]) -> None:
        found = await self._find(name, subscription)
        if found.log is None:
            raise UnsupportedError(f"{subscription} is not durable, it keeps no properties", field="subscription")
        changes: dict[str, str | None] = dict.fromkeys(found.properties)
        await found.log.set_properties({**changes, **changed_properties({}, properties, OWN_PROPERTIES)})

    async def _peek(self, name: TopicName, subscription: str, count: int, as_entry: bool = False) -> list[Json]:
        topic = await self._topics.get(name)
        found = await topic.subscription(subscription)
        chain, reader = found.chain, await _reader(topic, found)
        if as_entry:
            return await self._peek_entry(name, found, reader, count)
        shown: list[Json] = []
        size, index = 0, found.cursor.next_unacknowledged(chain.first)
        while len(shown) < count and index < chain.end:
            position = chain.position_at(index)
            entry = await reader.entry(index)
            bits = found.cursor.unacknowledged_bits(index)
            if entry.live is not None:
                bits = entry.live if bits is None else bits & entry.live
            room = PEEK_BYTES_MAX - size
            show = partial(_messages, position, name.partition, bits=bits, most=count - len(shown), bytes_max=room)
            [(found_here, taken)] = await unpacked(name.tenant, [entry.payload], _itself, show)
            if shown and taken > room and len(found_here) == 1:  # it was taken because it is the first
                return shown
            shown += [message for message in found_here if not message["is_marker"]]
            size += taken
            if size > PEEK_BYTES_MAX:
                return shown
            index = found.cursor.next_unacknowledged(max(index + 1, chain.first))
        return shown

    async def _peek_entry(
        self, name: TopicName, subscription: Subscription, reader: EntryReader, number: int
    ) -> list[Json]:
        """Return the ``number``th entry that is not wholly acknowledged, or none if there are fewer."""
        chain, cursor = subscription.chain, subscription.cursor
        index = cursor.next_unacknowledged(chain.first)
        while index < chain.end:
            position = chain.position_at(index)
            entry = await reader.entry(index)
            number -= not entry.is_marker
            if number <= 0:
                show = partial(entry_of, position, name.partition)
                return await unpacked(name.tenant, [entry.payload], _itself, show)
            index = cursor.next_unacknowledged(max(index + 1, chain.first))
        return []

    async def _examine(self, name: TopicName, initial: str, number: int, as_entry: bool = False) -> list[Json]:
        if initial not in ("earliest", "latest"):
            raise BadRequestError(f"{initial!r} is no end", field="initialPosition", limit="earliest, latest")
        topic = await self._topics.get(name)
        chain = topic.ledger.chain
        index = chain.first + number - 1 if initial == "earliest" else chain.end - number
        if not chain.first <= index < chain.end:
            raise NotFoundError(f"{name} has {chain.end - chain.first} entries", field="messagePosition")
        await chain.load_index(index)
        if index < chain.first:
            raise ServiceNotReadyError(f"{name} was trimmed meanwhile, try again")
        return await self._entry(topic, index, as_entry)

    async def _message(self, name: TopicName, ledger_id: int, entry_id: int, as_entry: bool = False) -> list[Json]:
        topic = await self._topics.get(name)
        await topic.ledger.chain.load(Position(ledger_id, entry_id))
        index = topic.ledger.chain.find(Position(ledger_id, entry_id))
        if index is None:
            raise NotFoundError(f"{name} has no entry {ledger_id}:{entry_id}", field="messageId")
        return await self._entry(topic, index, as_entry)

    async def _message_id_at(self, name: TopicName, time_ms: int) -> str:
        topic = await self._topics.get(name)
        index = await topic.index_at_time(time_ms)
        chain = topic.ledger.chain
        # Where no entry is as new as that, Pulsar answers with the last one.
        position = chain.position_at(index) if index < chain.end else chain.position_before(chain.end)
        return f"{position}:{name.partition}"

    async def _last_message_id(self, name: TopicName) -> str:
        topic = await self._topics.get(name)
        position, entry = await topic.last_message()
        batch = f":{entry.messages - 1}" if entry is not None and entry.is_batch else ""
        return f"{position}:{name.partition}{batch}"

    async def _backlog_size(self, name: TopicName, message_id: str) -> int:
        topic = await self._topics.get(name)
        wanted, chain = MessageId.parse(message_id), topic.ledger.chain
        if wanted == MessageId.EARLIEST:  # the sums of all ledgers are at hand
            return topic.admission.quota.bytes_from(chain.first)
        position = Position(wanted.ledger_id, wanted.entry_id)
        await chain.load(position)
        index = chain.end if wanted == MessageId.LATEST else chain.at_or_after(position)
        return topic.admission.quota.bytes_from(index)

    async def _analyze_backlog(self, name: TopicName, subscription: str, start: str | None) -> Json:
        topic = await self._topics.get(name)
        found = await topic.subscription(subscription)
        chain, reader = found.chain, await _reader(topic, found)
        first = chain.first
        if start is not None and (wanted := MessageId.parse(start)) != MessageId.EARLIEST:
            await chain.load(Position(wanted.ledger_id, wanted.entry_id))
            first = chain.at_or_after(Position(wanted.ledger_id, wanted.entry_id))
        entries = messages = size = 0
        seen: list[int] = []
        deadline = time.monotonic() + ANALYSIS_SECONDS_MAX
        index = found.cursor.next_unacknowledged(max(first, chain.first))
        while index < chain.end:
            if entries == ANALYSIS_ENTRIES_MAX or size > ANALYSIS_BYTES_MAX or time.monotonic() > deadline:
                break
            entry = await reader.entry(index)
            bits = found.cursor.unacknowledged_bits(index)
            if entry.live is not None:
                bits = entry.live if bits is None else bits & entry.live
            entries += 1
            messages += entry.messages if bits is None else bits.bit_count()
            size += len(entry.payload)
            seen = [seen[0] if seen else index, index]
            index = found.cursor.next_unacknowledged(max(index + 1, chain.first))
        ends: list[str | None] = [str(chain.position_at(place)) for place in seen if place >= chain.first]
        ends = ends or [None]
        return {
            "entries": entries,
            "messages": messages,
            "first": ends[0],
            "last": ends[-1],
            "is_cut": index < chain.end,
        }

    async def _entry(self, topic: BrokerTopic, index: int, as_entry: bool) -> list[Json]:
        position = topic.ledger.chain.position_at(index)
        entry = await topic.reader.entry(index)
        tenant, partition = topic.name.tenant, topic.name.partition
        if as_entry:
            return await unpacked(tenant, [entry.payload], _itself, partial(entry_of, position, partition))
        show = partial(_messages, position, partition, bits=None, most=ENTRY_MESSAGES_MAX, bytes_max=PEEK_BYTES_MAX)
        [(found, _)] = await unpacked(tenant, [entry.payload], _itself, show)
        return found

    async def _find(self, name: TopicName, subscription: str) -> Subscription:
        return await (await self._topics.get(name)).subscription(subscription)


def _itself(section: bytes | memoryview) -> bytes | memoryview:
    return section


def _messages(
    position: Position, partition: int, payload: bytes | memoryview, bits: int | None, most: int, bytes_max: int
) -> tuple[list[Json], int]:
    """Return the first messages of an entry, at most ``most`` and at least one, and the bytes that they take.

    The bytes are above ``bytes_max`` if there are more messages, which did not fit.
    """
    found: list[Json] = []
    size = 0
    for message in messages_of(position, partition, payload, bits):
        if len(found) >= most:
            break
        size += MESSAGE_BYTES + len(message["payload"]) + len(message["key"] or "")
        size += sum(len(name) + len(value) for name, value in message["properties"].items())
        if found and size > bytes_max:
            break
        found.append(message)
    return found, size


async def _reader(topic: BrokerTopic, subscription: Subscription) -> EntryReader:
    """Return the reader of the chain of entries that the subscription's cursor counts by."""
    chain, reader = await topic.view(subscription.reads_compacted)
    if chain is not subscription.chain:
        raise ServiceNotReadyError(f"{topic.name} was compacted meanwhile, try again")
    return reader


async def durable(done: asyncio.Future[None] | None) -> None:
    """Wait until a change of a cursor is stored; a cancelled caller leaves it to be stored."""
    if done is not None:
        await shielded(done)
