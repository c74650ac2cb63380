"""A small cluster in memory for the gateway's tests, and a gateway over it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

import httpx
from fastapi import FastAPI

from heliograph.actors.broker.admin.bookies import BookieAdminService
from heliograph.actors.broker.admin.namespaces import NamespaceAdminService
from heliograph.actors.broker.admin.permissions import PermissionAdminService
from heliograph.actors.broker.admin.settings import SettingAdminService
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.dynamic.live_config import LiveConfig
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.ledger.driver.placements import BUILT_IN
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    ConsumerBusyError,
    HeliographError,
    NamespaceNotFoundError,
    NotFoundError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    TopicBusyError,
    TopicExistsError,
    TopicNotFoundError,
)
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.ports import BookieView
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import BookieRegistration, BrokerRegistration, check_quorum
from heliograph.metadata.operator_records import ClusterReport, PartReport, Wish
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.operations.admin import AdminOperations
from heliograph.operations.brokers import BrokerOperations
from heliograph.operations.table import Answer
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.schema_world import schemas_in_memory
from tests.unit.gateway.clients import FakeConsumer, FakeCursors, FakeProducer, FakeTopic
from tests.unit.gateway.peer import Peer

T = TypeVar("T")
FLIGHTS = "persistent://public/default/flights"
FLIGHTS_PATH = "persistent/public/default/flights"


class View:
    """A cluster view with one broker and one bookie."""

    async def brokers(self) -> list[BrokerRegistration]:
        return [BrokerRegistration("broker-1", "pulsar://127.0.0.1:6650", "broker-1")]

    async def bookies(self) -> list[BookieView]:
        return [BookieView("bookie-1", "127.0.0.1:3181", "default", True, 10, 20)]

    async def report(self) -> ClusterReport:
        broker = PartReport("broker-1", "broker", "ALIVE", 1, address="pulsar://127.0.0.1:6650")
        bookie = PartReport("bookie-1", "bookie", "ALIVE", 1, address="127.0.0.1:3181", rack="default")
        return ClusterReport(
            "operator", 1, parts=(broker, bookie), bookies_available=("bookie-1",), underreplicated_ledgers=0
        )

    async def wishes(self) -> list[Wish]:
        return []

    async def close(self) -> None:
        pass


class NamespacesInMemory(NamespaceAdminService):
    """The implementation of ``admin.namespaces`` in a cluster, over metadata in memory that ``begin`` creates."""

    def __init__(self) -> None:
        self.store = MemoryServer().open_session()
        self.catalog = Catalog(self.store)
        super().__init__(self.store, self.catalog, BUILT_IN, self._delete_topic)

    async def begin(self, topics: Sequence[str] = ()) -> None:
        """Create the nodes that every cluster has, and some topics."""
        await initialise(self.store)
        bookie = BookieRegistration("bookie-1", "127.0.0.1:3181")
        await self.store.create(paths.bookie_available("bookie-1"), codec.encode(bookie))
        for topic in topics:
            await self.catalog.create(TopicName.parse(topic))

    async def _delete_topic(self, topic: str, force: bool) -> None:
        await self.store.delete(Catalog.topic_path(TopicName.parse(topic)))


class FakeBrokers(BrokerOperations):
    """One broker, which is the leader; it records the calls."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def list(self) -> tuple[Answer, ...]:
        return ({"broker_id": "broker-1", "service_url": "pulsar://127.0.0.1:6650", "is_leader": True},)

    async def loads(self) -> tuple[Answer, ...]:
        return ({"broker_id": "broker-1", "cpu_share": 0.5},)

    async def owned(self, broker_id: str) -> dict[str, tuple[str, ...]]:
        return {"public/default": ("0x00000000_0xffffffff",)}

    async def topics(self, broker_id: str) -> dict[str, str]:
        return {FLIGHTS: "0x00000000_0xffffffff"}

    async def configuration(self, broker_id: str) -> dict[str, str]:
        return {"port": "0"}

    async def followed(self, trace_id: str) -> tuple[Answer, ...]:
        return ({"topic": FLIGHTS, "message_id": "7:3", "steps": [{"step": "receipt", "trace": trace_id}]},)

    async def check_quotas(self) -> int:
        self.asked.append(("check",))
        return 1

    async def bundles(self, namespace: str) -> Answer:
        bundle = {"name": "0x00000000_0xffffffff", "owner": "broker-1"}
        return {"boundaries": ["0x00000000", "0xffffffff"], "bundles": [bundle]}

    async def unload_bundle(self, namespace: str, bundle: str) -> bool:
        self.asked.append(("unload", namespace, bundle))
        return True

    async def unload_namespace(self, namespace: str) -> int:
        self.asked.append(("unload", namespace))
        return 1

    async def split_bundle(self, namespace: str, bundle: str, boundary: str | int | None = None) -> tuple[str, ...]:
        self.asked.append(("split", namespace, bundle, boundary))
        return ("low", "high")


async def _upper(value: bytes) -> AsyncGenerator[bytes]:
    yield value.upper()


class World(AdminOperations):
    """A cluster in memory: a client and an admin interface in one."""

    unpacked: Any = None

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.send_errors: dict[bytes, HeliographError] = {}
        self.held: list[tuple[asyncio.Future[MessageId], MessageId]] | None = None
        self.ack_error: HeliographError | None = None
        self.seek_error: HeliographError | None = None
        self.unsubscribe_error: HeliographError | None = None
        self.admin_error: HeliographError | None = None
        self.consumers: list[FakeConsumer] = []
        self.producer_options: dict[str, Any] = {}
        self.request_options: dict[str, Any] = {}
        self.answer: Callable[[bytes], AsyncGenerator[bytes]] = _upper  # of the responders
        self.schemas = schemas_in_memory()
        self.deliver_at: list[int | None] = []
        self.cursors: FakeCursors = FakeCursors()
        self.namespaces: NamespacesInMemory = NamespacesInMemory()
        self.brokers: FakeBrokers = FakeBrokers()
        self.bookies: BookieAdminService = BookieAdminService(self.namespaces.store)
        self.permissions = PermissionAdminService(self.namespaces.store, self.namespaces.catalog, is_enforced=False)
        live = LiveConfig(BrokerConfig("broker-1"), self.namespaces.store)
        self.settings: SettingAdminService = SettingAdminService(live)

    async def request(self, topic: str, value: Any, **options: Any) -> bytes | None:
        self.request_options = options
        return await anext(self.stream_request(topic, value, **options), None)

    async def stream_request(self, topic: str, value: Any, **options: Any) -> AsyncGenerator[bytes]:
        self.request_options = options
        async with contextlib.aclosing(self.answer(value)) as parts:
            async for part in parts:
                yield part

    def add(self, name: str = FLIGHTS, partitions: int = 0) -> FakeTopic:
        topic = self.topics[name] = FakeTopic(name, 100 + len(self.topics), partitions)
        return topic

    def release(self, count: int) -> None:
        """Release the oldest ``count`` receipts that were held back."""
        assert self.held is not None
        for future, id_ in self.held[:count]:
            future.set_result(id_)
        del self.held[:count]

    # -- the client

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

    # -- the admin interface

    async def bundle_of(self, topic: str) -> str:
        if self.admin_error is not None:
            raise self.admin_error
        return "0x00000000_0xffffffff"

    async def create_topic(
        self,
        topic: str,
        partitions: int = 0,
        persistence: Mapping[str, int] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        if topic in self.topics:
            raise TopicExistsError(f"{topic} exists", field="topic")
        check_quorum(**(persistence or {"ensemble_size": 3, "write_quorum": 3, "ack_quorum": 2}))
        self.add(topic, partitions).properties = dict(properties or {})

    async def topic_properties(self, topic: str) -> dict[str, str]:
        return self._topic(topic).properties

    async def update_topic_properties(self, topic: str, properties: Mapping[str, str]) -> None:
        self._topic(topic).properties.update(properties)

    async def remove_topic_properties(self, topic: str, names: Sequence[str]) -> None:
        for name in names:
            self._topic(topic).properties.pop(name, None)

    async def topic_record(self, topic: str) -> Answer:
        return {
            "version": 3,
            "created_ms": 1_700_000_000_000,
            "modified_ms": 1_700_000_001_000,
            "terminated_at": [100, 7],
            "ledgers": [{"ledger_id": 100, "entries": 8, "size": 80, "closed_ms": 9}],
            "properties": self._topic(topic).properties,
            "cursors": {"s": {"ledger_id": 5, "mark_delete": [100, -1], "properties": {}}},
        }

    async def trim_topic(self, topic: str) -> int:
        self._topic(topic).cut.append("trim")
        return 1

    async def truncate_topic(self, topic: str) -> int:
        self._topic(topic).cut.append("truncate")
        return 2

    async def delete_topic(self, topic: str, force: bool = False) -> None:
        found = self._topic(topic)
        if not force and (found.producers or found.subscriptions):
            raise TopicBusyError(f"{topic} is in use", field="topic")
        self.topics.pop(topic)

    async def list_topics(
        self, namespace: str = "public/default", after: str = "", limit: int = 0, prefix: str = "", domain: str = ""
    ) -> list[Answer]:
        if self.admin_error is not None:
            raise self.admin_error
        if namespace != "public/default":
            raise NamespaceNotFoundError(f"no namespace {namespace}", field="namespace")
        found = sorted((item for item in self.topics.values() if item.name > after), key=lambda item: item.name)
        kept = [item for item in found if item.name.rpartition("/")[2].startswith(prefix)][: limit or None]
        return [{"name": item.name, "partitions": item.partitions} for item in kept]

    async def partitions(self, topic: str, may_create: bool = False) -> int:
        if may_create and topic not in self.topics:
            return 0
        return self._topic(topic).partitions

    async def update_partitions(self, topic: str, partitions: int) -> None:
        found = self._topic(topic)
        if partitions < found.partitions:
            raise BadRequestError(f"{topic} cannot shrink", field="partitions")
        found.partitions = partitions

    async def create_missing_partitions(self, topic: str) -> int:
        self._topic(topic)
        return 0

    async def unload_topic(self, topic: str) -> None:
        self._topic(topic)

    async def topic_stats(self, topic: str) -> Answer:
        found = self._topic(topic)
        subscriptions = {
            name: {"msgBacklog": len(item.pending), "consumers": [{"consumerName": "c"}]}
            for name, item in found.subscriptions.items()
        }
        publishers = [{"producerName": "p"}]
        return {
            "msgInCounter": len(found.messages),
            "msgRateIn": 1.5,
            "publishers": publishers,
            "subscriptions": subscriptions,
        }

    async def topic_ledgers(self, topic: str, after: int = -1) -> Answer:
        self._topic(topic)
        return {"total": 0, "ledgers": [], "has_more": False}

    async def topic_internal_stats(self, topic: str) -> Answer:
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

    async def topic_history(self, topic: str) -> dict[str, Any]:
        self._topic(topic)
        return {"step_seconds": 10.0, "age_seconds": 1.0, "series": [[["in_messages_rate", topic], [None, 2.0]]]}

    async def compaction_status(self, topic: str) -> dict[str, Any]:
        return {"status": "RUNNING" if self._topic(topic).is_compacting else "NOT_RUN", "lastError": ""}

    async def subscriptions(self, topic: str) -> list[str]:
        return sorted(self._topic(topic).subscriptions)

    async def create_subscription(
        self, topic: str, name: str, position: str = "latest", properties: Mapping[str, str] | None = None
    ) -> None:
        if name in self._topic(topic).subscriptions:
            raise SubscriptionExistsError(f"{name} exists", field="subscription")
        self.cursors.attached = dict(properties or {})
        self._topic(topic).subscribe(name, position)

    async def delete_subscription(self, topic: str, name: str, force: bool = False) -> None:
        found = self._topic(topic).subscriptions
        if name not in found:
            raise SubscriptionNotFoundError(f"no subscription {name}", field="subscription")
        if found[name].consumers and not force:
            raise ConsumerBusyError(f"{name} has consumers")
        found.pop(name)

    async def lookup(self, topic: str, listener: str = "") -> dict[str, str]:
        if listener:
            return {"broker_id": "broker-1", "service_url": f"pulsar://{listener}:6650", "service_url_tls": ""}
        return {"broker_id": "broker-1", "service_url": "pulsar://127.0.0.1:6650", "actor_name": "broker-1"}

    def _topic(self, name: str) -> FakeTopic:
        parsed = TopicName.parse(name)
        found = self.topics.get(name) or (self.topics.get(parsed.partitioned_name) if parsed.partition >= 0 else None)
        if found is None:
            raise TopicNotFoundError(f"no topic {name}", field="topic")
        return found


class NoParts:
    """The parts of a cluster that has none."""

    async def names(self) -> list[str]:
        return []

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        raise NotFoundError(f"this cluster has no part {part}", field="part")


class Gateway:
    """An app over a world, with clients for HTTP and WebSocket."""

    def __init__(self, **settings: Any) -> None:
        self.world = World()
        self.app: FastAPI = create_app(cast(Any, self.world), self.world, GatewayConfig(**settings), View(), NoParts())
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url="http://127.0.0.1:8080",
            headers={"Content-Type": "application/json"},
        )

    async def connect(self, path: str, **given: Any) -> Peer:
        """Return a WebSocket peer, accepted or refused."""
        peer = Peer(self.app, path, **given)
        await peer.upgrade()
        return peer

    async def close(self) -> None:
        await self.http.aclose()
        await self.app.state.services.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def settle() -> None:
    """Run the loop until every task that can run has run."""
    for _ in range(50):
        await asyncio.sleep(0)
