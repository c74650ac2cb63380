"""A topic on ledgers and metadata in memory, and consumers without sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import ConsumerChannel, SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.stats import RateSampler
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import SteadyClock, wall_ms
from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, full_head
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.world import Outcomes, World, turns


class FakeTopics:
    """Loaded topics, as periodic jobs see them, and the queue of one job."""

    def __init__(self, topics: Iterable[Any] = ()) -> None:
        self.changed = self.load = self.upkeep = ChangedTopics(1)
        self.rates = RateSampler(ChangedTopics(2), self.find)
        self.ages = SteadyClock()
        self.is_certain = True
        self.unloaded: list[TopicName] = []
        self._loaded: dict[TopicName, Any] = {}
        for topic in topics:
            self.add(topic)

    @property
    def loaded(self) -> list[Any]:
        return list(self._loaded.values())

    @property
    def count(self) -> int:
        return len(self._loaded)

    def count_of_bundle(self, path: str) -> int:
        return sum(topic.bundle == path for topic in self.loaded)

    def find(self, name: TopicName) -> Any:
        return self._loaded.get(name)

    def add(self, topic: Any) -> None:
        """Load a topic that was made, or one that was loaded before."""
        topic.activity = TopicActivity(topic.name, (self.changed,))
        topic.activity.note()
        self._loaded[topic.name] = topic

    def remove(self, topic: Any) -> None:
        """Close a topic."""
        del self._loaded[topic.name]
        topic.activity.note()

    async def unload(self, name: TopicName) -> None:
        self.unloaded.append(name)
        self.remove(self._loaded[name])


async def topic_on(world: World, store: MemoryStore) -> BrokerTopic:
    """Open the world's topic as a new owner."""
    ledger = await world.open(store)
    reader = TopicReader(ledger.chain, TailCache(1 << 20), world.ledgers)
    path = ledger._owned.path
    topic = BrokerTopic(world.topic, path, "/bundle", ledger, reader, store, world.ledgers, world.policies)
    await topic.load_subscriptions()
    with contextlib.suppress(HeliographError):
        await topic.recoveries.all_recovered()
    return topic


async def publish(ledger: ManagedLedger, *keys: str, times: list[int] | None = None, due_ms: int = 0) -> None:
    """Publish one message for each key at the given times; its value is its index in the list."""
    outcomes = Outcomes()
    for number, key in enumerate(keys):
        value = b"%d" % number
        metadata = pb.MessageMetadata(
            producer_name="p", sequence_id=number, publish_time=times[number] if times else number + 1
        )
        if due_ms:
            metadata.deliver_at_time = due_ms
        outcomes.publish_bytes(ledger, encode_single(metadata, full_head(len(value), key, None, None), value))
        await turns(lambda: not ledger.pending)


async def rolled(world: World, store: MemoryStore, keys: str, times: list[int] | None = None) -> BrokerTopic:
    """Return a topic with a message for each key, in ledgers of three. All but the last may be trimmed."""
    world.policies = replace(world.policies, ledger_entries_max=3, retention_seconds=0)
    topic = await topic_on(world, store)
    await publish(topic.ledger, *keys, times=times)
    await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
    return topic


def let_pass(topic: BrokerTopic, seconds: int) -> None:
    """Make every entry of a topic so much older."""
    topic.ledger.ages.now_ms = lambda: wall_ms() + 1_000 * seconds  # type: ignore[method-assign]


async def finish(topic: BrokerTopic) -> None:
    """Wait for the end of a compaction, which works on threads."""
    if topic.compaction._task is not None:
        await asyncio.wait([topic.compaction._task])
        await turns(lambda: not topic.compaction.is_running)


class Ear(ConsumerChannel):
    """The channel of one consumer, which records what it is told."""

    peer = "ear"
    client_version = "test"

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.positions: list[Position] = []
        self.were_alone: list[bool] = []
        self.is_closed = False

    @override
    def push(self, consumer: SubscriptionConsumer, position: Position, entry: TopicEntry, *rest: Any) -> None:
        self.were_alone.append(rest[2])
        self.keys.append(entry.sticky_key.decode())
        self.positions.append(position)

    @override
    def close_consumer(self, consumer: SubscriptionConsumer) -> None:
        self.is_closed = True

    @override
    def probe(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    @override
    def reached_end(self, consumer: SubscriptionConsumer) -> None:
        pass

    @override
    def active_changed(self, consumer: SubscriptionConsumer, is_active: bool) -> None:
        pass


def listen(
    subscription: Subscription,
    kind: SubscriptionType,
    permits: int = 1_000,
    key_ranges: tuple[tuple[int, int], ...] | None = None,
) -> tuple[SubscriptionConsumer, Ear]:
    """Connect a consumer to the subscription and return it with its channel."""
    ear = Ear()
    consumer = SubscriptionConsumer(1, "", 0, -1, ear)
    consumer.state.key_ranges = key_ranges
    subscription.add_consumer(consumer, kind)
    subscription.flow(consumer, permits)
    return consumer, ear
