"""A bookie of a whole cluster never returns: its entries are copied, or everything goes on with two copies.

The tests read each replica directly.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph
from heliograph.actors.ledger.schedule import WriteSchedule, is_vacancy
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.base.home import ClusterHome
from heliograph.client import discovery
from heliograph.cluster.lifecycle import up
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.operator_records import ClusterReport
from tests.cluster.deployment.test_operator import helio
from tests.cluster.support.bookie_metadata import all_ledgers
from tests.cluster.support.bookie_peer import BookiePeer
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for
from tests.contracts.metadata.etcd_server import free_ports
from tests.machines.load import load

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

LOST = "bookie-4"
REPAIR_SECONDS = 240.0

VICTIM = "bookie-3"  # of three
LEDGER_ENTRIES_MAX = 40
VACANT_LEDGERS = 20  # made while it is away
AWAY_SECONDS = 12.0  # the auditor's delays pass: 5 s until a bookie is lost, 2 s of grace for the writer of a ledger


def status_of(cluster: LiveCluster) -> ClusterReport:
    return cluster.report()


async def ledgers_of(cluster: LiveCluster) -> list[LedgerMetadata]:
    store = await connect_store(cluster.metadata_url)
    try:
        return await all_ledgers(store)
    finally:
        await store.close()


async def missing_replicas(
    ledgers: list[LedgerMetadata], addresses: dict[str, str], secret: str | None
) -> list[tuple[int, int, str]]:
    """Return ledger, entry and bookie of every copy that the metadata names and the bookie lacks."""
    peers = {name: await BookiePeer.connect(address, secret) for name, address in addresses.items()}
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
        addresses = {actor.name: actor.address for actor in status_of(cluster).parts if actor.kind == "bookie"}
        closed = [ledger for ledger in asyncio.run(ledgers_of(cluster)) if ledger.is_closed]
        assert closed
        assert asyncio.run(missing_replicas(closed, addresses, ClusterHome(cluster.home).secret())) == []  # I1 I10
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


@pytest.fixture(params=["apart", pytest.param("together", marks=pytest.mark.full)])
def three(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LiveCluster]:
    """The cluster of ``helio up``: three bookies for three copies, of which two are waited for, and two brokers."""
    discovery.detach()  # from the Ray of other tests, which ``start`` would use
    running = start(
        tmp_path,
        f"three-{uuid.uuid4().hex[:8]}",
        bookies=3,
        operator=True,
        gateway=False,
        parts=request.param,
        broker_port=free_ports(1)[0],  # where a broker is again after a crash
    )
    try:
        yield running
    finally:
        running.stop()


def test_everything_goes_on_without_the_disk_of_one_of_three_bookies(three: LiveCluster, topic: str) -> None:  # I1 I20
    three.attach()
    three.admin.namespaces.set_policies("public/default", {"ledger_entries_max": LEDGER_ENTRIES_MAX})
    with load(three.state.service_url, seed=1) as clients:
        lose_disk(three, VICTIM)
        lost_at = time.monotonic()

        def has_passed() -> bool:
            vacant = [ledger for ledger in asyncio.run(ledgers_of(three)) if has_vacancy(ledger)]
            return len(vacant) >= VACANT_LEDGERS and time.monotonic() > lost_at + AWAY_SECONDS

        wait_for(has_passed, REPAIR_SECONDS, "too few ledgers are made")
        clients.wait_for_more()
        print(f"without the disk: no receipt for {clients.unavailable_seconds(lost_at):.1f} s")
        clients.begin_fault()
        killed_at = time.monotonic()
        three.sigkill(three.admin.lookup(clients.streams[0].topic)["actor_name"])
        clients.wait_for_more()
        clients.use_something_new(topic)
        expected = f"publishing goes on with 2 of 3 copies: {VICTIM} is down"
        wait_for(lambda: status_of(three).publishing_notes == (expected,), REPAIR_SECONDS, "status does not say it")
        assert expected in helio(three, "status", code=1)["publishing_notes"]
        print(f"with a crash of the owner: no receipt for {clients.unavailable_seconds(killed_at):.1f} s")
        replaced_at = time.monotonic()
        assert helio(three, "bookies", "replace", VICTIM, "--empty-disk")["done"]
        clients.wait_for_more()
        wait_for(lambda: is_complete(three), REPAIR_SECONDS, "copies are missing")
        print(f"while copies are made: no receipt for {clients.unavailable_seconds(replaced_at):.1f} s")
    wait_for(
        lambda: status_of(three).is_healthy and not status_of(three).publishing_notes,
        REPAIR_SECONDS,
        "status does not say that all is well",
    )
    assert helio(three, "status")["publishing_notes"] == []
    assert copies_missing(three) == []  # I10


def lose_disk(cluster: LiveCluster, name: str) -> None:
    """Lose the disk of a bookie and then its process, which is started again and refuses the empty disk."""
    process = cluster.pid(name)
    os.kill(process, signal.SIGSTOP)  # it would make files in a directory that is being deleted
    shutil.rmtree(cluster.config.data_root / name)
    os.kill(process, signal.SIGKILL)


def has_vacancy(ledger: LedgerMetadata) -> bool:
    return any(is_vacancy(name) for part in ledger.segments for name in part.bookies)


def is_complete(cluster: LiveCluster) -> bool:
    """Return whether no ledger waits for copies."""
    return status_of(cluster).underreplicated_ledgers == 0 and not any(
        has_vacancy(ledger) for ledger in asyncio.run(ledgers_of(cluster))
    )


def copies_missing(cluster: LiveCluster) -> list[tuple[int, int, str]]:
    """Return the copies that bookies lack of closed ledgers."""
    addresses = {actor.name: actor.address for actor in status_of(cluster).parts if actor.kind == "bookie"}
    closed = [ledger for ledger in asyncio.run(ledgers_of(cluster)) if ledger.is_closed]
    assert len(closed) > VACANT_LEDGERS
    return asyncio.run(missing_replicas(closed, addresses, ClusterHome(cluster.home).secret()))
