"""A whole cluster whose metadata is in etcd, with users: processes and etcd itself are killed while messages flow."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph
from heliograph.base.errors import ConflictError
from heliograph.client import discovery
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.occupancy import require_vacant
from tests.cluster.metadata.etcd_world import etcd
from tests.cluster.support.live_cluster import LiveCluster, start
from tests.contracts.metadata.etcd_server import EtcdServer

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PASSWORD = "a pass:word/with@signs"
TOPIC = "on-etcd"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with etcd(tmp_path / "etcd", flags={"bcrypt-cost": "4"}) as started:
        for arguments in (
            ("user", "add", "root", f"--new-user-password={PASSWORD}"),
            ("user", "grant-role", "root", "root"),
            ("auth", "enable"),
        ):
            started.ctl(*arguments)
        yield started


@pytest.fixture
def on_etcd(server: EtcdServer, tmp_path: Path) -> Iterator[LiveCluster]:
    running = start(
        tmp_path / "home",
        f"test-{uuid.uuid4().hex[:8]}",
        bookies=3,
        gateway=False,
        metadata_url=f"etcd://root@{server.address}/cluster",
        metadata_password=PASSWORD,
    )
    try:
        yield running
    finally:
        running.stop()


def publish(client: heliograph.Client, first: int, last: int) -> None:
    with client.producer(TOPIC) as producer:
        for start_at in range(first, last, 50):
            producer.send_many([b"%d" % number for number in range(start_at, start_at + 50)])


async def start_second(url: str) -> None:
    store = await connect_store(url)
    try:
        await require_vacant(store, (), 0)
    finally:
        await store.close()


def test_a_cluster_lives_on_etcd(server: EtcdServer, on_etcd: LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    assert discovery.METADATA not in discovery.actor_names(on_etcd.namespace)
    assert on_etcd.state.metadata_url == f"etcd://root@{server.address}/cluster"
    assert PASSWORD not in (on_etcd.home / "cluster.json").read_text()
    client = heliograph.connect(namespace=on_etcd.namespace)
    on_etcd.admin.create_topic(TOPIC)
    publish(client, 0, 500)

    owner = on_etcd.admin.lookup(TOPIC)["actor_name"]
    old_pid = on_etcd.sigkill(owner)
    publish(client, 500, 1_000)
    on_etcd.wait_back(owner, old_pid)

    with client.producer(TOPIC) as producer:
        producer.send(b"1000")
        server.kill()
        # What is open goes on without metadata, as long as its session lasts: the messages are soon sent.
        producer.send_many([b"%d" % number for number in range(1_001, 1_200)])
        server.start()
    publish(client, 1_200, 1_500)
    on_etcd.admin.create_topic(f"{TOPIC}-after")

    with client.consumer(TOPIC, "all", initial_position="earliest") as consumer:
        numbers: list[int] = []
        while len(set(numbers)) < 1_500:
            batch = consumer.receive_many(500, 60.0)
            assert batch, f"{len(set(numbers))} messages came"
            consumer.ack_many(batch)
            numbers += [int(message.value) for message in batch]
    assert sorted(set(numbers)) == list(range(1_500))  # I1
    client.close()

    monkeypatch.setenv("HELIOGRAPH_METADATA_PASSWORD", PASSWORD)
    with pytest.raises(ConflictError, match="bookie-1"):  # a second cluster on the same prefix
        asyncio.run(start_second(f"etcd://root@{server.address}/cluster"))
    status = on_etcd.report()
    assert sorted(status.bookies_available) == ["bookie-1", "bookie-2", "bookie-3"]
