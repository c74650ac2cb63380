"""A namespace with many topics is listed, searched and consumed from by a pattern, and survives broker and store."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.scale.cluster import ScaleCluster
from tests.scale.filling import NAMESPACE, TENANT, fill, topic_name

TOPICS = 1_000_000 if os.environ.get("FULL", "") not in ("", "0") else 20_000
MATCHING = 10  # topics whose names begin alike
SECONDS_MAX = 60.0


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path / "data" / "metadata", topics=TOPICS)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_a_large_namespace_is_used_and_survives_broker_and_store(directory: Path) -> None:
    prefix = topic_name(TOPICS // 2)[:-1]

    async def listed(cluster: ScaleCluster, beginning: str = "") -> int:
        found, last = 0, ""
        async for page in cluster.broker.admin.topic_pages(f"{TENANT}/{NAMESPACE}", prefix=beginning):
            names = [str(topic["name"]) for topic in page]
            assert sorted(names) == names, "a page is in order"
            assert names[0] > last, "and after the one before"
            found, last = found + len(names), names[-1]
        return found

    async def consumed(cluster: ScaleCluster, value: str) -> None:
        client = await cluster.client()
        try:
            consumer = await client.consumer(re.compile(f"{prefix}.*"), "s", type="shared", initial_position="earliest")
            for number in range(MATCHING):
                async with client.producer(f"{prefix}{number}") as producer:
                    await producer.send(f"{value} {number}")
            found = set[object]()
            while len(found) < MATCHING:
                message = await consumer.receive(timeout=SECONDS_MAX)
                found.add(message.value)
                await consumer.ack(message)
            assert found == {f"{value} {number}".encode() for number in range(MATCHING)}
            await consumer.close()
        finally:
            await client.close()

    with ScaleCluster(directory) as cluster:
        assert cluster.run(listed(cluster)) == TOPICS
        assert cluster.run(listed(cluster, prefix)) == MATCHING
        cluster.run(consumed(cluster, "before"))
        cluster.run(_kill_broker(cluster))
        cluster.run(consumed(cluster, "after the broker"))
    with ScaleCluster(directory) as cluster:  # the store, too, begins again with what it has on its disk
        assert cluster.run(listed(cluster)) == TOPICS
        cluster.run(consumed(cluster, "after the store"))


async def _kill_broker(cluster: ScaleCluster) -> None:
    """Have another broker of the same name take over from one whose session is ended, as after a crash."""
    await cluster.parts.sessions.end_predecessor()
    await cluster.parts.sessions.stop()
    cluster.parts.service_url = await cluster.parts.sessions.start()
