"""The disk of a bookie of a whole cluster dies: the others go on, and it serves again on an empty one."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph
from heliograph.base.errors import ConflictError
from heliograph.base.home import ClusterHome
from heliograph.client import discovery
from heliograph.cluster.wishing import wished
from heliograph.metadata.operator_records import Wish, WishKind, WishState
from tests.cluster.deployment.test_lost_bookie import ledgers_of, lose_disk, missing_replicas, status_of
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BOOKIE = "bookie-2"
SECONDS = 240.0


@pytest.fixture
def operated(tmp_path: Path) -> Iterator[LiveCluster]:
    """Four bookies and an operator, which answers commands."""
    discovery.detach()  # from the Ray of other tests, which ``start`` would use
    running = start(tmp_path, f"wiped-{uuid.uuid4().hex[:8]}", operator=True, brokers=1, gateway=False)
    try:
        yield running
    finally:
        running.stop()


def replace(cluster: LiveCluster) -> Wish:
    home = ClusterHome(cluster.home)
    return wished(WishKind.REPLACE, BOOKIE, {}, home, cluster.namespace, wait_seconds=SECONDS, progress=print)


def note_of(cluster: LiveCluster) -> str:
    return next(actor.note for actor in status_of(cluster).parts if actor.name == BOOKIE)


def test_a_bookie_whose_disk_died_serves_again_under_its_name(operated: LiveCluster, topic: str) -> None:
    cluster = operated
    client = heliograph.connect(namespace=cluster.namespace)
    cluster.admin.create_topic(topic)
    with client.producer(topic) as producer:
        for number in range(20):
            producer.send(b"%d" % number)
        with pytest.raises(ConflictError, match="serves"):
            replace(cluster)
        lose_disk(cluster, BOOKIE)
        wait_for(lambda: "CookieMismatchError" in note_of(cluster), SECONDS, "helio status does not say why")
        producer.send(b"20")
        replaced = replace(cluster)
        assert replaced.state is WishState.DONE
        assert replaced.outcome["is_alive"]
        producer.send(b"21")
    with client.reader(topic, "earliest") as reader:
        assert [reader.receive(60).value for _ in range(22)] == [b"%d" % number for number in range(22)]
    addresses = {actor.name: actor.address for actor in status_of(cluster).parts if actor.kind == "bookie"}
    _close_what_it_was_writing(cluster)

    def has_all_copies() -> bool:  # I1 I10
        closed = [ledger for ledger in asyncio.run(ledgers_of(cluster)) if ledger.is_closed]
        return not asyncio.run(missing_replicas(closed, addresses, ClusterHome(cluster.home).secret()))

    wait_for(has_all_copies, SECONDS, f"copies of closed ledgers are missing, on {BOOKIE} or elsewhere")


def _close_what_it_was_writing(cluster: LiveCluster) -> None:
    """Have every ledger decided that the bookie was writing: another one that is lost would leave too few who know."""
    for row in cluster.admin.list_topics():
        parts = [f"{row['name']}-partition-{number}" for number in range(row["partitions"])]
        for name in parts or [row["name"]]:
            cluster.admin.topic_stats(name)  # which recovers the ledger of a topic that nobody uses
            cluster.admin.unload_topic(name)

    def is_decided() -> bool:
        open_ones = [ledger for ledger in asyncio.run(ledgers_of(cluster)) if not ledger.is_closed]
        return not any(BOOKIE in ledger.last_segment.bookies for ledger in open_ones)

    wait_for(is_decided, SECONDS, f"ledgers are open that {BOOKIE} was writing")
