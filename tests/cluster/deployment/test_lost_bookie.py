"""A bookie of a whole cluster never returns: its entries are copied. The test reads each replica directly."""

from __future__ import annotations

import asyncio

import pytest

import heliograph
from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.actors.ledger.schedule import WriteSchedule
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.cluster.lifecycle import up
from heliograph.cluster.status.model import ClusterStatus
from heliograph.cluster.status.through_ray import gather
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import LedgerMetadata
from tests.cluster.support.bookie_peer import BookiePeer
from tests.cluster.support.live_cluster import LiveCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LOST = "bookie-4"
REPAIR_SECONDS = 240.0


def status_of(cluster: LiveCluster) -> ClusterStatus:
    return gather(cluster.namespace, cluster.state)


async def ledgers_of(cluster: LiveCluster) -> list[LedgerMetadata]:
    store = await connect_store(cluster.state.metadata_url)
    try:
        return await scan_ledgers(store, 16)
    finally:
        await store.close()


async def missing_replicas(ledgers: list[LedgerMetadata], addresses: dict[str, str]) -> list[tuple[int, int, str]]:
    """Return ledger, entry and bookie of every copy that the metadata names and the bookie lacks."""
    peers = {name: await BookiePeer.connect(address) for name, address in addresses.items()}
    missing = []
    for ledger in ledgers:
        schedule = WriteSchedule(ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum)
        for entry_id in range(ledger.last_entry_id + 1):
            for position in schedule.positions(entry_id):
                name = ledger.segment_of(entry_id).bookies[position]
                if (
                    name not in peers
                    or await peers[name].status(BookieOp.READ, ledger.ledger_id, entry_id) is not Status.OK
                ):
                    missing.append((ledger.ledger_id, entry_id, name))
    for peer in peers.values():
        peer.close()
    return missing


def test_what_a_lost_bookie_held_is_copied_to_the_others(cluster: LiveCluster, topic: str) -> None:
    client = heliograph.connect(namespace=cluster.namespace)
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        cluster.admin.create_topic(name)
        with client.producer(name) as producer:
            for number in range(20):
                producer.send(b"%d" % number)
    assert any(LOST in part.bookies for ledger in asyncio.run(ledgers_of(cluster)) for part in ledger.segments)
    cluster.end_for_good(LOST)
    try:
        wait_for(lambda: nothing_names_it(cluster), REPAIR_SECONDS, f"ledgers still name {LOST}")
        wait_for(lambda: status_of(cluster).underreplicated_ledgers == 0, 120, "tasks are left over")
        addresses = {actor.name: actor.address for actor in status_of(cluster).actors if actor.kind == "bookie"}
        closed = [ledger for ledger in asyncio.run(ledgers_of(cluster)) if ledger.is_closed]
        assert closed
        assert asyncio.run(missing_replicas(closed, addresses)) == []  # I1 I10
        for name in names:  # whose ledgers were fenced under their writers
            with client.producer(name) as producer:
                producer.send(b"20")
            with client.reader(name, "earliest") as reader:
                values = [reader.receive(60).value for _ in range(21)]
            assert values == [b"%d" % number for number in range(21)]
    finally:
        client.close()
        cluster.state = up(cluster.config)  # its disk is there still, so it may come back
    assert LOST in status_of(cluster).bookies_available


def nothing_names_it(cluster: LiveCluster) -> bool:
    """Return whether no ledger that may hold entries names the lost bookie."""
    return not any(
        LOST in part.bookies
        for ledger in asyncio.run(ledgers_of(cluster))
        for part in ledger.segments
        if not ledger.is_closed or part.first_entry_id <= ledger.last_entry_id
    )
