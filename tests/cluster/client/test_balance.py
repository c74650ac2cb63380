"""Load spreads over brokers: one that comes takes partitions of a busy topic, whose publishing goes on."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import heliograph
from heliograph.actors.broker.config import BalanceLimits
from heliograph.base.errors import ServiceNotReadyError
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for

PARTITIONS = 8
# A few messages are a load of several brokers, beside which the processor, which all of them share here, counts little.
EAGER = BalanceLimits(messages_per_second=1.0, bytes_per_second=100.0, rest_seconds=600.0)


def owners(cluster: BrokerCluster) -> set[str]:
    """Return the brokers that serve partitions; those that change their owner now are left out."""
    found = set()
    for number in range(PARTITIONS):
        with contextlib.suppress(ServiceNotReadyError):
            found.add(cluster.owner_of(f"busy-partition-{number}").broker.config.broker_id)
    return found


def test_a_broker_that_comes_is_given_partitions_of_a_busy_topic(tmp_path: Path) -> None:
    options = {"load_report_seconds": 0.2, "balance_seconds": 0.2, "balance": EAGER}
    with broker_cluster(tmp_path, brokers=1, options=options) as cluster:
        cluster.run(cluster.admin.create_topic("busy", PARTITIONS))
        with heliograph.connect(cluster.service_url) as client, client.consumer("busy", "audit") as consumer:
            sent: list[int] = []
            is_over = threading.Event()

            def publish() -> None:
                with client.producer("busy") as producer:
                    while not is_over.is_set():
                        producer.send(str(len(sent)).encode())
                        sent.append(len(sent))

            publisher = threading.Thread(target=publish)
            publisher.start()
            try:
                wait_for(lambda: len(sent) > 2 * PARTITIONS, "messages to all partitions")
                assert owners(cluster) == {"broker-0"}
                cluster.start_broker("broker-1")
                wait_for(lambda: owners(cluster) == {"broker-0", "broker-1"}, "partitions at both brokers")
                moved = len(sent)
                wait_for(lambda: len(sent) > moved + 2 * PARTITIONS, "publishing to go on")
            finally:
                is_over.set()
                publisher.join()
            got = {int(consumer.receive(timeout=60).value) for _ in sent}
            assert got == set(sent)
