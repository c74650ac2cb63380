"""A topic's own placement policy chooses the bookies of its ledgers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from typing_extensions import override

from heliograph.actors.ledger.driver import LedgerClientConfig
from heliograph.actors.ledger.placement.placement import Randomness, RandomPlacement
from heliograph.base.errors import BadRequestError
from heliograph.metadata.model import BookieRegistration
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster, wait_for

LEDGERS = 5


class LastByName(RandomPlacement):
    """A policy that always chooses the bookies whose names come last in the alphabet."""

    @override
    def new_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, randomness: Randomness
    ) -> list[str]:
        return sorted((bookie.bookie_id for bookie in candidates), reverse=True)[:size]


POLICY = "last-by-name"
REGISTERED = f"{POLICY}={LastByName.__module__}:{LastByName.__name__}"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerCluster]:
    folder: Path = tmp_path_factory.mktemp("placement")
    options = {"ledger": LedgerClientConfig(placements=REGISTERED)}
    with broker_cluster(folder, bookies=4, options=options) as running:
        yield running


def test_racks_that_are_set_spread_new_ledgers(cluster: BrokerCluster) -> None:
    admin, copies = cluster.admin, {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 1}
    racks = {f"bookie-{number}": f"r{number % 2}" for number in range(4)}
    for bookie, rack in racks.items():
        cluster.run(admin.bookies.set_rack(bookie, rack))
    directory = cluster.brokers[0].ledgers.directory
    wait_for(lambda: {name: found.rack for name, found in directory.writable.items()} == racks, "the racks")
    for number in range(6):
        cluster.run(admin.create_topic(f"racked-{number}", persistence=copies))
        stats = cluster.run(admin.topic_internal_stats(f"racked-{number}"))
        (ensemble,) = (ledger["ensembles"][-1]["bookies"] for ledger in stats["ledgers"])
        assert {racks[bookie] for bookie in ensemble} == {"r0", "r1"}
    for bookie in racks:
        cluster.run(admin.bookies.remove_rack(bookie))
    wait_for(lambda: {found.rack for found in directory.writable.values()} == {"default"}, "the registered racks")


def test_a_topic_has_its_ledgers_where_its_policy_puts_them(cluster: BrokerCluster) -> None:
    copies = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 1}
    admin = cluster.admin
    cluster.run(admin.create_topic("placed", persistence=copies))
    cluster.run(admin.namespaces.set_topic_policies("placed", {"placement": POLICY, "ledger_entries_max": 2}))
    wanted = ["bookie-3", "bookie-2"]

    def ensembles() -> list[list[str]]:
        stats = cluster.run(admin.topic_internal_stats("placed"))
        return [ledger["ensembles"][-1]["bookies"] for ledger in stats["ledgers"]]

    with cluster.client() as client:
        producer = client.create_producer("placed", batching_enabled=False)

        def are_there_enough() -> bool:
            producer.send(b"one more")  # a ledger takes more than its limit while the next one is being made
            return len(ensembles()) >= LEDGERS

        wait_for(are_there_enough, "ledgers")
        producer.close()
    assert ensembles() == [wanted] * len(ensembles())


def test_a_policy_that_is_not_there_is_refused(cluster: BrokerCluster) -> None:
    for wrong in ("nowhere", "no.such.Class", f"{LastByName.__module__}.{LastByName.__name__}"):
        with pytest.raises(BadRequestError) as raised:
            cluster.run(cluster.admin.namespaces.set_topic_policies("placed", {"placement": wrong}))
        assert raised.value.field == "placement"
