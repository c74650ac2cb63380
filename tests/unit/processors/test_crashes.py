"""Owners that are killed or stand still, and a broker that is killed: each message counts once."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

import heliograph
from heliograph.processors.records import GROUP_KEY, GroupRecord, KeyRecord
from tests.unit.processors.conftest import SECONDS, read
from tests.unit.processors.program import INSTANCES

FULL = os.environ.get("FULL", "0") != "0"
KEYS, PARTITIONS = 100, 4
MESSAGES, KILLS = (20_000, 20) if FULL else (2_000, 4)


class Processes:
    """The processes of a cluster and of a processor's instances, by what they are."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.address = f"pulsar://127.0.0.1:{self.port}"
        self.running: dict[str, subprocess.Popen[bytes]] = {}  # the last of each
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process in the place of an earlier one, which is left alone."""
        command = [sys.executable, "-m", "tests.unit.processors.program", *arguments]
        with (self.directory / what).open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        self.started.append(process)
        self.running[what] = process
        return process

    def start_cluster(self) -> None:
        """Start the cluster, on the data of the one before."""
        self.start("cluster", "cluster", str(self.directory / "data"), str(self.port))

    def start_instance(self, name: str, number: int) -> subprocess.Popen[bytes]:
        """Start an instance, which takes over from the one before."""
        return self.start(f"instance-{number}", "totals", self.address, name, str(number))

    def kill(self, what: str) -> None:
        """Kill a process as the kernel would."""
        self.running[what].kill()
        self.running[what].wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Return a cluster in a process of its own."""
    found = Processes(tmp_path)
    found.start_cluster()
    yield found
    for each in found.started:
        each.kill()
        each.wait()


def inputs(seed: int) -> list[tuple[str, int]]:
    """Return keys and numbers."""
    chosen = random.Random(seed)
    return [(f"key-{chosen.randrange(KEYS)}", chosen.randrange(1_000)) for _ in range(MESSAGES)]


def folded(sent: list[tuple[str, int]]) -> dict[str, list[str]]:
    """Return what a plain fold sends, by key."""
    counts: dict[str, int] = defaultdict(int)
    sums: dict[str, int] = defaultdict(int)
    found: dict[str, list[str]] = defaultdict(list)
    for key, number in sent:
        counts[key] += 1
        sums[key] += number
        found[key].append(f"{counts[key]} {sums[key]}")
    return found


async def outputs(client: heliograph.Client, topic: str, count: int) -> dict[str, list[str]]:
    """Return all outputs of a topic by key, once there are so many."""
    await read(client, topic, count)
    found: dict[str, list[str]] = defaultdict(list)
    async with heliograph.AsyncClient(client.options) as own, own.reader(topic, "earliest") as reader:
        while await reader.has_message_available():
            message = await reader.receive(timeout=SECONDS)
            found[message.key or ""].append(message.data.decode())
    return found


async def states(client: heliograph.Client, topic: str) -> dict[str, KeyRecord]:
    """Return the states in a changelog, as the next owner reads them."""
    async with (
        heliograph.AsyncClient(client.options) as own,
        own.reader(topic, "earliest", read_compacted=True) as reader,
    ):
        found: dict[str, bytes] = {}
        last: dict[str, dict[str, bytes | None]] = {}
        while await reader.has_message_available():
            message = await reader.receive(timeout=SECONDS)
            if message.key == GROUP_KEY:
                last[message.topic] = dict(GroupRecord.decode(message.data).states)
            elif message.key and message.key.startswith("k:"):
                found[message.key[2:]] = message.data
        for group in last.values():
            found.update({key[2:]: data for key, data in group.items() if data is not None})
        return {key: KeyRecord.decode(data) for key, data in found.items()}


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_states_and_outputs_are_those_of_a_plain_fold(processes: Processes, name: str) -> None:
    chosen, sent = random.Random(5), inputs(3)
    client = await asyncio.to_thread(heliograph.connect, processes.address)
    async with heliograph.AsyncClient(client.options) as own:
        await own.admin.create_topic(name, PARTITIONS)
        for number in range(INSTANCES):
            processes.start_instance(name, number)
        async with own.producer(name, send_timeout_ms=0) as producer:
            share = MESSAGES // (KILLS + 1)
            for kill in range(KILLS + 1):
                part = sent[kill * share : (kill + 1) * share if kill < KILLS else None]
                await producer.send_many([str(number) for _, number in part], keys=[key for key, _ in part])
                if kill < KILLS:
                    await read(client, f"{name}-out", kill * share + 1 + chosen.randrange(share))
                    number = chosen.randrange(INSTANCES)
                    processes.kill(f"instance-{number}")
                    if kill == KILLS // 2:
                        processes.kill("cluster")
                        processes.start_cluster()
                    processes.start_instance(name, number)
    expected = folded(sent)
    assert await outputs(client, f"{name}-out", MESSAGES) == expected
    found = await states(client, f"{name}-state")
    assert {key: f"{_value(each)['count']} {_value(each)['sum']}" for key, each in found.items()} == {
        key: values[-1] for key, values in expected.items()
    }
    await asyncio.to_thread(client.close)


def _value(record: KeyRecord) -> dict[str, int]:
    assert record.state is not None
    value: dict[str, int] = json.loads(record.state)
    return value


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_an_owner_that_stood_still_writes_nothing(processes: Processes, name: str) -> None:
    sent = inputs(9)
    half = MESSAGES // 2
    client = await asyncio.to_thread(heliograph.connect, processes.address)
    async with heliograph.AsyncClient(client.options) as own, own.producer(name) as producer:
        frozen = processes.start_instance(name, 0)
        await producer.send_many([str(number) for _, number in sent[:half]], keys=[key for key, _ in sent[:half]])
        await read(client, f"{name}-out", half // 2)
        frozen.send_signal(signal.SIGSTOP)
        try:
            processes.start_instance(name, 0)
            await producer.send_many([str(number) for _, number in sent[half:]], keys=[key for key, _ in sent[half:]])
            await read(client, f"{name}-out", MESSAGES)
            last = await own.admin.cursors.last_message_id(f"{name}-state")
        finally:
            frozen.send_signal(signal.SIGCONT)
        await producer.send("1", key="key-0")  # which the one that thawed reads, too
        ended = await asyncio.wait_for(asyncio.to_thread(frozen.wait), SECONDS)
        assert ended != 0, "it ends with an error"
        assert b"ProducerFencedError" in (processes.directory / "instance-0").read_bytes()
        sent.append(("key-0", 1))
        assert await outputs(client, f"{name}-out", MESSAGES + 1) == folded(sent)
        assert await own.admin.cursors.last_message_id(f"{name}-state") != last, "the new owner goes on"
    await asyncio.to_thread(client.close)
