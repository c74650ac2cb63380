"""A node with several disks has a bookie on each; a disk that is away or of another cluster stops its own one only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import ray.exceptions

import heliograph
from heliograph.actors.bookie.cookies import COOKIE_NAME
from heliograph.base.errors import HeliographError
from heliograph.base.home import ClusterHome
from heliograph.cluster.operator.calls import ask_operator
from heliograph.cluster.wishing import wished
from heliograph.metadata import codec
from heliograph.metadata.bookie_records import Cookie
from heliograph.metadata.operator_records import Wish, WishKind, WishState
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

WAIT_SECONDS = 240.0
BOOKIES = ["bookie-1", "bookie-2", "bookie-3"]


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three disks, of which the configuration numbers a bookie for two."""
    return [Path(tmp_path_factory.mktemp(f"disk{number}")) for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory, disks: list[Path]) -> Iterator[LiveCluster]:
    running = start(
        tmp_path_factory.mktemp("disks"),
        f"disks-{uuid.uuid4().hex[:8]}",
        bookies=2,
        brokers=1,
        operator=True,
        gateway=False,
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        nodes={"*": {"bookie": {"disks": [str(disk) for disk in disks]}}},
    )
    try:
        yield running
    finally:
        running.stop()


def notes(cluster: LiveCluster) -> dict[str, str]:
    return {part.name: part.note for part in cluster.report().parts}


def available(cluster: LiveCluster) -> list[str]:
    return sorted(cluster.report().bookies_available)


def is_another(cluster: LiveCluster, name: str, pid: int) -> bool:
    """Return whether a part runs in another process than before."""
    with suppress(HeliographError, ray.exceptions.RayError):
        return cluster.pid(name) != pid
    return False


def publish(cluster: LiveCluster, topic: str) -> None:
    with heliograph.connect(namespace=cluster.namespace) as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
        with client.reader(topic, "earliest") as reader:
            assert reader.receive(60).value == b"x"


def test_each_disk_has_a_bookie_and_one_that_is_lost_stops_no_other(
    stored: LiveCluster, disks: list[Path], topic: str
) -> None:
    stored.attach()
    wait_for(lambda: available(stored) == BOOKIES, WAIT_SECONDS, "a disk has no bookie")
    for name, disk in zip(BOOKIES, disks, strict=True):
        assert (disk / name / "journal" / COOKIE_NAME).exists()
        assert (disk / name / "ledgers" / COOKIE_NAME).exists()
    away = disks[1].with_name("away")

    disks[1].rename(away)  # the disk is not there any more
    stored.sigkill("bookie-2")
    where = f"the disk {disks[1]} of bookie bookie-2 is not there: mount it"
    wait_for(lambda: where in notes(stored)["bookie-2"], WAIT_SECONDS, "the disk is not named")
    wait_for(lambda: available(stored) == ["bookie-1", "bookie-3"], WAIT_SECONDS, "its session does not end")
    publish(stored, topic)

    cookie = away / "bookie-2" / "journal" / COOKIE_NAME  # the disk of another cluster comes back
    own = cookie.read_bytes()
    cookie.write_bytes(codec.encode(replace(codec.decode(Cookie, own), instance_id="of-another")))
    away.rename(disks[1])
    wait_for(lambda: "another cluster" in notes(stored)["bookie-2"], WAIT_SECONDS, "the disk is not refused")
    assert str(disks[1]) in notes(stored)["bookie-2"]
    assert "Mount the right directory" in notes(stored)["bookie-2"]

    (disks[1] / "bookie-2" / "journal" / COOKIE_NAME).write_bytes(own)
    wait_for(lambda: available(stored) == BOOKIES, WAIT_SECONDS, "the right disk is not taken")
    publish(stored, f"{topic}-again")


def have_brokers(stored: LiveCluster, count: int) -> Wish:
    found = wished(
        WishKind.SCALE,
        "brokers",
        {"count": str(count)},
        ClusterHome(stored.home),
        stored.namespace,
        wait_seconds=WAIT_SECONDS,
        progress=print,
    )
    assert found.state is WishState.DONE
    return found


def test_an_operator_that_is_killed_goes_on(stored: LiveCluster) -> None:
    stored.attach()
    killed = stored.sigkill("operator")
    found = have_brokers(stored, 2)  # while no operator leads
    assert found.outcome["parts"]["broker-2"]["is_serving"]
    stored.wait_back("operator", killed)
    assert ask_operator(stored.namespace, "progress")["wanted_brokers"] == 2
    before = stored.pid("broker-2")
    stored.end_for_good("broker-2")  # Ray does not start it again, the operator does
    wait_for(lambda: is_another(stored, "broker-2", before), WAIT_SECONDS, "it gives the cluster no broker again")
    have_brokers(stored, 1)
    wait_for(
        lambda: "broker-2" not in ask_operator(stored.namespace, "progress")["places"],
        WAIT_SECONDS,
        "it does not leave",
    )
    assert available(stored) == BOOKIES
