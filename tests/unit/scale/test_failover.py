"""What a topic that is taken over costs, counted: requests to the store, which a busy machine does not change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.protocol.topic_name import TopicName
from tests.scale.cluster import ScaleCluster

TOPICS = 200
# Reads of the topic's record and of its last ledger's, and the check of the ownership; writes of that ledger as being
# recovered and as closed, and of the record; for the first message, the new ledger, and its name in the record.
REQUESTS = 8
REQUESTS_OF_ALL = 300  # of the broker's start, its bundles, and ids of ledgers, which topics share


@pytest.mark.slow
def test_a_topic_that_is_taken_over_costs_few_requests(tmp_path: Path) -> None:
    names = [TopicName.parse(f"taken-{number}") for number in range(TOPICS)]

    async def publish(cluster: ScaleCluster) -> None:
        broker = cluster.broker

        async def one(name: TopicName) -> None:
            await broker.ownership.resolve(name, authoritative=True)
            topic = await broker.topics.get(name, may_create=True)
            assert await broker.admin.publish(str(name), [b"x"])
            assert topic.ledger.messages, "it was confirmed"

        await asyncio.gather(*map(one, names))

    async def taken_over(cluster: ScaleCluster) -> int:
        await publish(cluster)
        await cluster.parts.sessions.end_predecessor()
        store = cluster.parts.sessions._store
        assert store is not None
        await store.close()  # a killed broker closes none of its topics
        await cluster.parts.sessions.stop()
        before = cluster._counter.calls  # what it asked for while it ended is not the successor's
        cluster.parts.service_url = await cluster.parts.sessions.start()
        await asyncio.gather(*(opened(cluster, name) for name in names))
        return cluster._counter.calls - before

    async def opened(cluster: ScaleCluster, name: TopicName) -> None:
        await cluster.broker.ownership.resolve(name, authoritative=True)
        topic = await cluster.broker.topics.get(name)
        topic.ledger._wake()  # as the first message does
        await asyncio.gather(*topic.ledger._tasks)
        assert topic.ledger.state is WriteState.WRITING

    with ScaleCluster(tmp_path) as cluster:
        assert cluster.run(taken_over(cluster)) <= REQUESTS * TOPICS + REQUESTS_OF_ALL
