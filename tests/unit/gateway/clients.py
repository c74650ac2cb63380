"""Topics in memory for the gateway's tests, with producers and consumers that need no broker."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from heliograph.base.errors import AlreadyClosedError, ConsumerBusyError, NotFoundError
from heliograph.operations.cursors import CursorOperations
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from tests.unit.gateway.world import World


@dataclass
class Message:
    """A received message."""

    data: bytes
    message_id: MessageId
    key: str | None
    properties: Mapping[str, str]
    publish_time_ms: int
    event_time_ms: int | None
    redelivery_count: int
    topic: str
    is_null: bool = False

    @property
    def value(self) -> bytes | None:
        return None if self.is_null else self.data


@dataclass
class FakeSubscription:
    """The undelivered and acknowledged messages of a subscription, and the number of its consumers."""

    pending: deque[Message] = field(default_factory=deque)
    delivered: dict[MessageId, Message] = field(default_factory=dict)
    acknowledged: list[MessageId] = field(default_factory=list)
    ack_calls: int = 0
    consumers: int = 0
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, message: Message) -> None:
        self.pending.append(message)
        self.arrived.set()


@dataclass
class FakeTopic:
    """One topic: its messages and its subscriptions."""

    name: str
    ledger_id: int
    partitions: int = 0
    messages: list[Message] = field(default_factory=list)
    subscriptions: dict[str, FakeSubscription] = field(default_factory=dict)
    producers: int = 0
    is_compacting: bool = False
    is_terminated: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    cut: list[str] = field(default_factory=list)

    def publish(
        self, value: bytes | None, key: str | None, properties: Mapping[str, str], event_ms: int | None
    ) -> MessageId:
        id_ = MessageId(self.ledger_id, len(self.messages), topic=self.name)
        message = Message(value or b"", id_, key, dict(properties), 1_700_000_000_123, event_ms, 0, self.name)
        message.is_null = value is None
        self.messages.append(message)
        for subscription in self.subscriptions.values():
            subscription.add(message)
        return id_

    def subscribe(self, name: str, position: object) -> FakeSubscription:
        if name not in self.subscriptions:
            subscription = self.subscriptions[name] = FakeSubscription()
            for message in self.messages if position == "earliest" else []:
                subscription.add(message)
        return self.subscriptions[name]


class FakeProducer:
    """A producer that stores at once, unless the world holds receipts back or fails sends."""

    def __init__(self, world: World, topic: FakeTopic) -> None:
        self._world, self._topic = world, topic
        topic.producers += 1
        self.closed = False

    async def enqueue(
        self,
        value: bytes | None,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at: int | None = None,
    ) -> asyncio.Future[MessageId]:
        future: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        self._world.deliver_at.append(deliver_at)
        error = self._world.send_errors.pop(value or b"", None)
        if error is not None:
            future.set_exception(error)
        else:
            id_ = self._topic.publish(value, key, properties or {}, event_time_ms)
            if self._world.held is None:
                future.set_result(id_)
            else:
                self._world.held.append((future, id_))
        return future

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._topic.producers -= 1


class FakeCursors(CursorOperations):
    """A recorder of calls; ``entries`` are the whole entries that peek, examine and message return."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.entries: list[dict[str, Any]] = []
        self.attached: dict[str, str] = {}
        self.last = "7:9:-1:4"

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        self.calls.append(("skip", topic, subscription, count))

    async def skip_all(self, topic: str, subscription: str) -> None:
        self.calls.append(("skip_all", topic, subscription))

    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:  # type: ignore[override]  # times arrive as numbers
        self.calls.append(("expire", topic, subscription, seconds))
        return 0

    async def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        self.calls.append(("expire_to", topic, subscription, message_id, excluded))
        return 0

    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:  # type: ignore[override]  # times arrive as numbers
        self.calls.append(("reset", topic, subscription, to, excluded))

    async def backlog_size(self, topic: str, message_id: str) -> int:
        self.calls.append(("backlog_size", topic, message_id))
        return 77

    async def analyze_backlog(self, topic: str, subscription: str, start: str | None = None) -> dict[str, Any]:
        self.calls.append(("analyze", topic, subscription, start))
        return {"entries": 2, "messages": 5, "first": "3:4", "last": "3:5", "is_cut": False}

    async def clear_namespace(self, namespace: str, bundle: str | None = None, subscription: str | None = None) -> int:
        self.calls.append(("clear", namespace, bundle, subscription))
        return 1

    async def unsubscribe_namespace(self, namespace: str, subscription: str, bundle: str | None = None) -> int:
        self.calls.append(("unsubscribe", namespace, subscription, bundle))
        if subscription == "busy":
            raise ConsumerBusyError("busy has consumers")
        return 1

    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        return self.attached

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        self.attached = dict(properties)

    async def peek(self, topic: str, subscription: str, count: int = 1, as_entry: bool = False) -> list[dict[str, Any]]:
        assert as_entry
        return self.entries[count - 1 : count]

    async def examine(
        self, topic: str, initial: str = "latest", number: int = 1, as_entry: bool = False
    ) -> list[dict[str, Any]]:
        assert as_entry
        return [self._entry(number - 1 if initial == "earliest" else -number)]

    async def message(self, topic: str, ledger_id: int, entry_id: int, as_entry: bool = False) -> list[dict[str, Any]]:
        assert as_entry
        return [self._entry(entry_id)]

    async def trace(self, topic: str, ledger_id: int, entry_id: int) -> dict[str, Any]:
        return {"topic": topic, "message_id": f"{ledger_id}:{entry_id}:-1", "copies": [], "subscriptions": []}

    async def find(self, topic: str, property_name: str, value: str, limit: int = 10) -> dict[str, Any]:
        return {"message_ids": [f"7:{limit}:-1"], "entries": 3, "is_cut": property_name != value}

    def _entry(self, place: int) -> dict[str, Any]:
        if not -len(self.entries) <= place < len(self.entries):
            raise NotFoundError(f"there is no entry {place}", field="messageId")
        return self.entries[place]

    async def message_id_at(self, topic: str, time_ms: int) -> str:  # type: ignore[override]  # times arrive as numbers
        return "7:3:-1"

    async def last_message_id(self, topic: str) -> str:
        return self.last


class FakeConsumer:
    """A consumer that takes from its subscriptions in rotation."""

    def __init__(self, world: World, topics: Sequence[FakeTopic], name: str, options: Mapping[str, Any]) -> None:
        self._world = world
        self.options = dict(options)
        self._name = name
        self._topics = {topic.name: topic for topic in topics}
        self.subscriptions = {
            topic.name: topic.subscribe(name, options.get("initial_position", "latest")) for topic in topics
        }
        exclusive = options.get("type", "exclusive") == "exclusive"
        if exclusive and any(item.consumers for item in self.subscriptions.values()):
            raise ConsumerBusyError(f"subscription {name} has its consumer")
        for item in self.subscriptions.values():
            item.consumers += 1
        self.closed = False
        self.is_waiting = False  # for messages

    @property
    def has_reached_end(self) -> bool:
        is_read = all(not item.pending and not item.delivered for item in self.subscriptions.values())
        return is_read and all(topic.is_terminated for topic in self._topics.values())

    async def receive_many(self, max_messages: int, timeout: float | None = None) -> Sequence[Message]:
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            if self.closed:
                raise AlreadyClosedError("the consumer is closed")
            taken: list[Message] = []
            for item in self.subscriptions.values():
                while item.pending and len(taken) < max_messages:
                    message = item.pending.popleft()
                    item.delivered[message.message_id] = message
                    taken.append(message)
            if taken:
                return taken
            arrived = [asyncio.ensure_future(item.arrived.wait()) for item in self.subscriptions.values()]
            for item in self.subscriptions.values():
                item.arrived.clear()
            left = None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())
            self.is_waiting = True
            try:
                done, _ = await asyncio.wait(arrived, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.is_waiting = False
                for task in arrived:
                    task.cancel()
            if not done:
                return []

    async def ack_many(self, messages: Sequence[Message | MessageId]) -> None:
        if self._world.ack_error is not None:
            raise self._world.ack_error
        await asyncio.sleep(0)
        for message in messages:
            item, id_ = self._of(message)
            item.acknowledged.append(id_)
            if item.delivered.pop(id_, None) is None:  # it was not delivered yet, and is not any more
                item.pending = deque(one for one in item.pending if one.message_id != id_)
        next(iter(self.subscriptions.values())).ack_calls += 1

    async def ack_cumulative(self, message: Message | MessageId) -> None:
        item, last = self._of(message)
        await self.ack_many([id_ for id_ in sorted(item.delivered) if id_ <= last])

    async def nack(self, message: Message | MessageId) -> None:
        item, id_ = self._of(message)
        again = item.delivered.pop(id_)
        again.redelivery_count += 1
        item.add(again)

    async def seek(self, target: object, *, inclusive: bool = False) -> None:
        if self._world.seek_error is not None:
            raise self._world.seek_error
        for name, item in self.subscriptions.items():
            item.pending.clear()
            for message in self._topics[name].messages:
                if _at_or_behind(message, target, inclusive):
                    item.add(message)

    async def unsubscribe(self) -> None:
        if self._world.unsubscribe_error is not None:
            raise self._world.unsubscribe_error
        for topic in self._topics.values():
            del topic.subscriptions[self._name]
        self.closed = True
        for item in self.subscriptions.values():
            item.arrived.set()  # wakes a waiting receive, which then fails

    async def close(self) -> None:
        if not self.closed:
            for item in self.subscriptions.values():
                item.consumers -= 1
                item.pending.extendleft(reversed(item.delivered.values()))
                item.delivered.clear()
                item.arrived.set()
        self.closed = True

    def _of(self, message: Message | MessageId) -> tuple[FakeSubscription, MessageId]:
        id_ = message if isinstance(message, MessageId) else message.message_id
        if len(self.subscriptions) == 1:
            return next(iter(self.subscriptions.values())), id_
        assert isinstance(message, Message), "a consumer of several topics needs to know the topic"
        return self.subscriptions[message.topic], id_


def _at_or_behind(message: Message, position: object, inclusive: bool) -> bool:
    if isinstance(position, MessageId):
        return message.message_id > position or (inclusive and message.message_id == position)
    if isinstance(position, int):
        return message.publish_time_ms >= position
    return position == "earliest"
