"""A topic that is not served any more goes at once: it may be frozen, and then no collection looks at it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from dataclasses import replace
from weakref import ref

import pytest

from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.base.errors import ServiceNotReadyError
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.topic_world import listen, publish
from tests.unit.broker.world import turns


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def opened(lone: LoneBroker, name: str) -> list[ref[object]]:
    """Open a topic that is used in all ways, and return what it consists of."""
    await lone.broker.ownership.resolve(TopicName.parse(name))
    topic = await lone.broker.topics.get(TopicName.parse(name), may_create=True)
    if topic.name.is_persistent:
        topic.apply_policies(replace(topic.policies, deduplication=True))
        await turns(lambda: topic.admission.dedup.current is not None)
    for number, kind in enumerate(SubscriptionType):
        subscription = await topic.subscribe(f"s{number}", start=0)
        consumer, _ = listen(subscription, kind)
        await publish(topic.ledger, "k")
        subscription.remove_consumer(consumer)
    parts = (topic, topic.ledger, topic.ledger.chain, topic.admission, topic.compaction, topic.recoveries)
    cursors = [part for one in topic.subscriptions.values() for part in (one, one.cursor, one.dispatcher, one.delays)]
    return [ref(one) for one in (*parts, *cursors)]


@pytest.mark.parametrize("name", ["t", "non-persistent://public/default/t"])
@pytest.mark.parametrize("is_lost", [False, True])
async def test_topics_go_without_a_collector(name: str, is_lost: bool, no_collector: None) -> None:
    async with LoneBroker("t") as lone:
        broker = lone.broker
        left = await opened(lone, name)
        assert all(one() is not None for one in left)
        if is_lost:
            broker.topics.abandon_all(ServiceNotReadyError("another broker has it"))
        else:
            await broker.topics.unload(TopicName.parse(name))
        await broker.upkeep.round()
        assert broker._load is not None
        await broker._load.look()
        await broker.topics.sample_rates()
        broker.statistics()
        for _ in range(20):
            await asyncio.sleep(0)
        assert [type(one()).__name__ for one in left if one() is not None] == []
