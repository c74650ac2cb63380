"""What a cluster of any size costs at rest, made of the measured costs of one of each thing (pure).

The figures are those of docs/scaling.md, which says how each was measured. Traffic is not in it: its costs are per
message, whatever else exists.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Memory, in bytes.
STORE_BYTES, STORE_CACHES = 43e6, 88e6  # the process, and what its bounded caches may add
TOPIC_OPEN, SUBSCRIPTION_OPEN = 12_500, 9_000  # of a broker; a topic with a producer
CONNECTION, BROKER_BYTES, BOOKIE_BYTES = 15_000, 69e6, 69e6  # idle
LEDGER_OF_AUDITOR, AUDITOR_BYTES = 14, 75e6
LEDGER_OF_BOOKIE = 1_000
# Bytes on the disk of the store, of records.
NODE_BYTES = 350
# Processor, in seconds.
BROKER_REST, BOOKIE_REST = 0.0056, 0.0064  # cores
COPIES = 3
READS_OF_BOOKIES_MAX = 3_000  # of the store in a second, by all bookies
STORE_READ = 35e-6
AUDIT = 0.1  # each minute
TOUR_LEDGER = 65e-6
OPENING_STORE, OPENING_BROKER = 0.55e-3, 2.0e-3  # a topic that another broker served
TOPICS_OF_BUNDLE, BUNDLES_MAX = 1_000, 4_096


@dataclass(frozen=True, slots=True)
class Cluster:
    """How much there is of each. Topics count their partitions, each by itself."""

    bookies: int = 3
    brokers: int = 2
    topics: int = 1_000
    open_share: float = 1.0  # of the topics
    subscriptions: float = 1.0  # of each topic
    ledgers_per_topic: float = 10.0
    connections: int = 100


@dataclass(frozen=True, slots=True)
class Prediction:
    """What it takes at rest: of one part of each kind, where there are several."""

    store_mb: float
    store_disk_mb: float
    store_cores: float
    auditor_mb: float
    auditor_tour_seconds: float  # of processor, after its start
    broker_mb: float
    bookie_mb: float
    ledgers_of_a_bookie: float
    bundles: int
    topics_of_a_bundle: float
    failover_seconds: float  # of a killed broker's topics: until the last is open, had each survivor a core


def predict(cluster: Cluster) -> Prediction:
    """Return what a cluster takes."""
    assert cluster.bookies >= COPIES, "each entry has three copies"
    assert cluster.brokers >= 1, "a broker serves the topics"
    ledgers = cluster.topics * cluster.ledgers_per_topic
    nodes = cluster.topics * (1 + cluster.subscriptions) + ledgers
    open_topics = cluster.topics * cluster.open_share / cluster.brokers
    held = ledgers * COPIES / cluster.bookies
    wanted = max(8, math.ceil(cluster.topics / TOPICS_OF_BUNDLE))
    bundles = min(BUNDLES_MAX, 1 << (wanted - 1).bit_length())
    survivors = max(1, cluster.brokers - 1)
    reads = min(READS_OF_BOOKIES_MAX, cluster.bookies * min(held, ledgers / 10_000) / 60)
    per_topic = TOPIC_OPEN + cluster.subscriptions * SUBSCRIPTION_OPEN
    return Prediction(
        store_mb=(STORE_BYTES + min(STORE_CACHES, nodes * NODE_BYTES)) / 1e6,
        store_disk_mb=nodes * NODE_BYTES / 1e6,
        store_cores=reads * STORE_READ,
        auditor_mb=(AUDITOR_BYTES + ledgers * LEDGER_OF_AUDITOR) / 1e6,
        auditor_tour_seconds=ledgers * TOUR_LEDGER,
        broker_mb=(BROKER_BYTES + open_topics * per_topic + cluster.connections / cluster.brokers * CONNECTION) / 1e6,
        bookie_mb=(BOOKIE_BYTES + held * LEDGER_OF_BOOKIE) / 1e6,
        ledgers_of_a_bookie=held,
        bundles=bundles,
        topics_of_a_bundle=cluster.topics / bundles,
        failover_seconds=open_topics * max(OPENING_BROKER / survivors, OPENING_STORE),
    )


def main() -> None:
    """Print the table of predictions in docs/scaling.md."""
    print("| bookies | brokers | topics | store | its disk | auditor | a broker | ledgers of a bookie |")
    print("|---|---|---|---|---|---|---|---|")
    for bookies, brokers, topics in ((3, 2, 1_000), (10, 4, 10_000), (100, 10, 100_000), (1_000, 20, 1_000_000)):
        found = predict(Cluster(bookies, brokers, topics, connections=topics // 10))
        print(
            f"| {bookies:,} | {brokers} | {topics:,} | {found.store_mb:,.0f} MB | {found.store_disk_mb:,.0f} MB "
            f"| {found.auditor_mb:,.0f} MB | {found.broker_mb:,.0f} MB | {found.ledgers_of_a_bookie:,.0f} |"
        )


if __name__ == "__main__":
    main()
