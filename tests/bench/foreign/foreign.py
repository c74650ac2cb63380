"""Redis, NATS JetStream and Kafka beside Heliograph: messages of 1 KiB, one copy, synced before it is acknowledged."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

import heliograph
from heliograph.base.version import heliograph_version
from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.bench import Bench
from tests.bench.broker.publish import send_lists
from tests.bench.figure import Limit
from tests.bench.foreign import servers
from tests.bench.foreign.protocols import ANSWER_SECONDS_MAX, KafkaConnection, PeerConnection
from tests.bench.foreign.servers import ForeignServer, Unavailable
from tests.bench.process import Child, cpu_time
from tests.bench.pump import Pump

SECTION = "foreign"
SIZE = 1 << 10
MANY = 1_000
BATCH_RECORDS, BATCHES_IN_FLIGHT = 127, 4
SECONDS = 4.0
FOREIGN = {"Redis": servers.redis, "NATS JetStream": servers.nats, "Kafka": servers.kafka}
Load = Callable[[int, float], Awaitable[MeasuredRun]]  # requests in flight, seconds


@dataclass(frozen=True, slots=True)
class Runs:
    """What one server did: one in flight, many, and in batches where it has them; processor time of the last two."""

    version: str
    one: MeasuredRun
    many: MeasuredRun
    many_cpu: float
    batches: MeasuredRun | None = None
    batches_cpu: float = 0.0


def report(bench: Bench) -> None:
    """Measure the rows of the section; a server that cannot be run is left out, and why is printed."""
    bench.say("measuring Heliograph, one process")
    found = {"Heliograph": _ours(bench, _directory(bench, "heliograph"))}
    for name, start in FOREIGN.items():
        bench.say(f"measuring {name}")
        try:
            with start(_directory(bench, name.split()[0])) as server:
                found[name] = uvloop.run(_foreign(bench, server))
        except Unavailable as why:
            bench.say(f"{name} is skipped: {why}")
    for name, runs in found.items():
        _add(bench, name, runs, found["Heliograph"])


def _directory(bench: Bench, name: str) -> Path:
    directory = bench.directory / f"foreign-{name.lower()}"
    directory.mkdir()
    return directory


def _add(bench: Bench, name: str, runs: Runs, ours: Runs) -> None:
    named = f"{name} {runs.version}"
    p50 = Limit(ours.one.latencies.percentile(0.5), "Heliograph")
    value, p99 = runs.one.latencies.percentile(0.5), runs.one.latencies.percentile(0.99)
    bench.add(SECTION, f"one message in flight, p50: {named}", value, "ms", p50, p99_ms=p99)
    bench.add(
        SECTION,
        f"{MANY:,} in flight, each by itself: {named}",
        _rate(runs.many),
        "msgs/s",
        Limit(_rate(ours.many), "Heliograph"),
        server_us_per_message=runs.many_cpu / runs.many.messages * 1e6,
    )
    if runs.batches is not None and ours.batches is not None:
        bench.add(
            SECTION,
            f"batches of 128 KiB: {named}",
            _rate(runs.batches),
            "msgs/s",
            Limit(_rate(ours.batches), "Heliograph"),
            server_us_per_message=runs.batches_cpu / runs.batches.messages * 1e6,
        )


def _rate(run: MeasuredRun) -> float:
    return run.messages / run.seconds


def _ours(bench: Bench, directory: Path) -> Runs:
    with Child("tests.bench.foreign.host", directory) as server:
        return uvloop.run(_measure_ours(bench, server.said(), server.pid))


async def _measure_ours(bench: Bench, url: str, pid: int) -> Runs:
    client = await heliograph.connect_async(url)
    try:
        single = await client.producer("singles", batch_messages=1)
        payload = os.urandom(SIZE)

        async def load(window: int, seconds: float) -> MeasuredRun:
            run, begun = MeasuredRun(), time.perf_counter()

            async def publish() -> None:
                while (sent := time.perf_counter()) - begun < seconds:
                    await single.send(payload)
                    run.latencies.add((time.perf_counter() - sent) * 1000)
                    run.messages += 1

            await asyncio.gather(*(publish() for _ in range(window)))
            run.seconds = time.perf_counter() - begun
            return run

        one, many, cpu = await _loads(bench, load, pid)
        batched = await client.producer("batches", batch_bytes=128 << 10)
        await send_lists(batched, bench.seconds(SECONDS) / 5)  # warm
        before = cpu_time(pid).total
        batches = await send_lists(batched, bench.seconds(SECONDS))
        return Runs(heliograph_version(), one, many, cpu, batches, cpu_time(pid).total - before)
    finally:
        await client.close()


async def _foreign(bench: Bench, server: ForeignServer) -> Runs:
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(server.connection, "127.0.0.1", server.port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            await connection.ready
        one, many, cpu = await _loads(bench, lambda window, seconds: _pumped(connection, window, seconds), server.pid)
        if not isinstance(connection, KafkaConnection):
            return Runs(server.version, one, many, cpu)
        connection.records = BATCH_RECORDS
        await _pumped(connection, BATCHES_IN_FLIGHT, bench.seconds(SECONDS) / 5)  # warm
        before = cpu_time(server.pid).total
        batches = await _pumped(connection, BATCHES_IN_FLIGHT, bench.seconds(SECONDS))
        batches.messages *= BATCH_RECORDS
        return Runs(server.version, one, many, cpu, batches, cpu_time(server.pid).total - before)
    finally:
        connection.failed.cancel()
        assert connection.transport is not None, "it is connected"
        connection.transport.close()


async def _loads(bench: Bench, load: Load, pid: int) -> tuple[MeasuredRun, MeasuredRun, float]:
    """Return the runs with one and with many in flight, and the server's processor seconds of the second."""
    await load(1, bench.seconds(SECONDS) / 5)  # warm
    one = await load(1, bench.seconds(SECONDS))
    await load(MANY, bench.seconds(SECONDS) / 5)
    before = cpu_time(pid).total
    many = await load(MANY, bench.seconds(SECONDS))
    return one, many, cpu_time(pid).total - before


async def _pumped(connection: PeerConnection, window: int, seconds: float) -> MeasuredRun:
    payload = os.urandom(SIZE)
    pump = Pump(lambda number: connection.send(payload, pump.answered, number), window, SIZE)
    running = asyncio.ensure_future(pump.run(seconds))
    waited: set[asyncio.Future[Any]] = {running, connection.failed}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if connection.failed.done() and not running.done():
        running.cancel()
        connection.failed.result()
    return await running
