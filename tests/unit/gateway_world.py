"""A small cluster in memory for the gateway's tests, and a WebSocket peer that talks ASGI without a socket."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx
from fastapi import FastAPI

from actors.broker.admin_namespaces import NamespaceAdmin
from actors.broker.catalog import Catalog
from gateway.app import create_app
from gateway.config import GatewayConfig
from gateway.ports import BookieView, BrokerView
from heliograph.errors import (
    AlreadyClosedError,
    BadRequestError,
    ConflictError,
    ConsumerBusyError,
    HeliographError,
    NamespaceNotFoundError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TopicBusyError,
    TopicExistsError,
    TopicNotFoundError,
)
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from metadata.cluster_init import initialise
from metadata.memory import MemoryServer
from metadata.model import check_quorum
from tests.unit.schema_world import schemas_in_memory

T = TypeVar("T")
FLIGHTS = "persistent://public/default/flights"
FLIGHTS_PATH = "persistent/public/default/flights"
WAIT_SECONDS = 5.0  # a test that waits longer for an answer has failed


@dataclass
class Message:
    """A received message."""

    value: bytes
    message_id: MessageId
    key: str | None
    properties: Mapping[str, str]
    publish_time_ms: int
    event_time_ms: int | None
    redelivery_count: int
    topic: str


@dataclass
class FakeSubscription:
    """What is left to deliver, what was acknowledged, and who consumes."""

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

    def publish(self, value: bytes, key: str | None, properties: Mapping[str, str], event_ms: int | None) -> MessageId:
        id_ = MessageId(self.ledger_id, len(self.messages), topic=self.name)
        message = Message(value, id_, key, dict(properties), 1_700_000_000_123, event_ms, 0, self.name)
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
    """Stores at once, unless the world holds receipts back or fails sends."""

    def __init__(self, world: World, topic: FakeTopic) -> None:
        self._world, self._topic = world, topic
        topic.producers += 1
        self.closed = False

    async def enqueue(
        self,
        value: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int | None = None,
        deliver_at: int | None = None,
    ) -> asyncio.Future[MessageId]:
        future: asyncio.Future[MessageId] = asyncio.get_running_loop().create_future()
        self._world.deliver_at.append(deliver_at)
        error = self._world.send_errors.pop(value, None)
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


class FakeCursors:
    """Notes what was asked; ``messages`` is what a look at a subscription finds."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.messages: list[dict[str, Any]] = []
        self.attached: dict[str, str] = {}

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        self.calls.append(("skip", topic, subscription, count))

    async def skip_all(self, topic: str, subscription: str) -> None:
        self.calls.append(("skip_all", topic, subscription))

    async def expire(self, topic: str, subscription: str | None, seconds: int) -> int:
        self.calls.append(("expire", topic, subscription, seconds))
        return 0

    async def expire_to(self, topic: str, subscription: str, message_id: str, excluded: bool = False) -> int:
        self.calls.append(("expire_to", topic, subscription, message_id, excluded))
        return 0

    async def reset(self, topic: str, subscription: str, to: str | int, excluded: bool = False) -> None:
        self.calls.append(("reset", topic, subscription, to, excluded))

    async def properties(self, topic: str, subscription: str) -> dict[str, str]:
        return self.attached

    async def set_properties(self, topic: str, subscription: str, properties: Mapping[str, str]) -> None:
        self.attached = dict(properties)

    async def peek(self, topic: str, subscription: str, count: int = 1) -> list[dict[str, Any]]:
        return self.messages[:count]

    async def examine(self, topic: str, initial: str = "latest", number: int = 1) -> list[dict[str, Any]]:
        return [self.messages[number - 1 if initial == "earliest" else -number]]

    async def message(self, topic: str, ledger_id: int, entry_id: int) -> list[dict[str, Any]]:
        return [self.messages[entry_id]]

    async def message_id_at(self, topic: str, time_ms: int) -> str:
        return "7:3:-1"

    async def last_message_id(self, topic: str) -> str:
        return "7:9:-1:4"


class FakeConsumer:
    """Takes from its subscriptions in turn."""

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
            try:
                done, _ = await asyncio.wait(arrived, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
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
            item.delivered.pop(id_, None)
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
        for topic in self._topics.values():
            del topic.subscriptions[self._name]
        self.closed = True

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


class View:
    """Who serves."""

    async def brokers(self) -> list[BrokerView]:
        return [BrokerView("broker-1", "pulsar://127.0.0.1:6650", "broker-1")]

    async def bookies(self) -> list[BookieView]:
        return [BookieView("bookie-1", "127.0.0.1:3181", "default", True, 10, 20)]

    async def close(self) -> None:
        pass


class NamespacesInMemory(NamespaceAdmin):
    """What ``admin.namespaces`` is in a cluster, over metadata in memory that ``begin`` lays out."""

    def __init__(self) -> None:
        self.store = MemoryServer().open_session()
        self.catalog = Catalog(self.store)
        super().__init__(self.store, self.catalog, self._delete_topic)

    async def begin(self, topics: Sequence[str] = ()) -> None:
        """The ground that every cluster has, and some topics."""
        await initialise(self.store)
        for topic in topics:
            await self.catalog.create(TopicName.parse(topic))

    async def _delete_topic(self, topic: str, force: bool) -> None:
        await self.store.delete(Catalog.topic_path(TopicName.parse(topic)))


class FakeBrokers:
    """One broker, which leads; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def list(self) -> Sequence[Mapping[str, Any]]:
        return [{"broker_id": "broker-1", "service_url": "pulsar://127.0.0.1:6650", "is_leader": True}]

    async def loads(self) -> Sequence[Mapping[str, Any]]:
        return [{"broker_id": "broker-1", "cpu_share": 0.5}]

    async def bundles(self, namespace: str) -> Mapping[str, Any]:
        bundle = {"name": "0x00000000_0xffffffff", "owner": "broker-1"}
        return {"boundaries": ["0x00000000", "0xffffffff"], "bundles": [bundle]}

    async def unload_bundle(self, namespace: str, bundle: str) -> object:
        self.asked.append(("unload", namespace, bundle))
        return True

    async def unload_namespace(self, namespace: str) -> object:
        self.asked.append(("unload", namespace))
        return 1

    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> Sequence[str]:
        self.asked.append(("split", namespace, bundle, boundary))
        return ["low", "high"]


class World:
    """The cluster: a client and an admin interface in one."""

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.send_errors: dict[bytes, HeliographError] = {}
        self.held: list[tuple[asyncio.Future[MessageId], MessageId]] | None = None
        self.ack_error: HeliographError | None = None
        self.seek_error: HeliographError | None = None
        self.admin_error: HeliographError | None = None
        self.consumers: list[FakeConsumer] = []
        self.producer_options: dict[str, Any] = {}
        self.schemas = schemas_in_memory()
        self.deliver_at: list[int | None] = []
        self.cursors = FakeCursors()
        self.namespaces = NamespacesInMemory()
        self.brokers = FakeBrokers()

    def add(self, name: str = FLIGHTS, partitions: int = 0) -> FakeTopic:
        topic = self.topics[name] = FakeTopic(name, 100 + len(self.topics), partitions)
        return topic

    def release(self, count: int) -> None:
        """Give the oldest ``count`` receipts that were held back."""
        assert self.held is not None
        for future, id_ in self.held[:count]:
            future.set_result(id_)
        del self.held[:count]

    # the client

    async def producer(self, topic: str, **options: Any) -> FakeProducer:
        self.producer_options = options
        return FakeProducer(self, self._topic(topic))

    async def consumer(self, topic: str | Sequence[str], subscription: str, **options: Any) -> FakeConsumer:
        names = [topic] if isinstance(topic, str) else topic
        consumer = FakeConsumer(self, [self._topic(name) for name in names], subscription, options)
        self.consumers.append(consumer)
        return consumer

    async def reader(self, topic: str, **options: Any) -> FakeConsumer:
        consumer = FakeConsumer(self, [self._topic(topic)], "reader", {"type": "reader"})
        await consumer.seek(options["start"])
        return consumer

    # the admin interface

    async def create_topic(self, topic: str, partitions: int = 0, persistence: dict[str, int] | None = None) -> object:
        if topic in self.topics:
            raise TopicExistsError(f"{topic} exists", field="topic")
        check_quorum(**(persistence or {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}))
        return self.add(topic, partitions)

    async def delete_topic(self, topic: str, force: bool = False) -> object:
        found = self._topic(topic)
        if not force and (found.producers or found.subscriptions):
            raise TopicBusyError(f"{topic} is in use", field="topic")
        return self.topics.pop(topic)

    async def list_topics(self, namespace: str = "public/default") -> Sequence[Mapping[str, Any]]:
        if self.admin_error is not None:
            raise self.admin_error
        if namespace != "public/default":
            raise NamespaceNotFoundError(f"no namespace {namespace}", field="namespace")
        return [{"name": item.name, "partitions": item.partitions} for item in self.topics.values()]

    async def partitions(self, topic: str, may_create: bool = False) -> int:
        if may_create and topic not in self.topics:
            return 0
        return self._topic(topic).partitions

    async def update_partitions(self, topic: str, partitions: int) -> object:
        found = self._topic(topic)
        if partitions < found.partitions:
            raise BadRequestError(f"{topic} cannot shrink", field="partitions")
        found.partitions = partitions
        return None

    async def create_missing_partitions(self, topic: str) -> object:
        return self._topic(topic)

    async def unload_topic(self, topic: str) -> object:
        return self._topic(topic)

    async def topic_stats(self, topic: str) -> Mapping[str, Any]:
        found = self._topic(topic)
        backlog = {name: {"msgBacklog": len(item.pending)} for name, item in found.subscriptions.items()}
        return {"msgInCounter": len(found.messages), "msgRateIn": 1.5, "subscriptions": backlog}

    async def topic_internal_stats(self, topic: str) -> Mapping[str, Any]:
        return {"ledgers": [{"ledgerId": self._topic(topic).ledger_id}], "cursors": {}}

    async def terminate_topic(self, topic: str) -> dict[str, str]:
        found = self._topic(topic)
        found.is_terminated = True
        last = f"{found.ledger_id}:{len(found.messages) - 1}"
        return {str(part): last for part in TopicName.parse(topic).partitions(found.partitions)}

    async def compact_topic(self, topic: str) -> None:
        if self._topic(topic).is_compacting:
            raise ConflictError(f"{topic} is being compacted", field="topic")
        self._topic(topic).is_compacting = True

    async def compaction_status(self, topic: str) -> dict[str, Any]:
        return {"status": "RUNNING" if self._topic(topic).is_compacting else "NOT_RUN", "lastError": ""}

    async def subscriptions(self, topic: str) -> Sequence[str]:
        return sorted(self._topic(topic).subscriptions)

    async def create_subscription(self, topic: str, name: str, position: str = "latest") -> object:
        if name in self._topic(topic).subscriptions:
            raise SubscriptionExistsError(f"{name} exists", field="subscription")
        return self._topic(topic).subscribe(name, position)

    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> object:
        found = self._topic(topic).subscriptions
        if name not in found:
            raise SubscriptionNotFoundError(f"no subscription {name}", field="subscription")
        if found[name].consumers and not force:
            raise ConsumerBusyError(f"{name} has consumers")
        return found.pop(name)

    async def lookup(self, topic: str) -> Mapping[str, Any]:
        return {"broker_id": "broker-1", "service_url": "pulsar://127.0.0.1:6650", "actor_name": "broker-1"}

    def _topic(self, name: str) -> FakeTopic:
        parsed = TopicName.parse(name)
        found = self.topics.get(name) or (self.topics.get(parsed.partitioned_name) if parsed.partition >= 0 else None)
        if found is None:
            raise TopicNotFoundError(f"no topic {name}", field="topic")
        return found


class Gateway:
    """An app over a world, with ways to talk to it."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.app: FastAPI = create_app(self.world, self.world, GatewayConfig(**settings), View())
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False), base_url="http://gateway"
        )

    async def connect(self, path: str) -> Peer:
        """A WebSocket peer, accepted or refused."""
        peer = Peer(self.app, path)
        await peer.upgrade()
        return peer

    async def close(self) -> None:
        await self.http.aclose()
        await self.app.state.services.close()


class Peer:
    """One WebSocket connection: what the app sends, and what it is sent."""

    def __init__(self, app: FastAPI, path: str) -> None:
        url = httpx.URL(f"ws://gateway{path}")
        self._scope = {
            "type": "websocket",
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "headers": [(b"host", b"gateway")],
            "subprotocols": [],
            "extensions": {"websocket.http.response": {}},
            "app": app,
        }
        self._app = app
        self._to_app: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self.status = 0  # 101, or the HTTP status of the refusal
        self.body: dict[str, Any] = {}

    async def upgrade(self) -> None:
        self._to_app.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.ensure_future(self._app(self._scope, self._to_app.get, self._from_app.put))
        first = await self._next()
        if first["type"] == "websocket.accept":
            self.status = 101
            return
        assert first["type"] == "websocket.http.response.start", first
        self.status = first["status"]
        self.body = json.loads((await self._next())["body"])

    def send(self, frame: object) -> None:
        """Send a frame: text as it is, anything else as JSON."""
        text = frame if isinstance(frame, str) else json.dumps(frame)
        self._to_app.put_nowait({"type": "websocket.receive", "text": text})

    def send_bytes(self, data: bytes) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "bytes": data})

    async def receive(self) -> dict[str, Any]:
        """The app's next frame."""
        message = await self._next()
        assert message["type"] == "websocket.send", message
        frame = json.loads(message["text"])
        assert isinstance(frame, dict)
        return frame

    async def closed(self) -> tuple[int, str]:
        """Code and reason with which the app closes."""
        message = await self._next()
        assert message["type"] == "websocket.close", message
        return message["code"], message["reason"]

    def is_quiet(self) -> bool:
        """Whether the app has sent nothing that was not received."""
        return self._from_app.empty()

    async def leave(self) -> None:
        """Disconnect, and wait until the app is through with the session."""
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1001})
        await asyncio.wait_for(self._task, WAIT_SECONDS)

    async def _next(self) -> MutableMapping[str, Any]:
        return await asyncio.wait_for(self._from_app.get(), WAIT_SECONDS)


async def settle() -> None:
    """Let everything that can run now, run."""
    for _ in range(50):
        await asyncio.sleep(0)


def run(scenario: Callable[[Gateway], Coroutine[Any, Any, T]], **settings: Any) -> T:
    """Run a scenario against a gateway of its own."""

    async def whole() -> T:
        gateway = Gateway(**settings)
        try:
            return await scenario(gateway)
        finally:
            await gateway.close()

    return asyncio.run(whole())
