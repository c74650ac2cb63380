"""One cluster on four machines: every part is reached from each of them, and a machine that is lost is replaced."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import heliograph
from tests.machines.cluster import MachineCluster, machine_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

COPIES_SECONDS = 240.0
MESSAGES = 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineCluster]:
    directory = Path(tmp_path_factory.mktemp("m"))
    directory.chmod(0o755)
    config = directory / "settings.toml"
    config.write_text("lost_bookie_delay_ms = 5000\nopen_ledger_grace_ms = 2000\naudit_interval_ms = 5000\n")
    with machine_cluster(directory, 4, config=str(config), broker_port="6650", gateway_port="8080") as made:
        yield made


def test_each_part_tells_the_address_of_its_own_machine(cluster: MachineCluster) -> None:
    status = cluster.status(on=2)
    found = {actor["name"]: actor["address"] for actor in status["actors"]}
    for number, machine in enumerate(cluster.machines, 1):
        assert found[f"bookie-{number}"].rpartition(":")[0] == machine.address
    addresses = {machine.address for machine in cluster.machines}
    brokers = [found[name].removeprefix("pulsar://").split(":") for name in ("broker-1", "broker-2")]
    assert [port for _, port in brokers] == ["6650", "6652"]
    assert {host for host, _ in brokers} <= addresses
    assert status["gateway_url"].removeprefix("http://").partition(":")[0] in addresses
    assert status["healthy"]


def test_what_one_machine_publishes_another_receives(cluster: MachineCluster) -> None:
    sent = [f"line {number}" for number in range(MESSAGES)]
    cluster.helio("produce", "between-machines", on=1, given="\n".join(sent))
    got = cluster.helio("consume", "between-machines", "--from", "earliest", "-n", str(MESSAGES), on=3)
    assert got.splitlines() == sent
    # From a machine that has no part, through every broker's own address:
    for url in cluster.status()["service_urls"]:
        with heliograph.connect(url) as client, client.reader("between-machines", "earliest") as reader:
            assert [reader.receive(60).value.decode() for _ in range(MESSAGES)] == sent


def test_copies_of_a_lost_machine_are_made_again(cluster: MachineCluster) -> None:
    status = cluster.status()
    urls = ",".join(url.removeprefix("pulsar://") for url in status["service_urls"])
    with heliograph.connect(f"pulsar://{urls}") as client, client.producer("survivor", send_timeout_ms=0) as producer:
        confirmed = [producer.send(b"%d" % number) for number in range(MESSAGES)]
        cluster.machines[3].power_off()
        confirmed += [producer.send(b"%d" % number) for number in range(MESSAGES, 2 * MESSAGES)]
        assert confirmed == sorted(set(confirmed))  # I2
        _wait_for(lambda: _is_whole_again(cluster), "the copies of the lost machine were not made again")
        with client.reader("survivor", "earliest") as reader:
            values = [reader.receive(60).value for _ in range(2 * MESSAGES)]
        assert values == [b"%d" % number for number in range(2 * MESSAGES)]  # I1


def _is_whole_again(cluster: MachineCluster) -> bool:
    found = cluster.status()
    bookies = set(found["bookies_available"])
    return "bookie-4" not in bookies and len(bookies) == 3 and found["underreplicated_ledgers"] == 0


def _wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + COPIES_SECONDS
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(1)
