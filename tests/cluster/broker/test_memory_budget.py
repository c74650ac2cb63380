"""A broker's memory under load stays within its budget (I15): many producers of large messages, then many consumers
that ask for a backlog and read nothing. One that reads gets everything."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from heliograph.actors.broker.managed_ledger.read_budget import READ_BUDGET_BYTES
from heliograph.base.guard import memory
from heliograph.base.guard.listener import UNSENT_BYTES_MAX
from heliograph.protocol import pulsar_pb2 as pb
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for
from tests.cluster.support.raw_peer import RawPeer

pytestmark = pytest.mark.timeout(600)

TOPIC = "backlog"
PRODUCERS, ENTRIES_EACH = 8, 5
ENTRY_BYTES = 4 << 20
STANDING_STILL = 96  # of 64, those with one entry each can stay just below the bound
LEFT_TO_KERNEL_BYTES = 256 << 10  # per consumer, so that it is the broker that holds what is not read
_T = pb.BaseCommand


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    with broker_cluster(tmp_path_factory.mktemp("memory")) as running:
        yield running


class Peak:
    """The most that this process and the bounds of its broker held, looked at all the time."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self.used = self.read_ahead = self.unsent = 0
        self._broker = cluster.brokers[0].broker
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._is_over.is_set():
            self.used = max(self.used, memory.used_bytes())
            self.read_ahead = max(self.read_ahead, self._broker._cache.read_budget.bytes)
            self.unsent = max(self.unsent, self._broker._server.unsent.bytes)
            time.sleep(0.01)


def publish(cluster: BrokerCluster, number: int) -> None:
    with RawPeer(cluster.service_url) as peer:
        peer.producer(TOPIC, producer_id=number)
        for sequence_id in range(ENTRIES_EACH):
            peer.publish(number, sequence_id, bytes([number]) * ENTRY_BYTES)
        for _ in range(ENTRIES_EACH):
            peer.answer(_T.SEND_RECEIPT)


def reader(cluster: BrokerCluster, name: str) -> RawPeer:
    peer = RawPeer(cluster.service_url)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LEFT_TO_KERNEL_BYTES)
    peer.subscribe(TOPIC, subscription=name, initial_position=pb.CommandSubscribe.EARLIEST)
    peer.flow(1_000)
    return peer


def test_a_load_that_nobody_reads_stays_within_the_budgets(cluster: BrokerCluster) -> None:
    server = cluster.brokers[0].broker._server
    with ExitStack() as open_peers, Peak(cluster) as peak:
        with ThreadPoolExecutor(PRODUCERS) as threads:
            list(threads.map(lambda number: publish(cluster, number), range(PRODUCERS)))
        for number in range(STANDING_STILL):
            open_peers.enter_context(reader(cluster, f"stands-still-{number}"))
        wait_for(lambda: server.unsent.dropped > 0, "consumers that do not read to be too many")
        with reader(cluster, "reads") as peer:
            for _ in range(PRODUCERS * ENTRIES_EACH):
                peer.answer(_T.MESSAGE)
    assert 0 < peak.unsent <= UNSENT_BYTES_MAX
    assert 0 < peak.read_ahead <= READ_BUDGET_BYTES + ENTRY_BYTES
    assert peak.used <= memory.budget()
    assert memory.alarm() == ""
