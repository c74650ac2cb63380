"""One cluster on four machines: every part is reached from each of them, whatever happens to one or to all."""

from __future__ import annotations

import random

import pytest

import heliograph
from tests.machines.chaos import command, play, play_for
from tests.machines.cluster import BROKER_MACHINES, MachineCluster
from tests.machines.scenarios import SCENARIOS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

MESSAGES = 50
SEED = 1
SEED_SECONDS = 120.0


def test_each_part_tells_the_address_of_its_own_machine(machine_set: MachineCluster) -> None:
    status = machine_set.status(on=2)
    found = {actor["name"]: actor["address"] for actor in status["actors"]}
    for number, machine in enumerate(machine_set.machines, 1):
        assert found[f"bookie-{number}"].rpartition(":")[0] == machine.address
    addresses = {machine_set.machines[number].address for number in BROKER_MACHINES}
    brokers = [found[name].removeprefix("pulsar://").split(":") for name in ("broker-1", "broker-2")]
    assert [port for _, port in brokers] == ["6650", "6652"]
    assert {host for host, _ in brokers} == addresses, "one on each machine for brokers"
    assert status["gateway_url"].removeprefix("http://").partition(":")[0] in addresses
    assert status["healthy"]


def test_what_one_machine_publishes_another_receives(machine_set: MachineCluster) -> None:
    sent = [f"line {number}" for number in range(MESSAGES)]
    machine_set.helio("produce", "between-machines", on=1, given="\n".join(sent))
    got = machine_set.helio("consume", "between-machines", "--from", "earliest", "-n", str(MESSAGES), on=3)
    assert got.splitlines() == sent
    # From a machine that has no part, through every broker's own address:
    for url in machine_set.status()["service_urls"]:
        with heliograph.connect(url) as client, client.reader("between-machines", "earliest") as reader:
            assert [reader.receive(60).value.decode() for _ in range(MESSAGES)] == sent


def test_a_machine_is_lost_and_comes_back(machine_set: MachineCluster) -> None:  # I1, I2, I11, I12
    """The share of the normal run: it is the same in each run."""
    play(machine_set, "machine_lost", SEED, print)


def test_the_metadata_store_stands_still(machine_set: MachineCluster) -> None:  # I13
    play(machine_set, "metadata_frozen", SEED, print)


@pytest.mark.full
def test_a_seed_of_two_minutes(machine_set: MachineCluster) -> None:  # I1, I2, I11, I12
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"to play it again: make chaos MINUTES={SEED_SECONDS / 60:g} SEED={seed}")  # shown when this fails
    assert play_for(machine_set, seed, SEED_SECONDS, print)


@pytest.mark.full
@pytest.mark.timeout(2_400)
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_confirmed_is_lost_or_comes_again(machine_set: MachineCluster, name: str) -> None:  # I1, I2, I11, I12
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"to play it again: {command([name], seed)}")  # shown when this fails
    play(machine_set, name, seed, print)
