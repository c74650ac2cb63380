"""A topic on ledgers and metadata in memory, and consumers without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from actors.broker.consumer import Consumer
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.position import Position
from actors.broker.subscription import Subscription
from actors.broker.subscription_type import SubscriptionType
from actors.broker.tail_cache import TailCache
from actors.broker.topic import Topic
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, full_head
from metadata.memory import MemoryStore
from tests.unit.broker_world import Outcomes, World, turns


def run(scenario: Callable[[World, MemoryStore], Awaitable[None]]) -> None:
    """Play a scenario in a world of its own."""

    async def main() -> None:
        world = World()
        await scenario(world, await world.session())

    asyncio.run(main())


async def topic_on(world: World, store: MemoryStore) -> Topic:
    """The world's topic, as a new owner opens it."""
    ledger = await world.open(store)
    reader = TopicReader(ledger.chain, TailCache(1 << 20), world.ledgers)
    path = ledger._owned.path
    topic = Topic(world.topic, path, "/bundle", ledger, reader, store, world.ledgers, world.policies)
    await topic.load_subscriptions()
    return topic


async def publish(ledger: ManagedLedger, *keys: str, times: list[int] | None = None, due_ms: int = 0) -> None:
    """One message for each key, published at these times; the number of its place is its value."""
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


async def finish(topic: Topic) -> None:
    """Wait for the end of a compaction, which works on threads."""
    if topic.compaction._task is not None:
        await asyncio.wait([topic.compaction._task])
        await turns(lambda: not topic.compaction.is_running)


class Ear:
    """The channel of one consumer: notes what it is told."""

    def __init__(self) -> None:
        self.peer = "ear"
        self.client_version = "test"
        self.keys: list[str] = []
        self.positions: list[Position] = []
        self.is_closed = False

    def push(self, consumer: Consumer, position: Position, entry: TopicEntry, *rest: Any) -> None:
        """See ConsumerChannel."""
        self.keys.append(entry.sticky_key.decode())
        self.positions.append(position)

    def close_consumer(self, consumer: Consumer) -> None:
        """See ConsumerChannel."""
        self.is_closed = True

    def probe(self) -> asyncio.Future[None]:
        """See ConsumerChannel."""
        return asyncio.get_running_loop().create_future()

    def reached_end(self, consumer: Consumer) -> None:
        """See ConsumerChannel."""

    def active_changed(self, consumer: Consumer, is_active: bool) -> None:
        """See ConsumerChannel."""


def listen(
    subscription: Subscription,
    kind: SubscriptionType,
    permits: int = 1_000,
    key_ranges: tuple[tuple[int, int], ...] | None = None,
) -> tuple[Consumer, Ear]:
    """A consumer of the subscription, with what it hears."""
    ear = Ear()
    consumer = Consumer(1, "", 0, -1, ear)
    consumer.state.key_ranges = key_ranges
    subscription.add_consumer(consumer, kind)
    subscription.flow(consumer, permits)
    return consumer, ear
