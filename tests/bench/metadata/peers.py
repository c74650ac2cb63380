"""The metadata stores compared in one run: the cost of the same calls in each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from pathlib import Path

from heliograph.cli.messages.measure import Latencies
from tests.bench.bench import Bench
from tests.bench.figure import Limit
from tests.bench.metadata.contenders import Client, Contender, embedded, etcd, raw_etcd, zookeeper
from tests.bench.process import memory_bytes

SECTION = "metadata"
CONTENDERS: tuple[Callable[[Path], AbstractContextManager[Contender | None]], ...] = (
    zookeeper, raw_etcd, embedded, etcd,
)  # fmt: skip
REFERENCES = ("ZooKeeper", "raw etcd")  # the others are compared with the first of these that ran

NODES = 64  # read and changed, each by one caller at a time
VALUE_BYTES = 256
CHILDREN = 10_000
MANY = 100_000  # nodes whose memory is measured
SECONDS = 1.5  # of each rate
ROUNDS = 300  # of what is timed one by one
LISTINGS = 10


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    measured: dict[str, dict[str, tuple[float, str]]] = {}
    for number, start in enumerate(CONTENDERS):
        with start(bench.directory / f"metadata-peer-{number}") as contender:
            if contender is None:
                bench.say("no ZooKeeper here to compare metadata with")
                continue
            bench.say(f"measuring metadata: {contender.name}")
            measured[contender.name] = asyncio.run(_measure(bench, contender))
    reference = next(name for name in REFERENCES if name in measured)
    for figure in measured[reference]:
        for name, figures in measured.items():
            if figure in figures:
                value, unit = figures[figure]
                bench.add(SECTION, f"{figure}: {name}", value, unit, Limit(measured[reference][figure][0], reference))


async def _measure(bench: Bench, contender: Contender) -> dict[str, tuple[float, str]]:
    seconds, rounds = bench.seconds(SECONDS), bench.count(ROUNDS)
    async with contender.connect() as client, contender.connect() as other:
        value = bytes(VALUE_BYTES)
        await client.fill("nodes", NODES, value)
        await client.fill("watched", 1, value)
        await client.fill("children", CHILDREN, b"")
        figures = {
            "gets, 64 in flight": (await _rate(lambda node: client.get("nodes", node), seconds), "gets/s"),
            "one get, p50": (await _median(lambda: client.get("nodes", 0), rounds), "ms"),
            "compare and set, 64 in flight": (
                await _rate(lambda node: client.compare_and_set("nodes", node, value), seconds),
                "sets/s",
            ),
            "from a set to its watcher, p50": (await _watch_latency(client, other, rounds), "ms"),
            "listing 10,000 children, p50": (await _median(lambda: _list(client), LISTINGS), "ms"),
        }
        if contender.name != "etcd backend":  # its server was measured by its own calls before
            count = bench.count(MANY)
            before = memory_bytes(contender.pid)
            await client.fill("many", count, value)
            grown = (memory_bytes(contender.pid) - before) / count * MANY
            figures["memory for 100,000 nodes of 256 bytes"] = (grown / 1e6, "MB")
        return figures


async def _rate(call: Callable[[int], Awaitable[None]], seconds: float) -> float:
    """Measure calls per second, one caller for each node."""
    begun, done = time.perf_counter(), 0

    async def work(node: int) -> None:
        nonlocal done
        while time.perf_counter() - begun < seconds:
            await call(node)
            done += 1

    await asyncio.gather(*(work(node) for node in range(NODES)))
    return done / (time.perf_counter() - begun)


async def _median(call: Callable[[], Awaitable[object]], rounds: int) -> float:
    latencies = Latencies()
    for _ in range(rounds):
        begun = time.perf_counter()
        await call()
        latencies.add((time.perf_counter() - begun) * 1e3)
    return latencies.percentile(0.5)


async def _watch_latency(writer: Client, watcher: Client, rounds: int) -> float:
    """Measure from the call of a set in one session to the event in another."""
    told = asyncio.Event()
    await watcher.follow("watched", told.set)

    async def once() -> None:
        told.clear()
        await asyncio.gather(writer.compare_and_set("watched", 0, b""), told.wait())

    return await _median(once, rounds)


async def _list(client: Client) -> None:
    assert await client.list("children") == CHILDREN, "all children are there"
