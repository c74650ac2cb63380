"""Backlogs in messages equal those of a plain model, whatever happens to the topic and its subscriptions."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.message_count import COUNTED
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.backlog_quota import EVICTION
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.message_count import (
    MessageBacklog,
    ReadAllowance,
    count_messages,
    message_backlog,
)
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.series import topic_series
from heliograph.actors.broker.topic.stats import count_backlogs, topic_stats
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.expiry import expire_up_to
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.entry import encode_broker_metadata
from tests.unit.broker.topic_world import listen, topic_on
from tests.unit.broker.world import Outcomes, World, turns

SHARED, EXCLUSIVE = SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE
NAMES = {"workers": SHARED, "reader": EXCLUSIVE, "idle": EXCLUSIVE}


class Model:
    """The topic and the subscriptions as a plain program knows them: sets of messages by their position."""

    def __init__(self, world: World, store: MemoryStore, topic: BrokerTopic) -> None:
        self.world = world
        self.store = store
        self.topic = topic
        self.sizes: dict[Position, int] = {}
        self.open: dict[str, set[tuple[Position, int]]] = {name: set() for name in NAMES}
        self.consumers: dict[str, SubscriptionConsumer] = {}
        self.outcomes = Outcomes()

    async def connect(self) -> None:
        self.consumers = {name: listen(self[name], kind)[0] for name, kind in NAMES.items() if name != "idle"}
        await self.settled()

    def __getitem__(self, name: str) -> Subscription:
        return self.topic.subscriptions[name]

    async def settled(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def publish(self, *sizes: int) -> None:
        before = len(self.outcomes.confirmed)
        for size in sizes:
            self.outcomes.publish_bytes(self.topic.ledger, batch(size))
        await turns(lambda: len(self.outcomes.confirmed) == before + len(sizes))
        for (_, position), size in zip(self.outcomes.confirmed[before:], sizes, strict=True):
            self.sizes[position] = size
            for messages in self.open.values():
                messages.update((position, at) for at in range(size))
        await self.settled()

    def acknowledge(self, name: str, position: Position, done: set[int], *, by_index: bool = True) -> None:
        """Acknowledge some messages of an entry."""
        self.open[name] -= {(position, at) for at in done}
        left = sum(1 << at for at in range(self.sizes[position]) if at not in done)
        whole = 0 if position.entry_id % 2 else None  # clients name a whole entry in both ways
        self[name].acknowledge([(position, left or whole)], self.consumers.get(name) if by_index else None)

    async def persist(self) -> None:
        for subscription in self.topic.subscriptions.values():
            durable = subscription.persist()
            assert durable is not None
            await durable

    async def own(self, *, orderly: bool) -> None:
        """Let another broker open the topic."""
        if orderly:
            await self.topic.close()
        else:
            await self.persist()
        self.topic = await topic_on(self.world, self.store)
        await self.connect()

    async def check(self) -> None:
        await count_backlogs(self.topic, ReadAllowance())
        for name in NAMES:
            backlog = message_backlog(self[name], self.topic.ledger)
            assert backlog == MessageBacklog(len(self.open[name]), 0), name


def batch(size: int) -> bytes:
    return encode_entry_of("p", 1, 1, [b"%d" % at for at in range(size)])


def stamp_without_number(self: EntryStamp, entry: TopicEntry) -> None:
    block = encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=self.now_ms(), latest_published=1))
    entry.payload, entry.broker_bytes, entry.stored_ms = block + entry.payload, len(block), self.time_ms


@pytest.fixture
async def model(world: World, store: MemoryStore) -> Model:
    world.policies = replace(world.policies, ledger_entries_max=4, retention_seconds=0)
    topic = await topic_on(world, store)
    for name in NAMES:
        await topic.subscribe(name, start=0)
    model = Model(world, store, topic)
    await model.connect()
    return model


async def test_a_batch_of_1000_is_a_backlog_of_1000(model: Model) -> None:
    await model.publish(1000)
    await model.check()
    stats = topic_stats(model.topic, "b")["subscriptions"]["idle"]
    assert (stats["msgBacklog"], stats["backlogMessages"], stats["backlogEntriesUncounted"]) == (1, 1000, 0)
    rows, _ = await topic_series([model.topic])
    assert [value for _, value in rows["heliograph_subscription_backlog_messages"]] == [1000] * 3
    assert [value for _, value in rows["heliograph_namespace_backlog_messages"]] == [3000]
    model.topic.ledger.policies = replace(model.topic.ledger.policies, backlog_quota_bytes=1)
    assert "has 1000 messages" in str(model.topic.admission.quota.refusal())


async def test_what_expires_and_is_evicted_counts_messages(model: Model) -> None:
    await model.publish(10, 20, 30)
    model.acknowledge("idle", model.topic.ledger.chain.position_at(0), {0, 1, 2})
    model.acknowledge("idle", model.topic.ledger.chain.position_at(2), {5})
    assert await expire_up_to(model.topic, model["idle"], 2, "a test says so") == 2
    stats = topic_stats(model.topic, "b")["subscriptions"]["idle"]
    assert (stats["totalMsgExpired"], stats["backlogMessages"]) == (27, 29)
    policies = model.topic.ledger.policies
    model.topic.ledger.policies = replace(policies, backlog_quota_bytes=0, backlog_quota_action=EVICTION)
    for name in NAMES.keys() - {"idle"}:
        model[name].skip(None)
    await model.topic.admission.quota.check()
    assert model.topic.admission.quota.evicted == 29


@pytest.mark.parametrize("seed", range(40))
async def test_a_backlog_in_messages_equals_the_model(model: Model, seed: int) -> None:
    chance = random.Random(seed)
    counts_often = chance.random() < 0.5
    for _ in range(50):
        name = chance.choice(["workers", "workers", "reader"])
        known = sorted({position for position, _ in model.open[name]})
        turn = chance.random()
        if turn < 0.4 or not known:
            await model.publish(*(chance.choice((1, 1, 2, 7)) for _ in range(chance.randrange(1, 4))))
        elif turn < 0.6:
            position = chance.choice(known)
            model.acknowledge(name, position, set(range(model.sizes[position])), by_index=chance.random() < 0.9)
        elif turn < 0.75:
            position = chance.choice(known)
            done = {at for at in range(model.sizes[position]) if (position, at) not in model.open[name]}
            done |= {at for at in range(model.sizes[position]) if chance.random() < 0.5}
            if done:
                model.acknowledge(name, position, done)
        elif turn < 0.8:
            position = chance.choice(known)
            model[name].acknowledge_cumulative(position)
            model.open[name] = {one for one in model.open[name] if one[0] > position}
        elif turn < 0.84:
            kept = [p for p in model.sizes if model.topic.ledger.chain.find(p) is not None]
            position = chance.choice(kept)
            mark = model.topic.ledger.chain.find(position)
            assert mark is not None
            await model[name].reset(mark)
            model.open[name] = {(p, at) for p in kept if p >= position for at in range(model.sizes[p])}
            model.consumers[name] = listen(model[name], NAMES[name])[0]
        elif turn < 0.9:
            await model.topic.ledger.roll()
            model["idle"].skip(None)
            model.open["idle"].clear()
            await model.topic.trim()
        else:
            await model.own(orderly=chance.random() < 0.5)
        await model.settled()
        if counts_often:
            await model.check()
    await model.check()


async def test_the_next_owner_reads_no_entry_of_a_cursor_that_was_counted(model: Model) -> None:
    await model.publish(5, 6, 7, 8)
    first, second, third, _ = sorted(model.sizes)
    await model.check()
    model.acknowledge("workers", first, set(range(5)))
    model.acknowledge("workers", third, set(range(7)))
    model.acknowledge("workers", second, {0, 1})
    await model.own(orderly=True)
    await count_backlogs(model.topic, ReadAllowance(0))
    assert message_backlog(model["workers"], model.topic.ledger) == MessageBacklog(4 + 8, 0)


async def test_what_may_not_be_read_counts_as_one_message_an_entry(model: Model) -> None:
    await model.publish(5, 6, 7)
    await model.own(orderly=True)
    await model["reader"].reset(1)
    topic = model.topic
    for reads, expected in ((0, MessageBacklog(2, 2)), (1, MessageBacklog(13, 0))):
        await count_messages(model["reader"], topic.ledger, topic.reader, ReadAllowance(reads))
        assert message_backlog(model["reader"], topic.ledger) == expected


async def test_entries_of_an_earlier_release_count_as_one_message_each(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It serves the topic for a while during a rolling upgrade, and keeps what it does not know of the record."""
    await model.publish(5)
    with monkeypatch.context() as patch:
        patch.setattr(EntryStamp, "stamp", stamp_without_number)
        patch.setattr(EntryStamp, "noted", lambda self, record, *rest: record)
        await model.own(orderly=True)
        await model.publish(6, 7)
        await model.persist()
    await model.own(orderly=False)
    await model.publish(8)
    await count_backlogs(model.topic, ReadAllowance())
    assert message_backlog(model["idle"], model.topic.ledger) == MessageBacklog(3 + 8, 3)
    old = sorted(model.sizes)[:3]
    for position in old:
        model.acknowledge("workers", position, set(range(model.sizes[position])))
    await count_backlogs(model.topic, ReadAllowance())
    assert message_backlog(model["workers"], model.topic.ledger) == MessageBacklog(8, 0)
    await model.own(orderly=True)
    assert COUNTED in model.topic.ledger.record.properties
    await count_backlogs(model.topic, ReadAllowance())
    assert message_backlog(model["workers"], model.topic.ledger) == MessageBacklog(8, 0)
