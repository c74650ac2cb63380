"""The embedded metadata store: durable writes per second, and the latency of one write and one read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from heliograph.cli.messages.measure import MeasuredRun
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import MetadataStore
from tests.bench.bench import Bench
from tests.bench.figure import Limit
from tests.bench.metadata import peers as metadata_peers
from tests.bench.process import Child, cpu_time, memory_bytes
from tests.bench.pump import Pump

SECTION = "metadata"
NODES = 64
VALUE_BYTES = 256  # about the size of a ledger's record
WINDOW = 256

Call = Callable[[str], Coroutine[Any, Any, object]]


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.measure_limits()
    bench.say("measuring the embedded metadata store")
    with Child("tests.bench.metadata.host", bench.directory / "metadata") as server:
        uvloop.run(_measure(bench, server, server.said()))
    metadata_peers.report(bench)


async def _measure(bench: Bench, server: Child, address: str) -> None:
    store = await connect_store(f"embedded://{address}")
    try:
        for number in range(NODES):
            await store.create(_path(number))
        await _measure_calls(bench, server, store)
    finally:
        await store.close()


async def _measure_calls(bench: Bench, server: Child, store: MetadataStore) -> None:
    value = bytes(VALUE_BYTES)
    seconds = bench.seconds(2.0)

    def write(path: str) -> Coroutine[Any, Any, object]:
        return store.set(path, value)

    append = bench.disk.append[4096]
    syncs = Limit(1e3 / append.p50_ms, "appends + fdatasync of 4 KiB, one by one")
    before = cpu_time(server.pid)
    pipelined = await _load(write, WINDOW, seconds)
    cpu = (cpu_time(server.pid) - before).total
    bench.add(
        SECTION,
        f"durable sets, {WINDOW} in flight",
        pipelined.messages / pipelined.seconds,
        "sets/s",
        syncs,
        p50_ms=pipelined.latencies.percentile(0.5),
        cpu_s_per_million=cpu / pipelined.messages * 1e6,
    )
    _add_latency(bench, "one durable set", await _load(write, 1, seconds), bench.peer.add_p50)
    _add_latency(bench, "one get", await _load(store.get, 1, seconds), bench.peer.echo_p50)
    reads = await _load(store.get, WINDOW, seconds)
    echoes = Limit(1e3 / bench.peer.echo_p50.value, "TCP round trips, one by one")
    bench.add(SECTION, f"gets, {WINDOW} in flight", reads.messages / reads.seconds, "gets/s", echoes)
    bench.add(SECTION, "memory of the server", memory_bytes(server.pid) / 1e6, "MB", bench.peer.memory)


def _add_latency(bench: Bench, name: str, run: MeasuredRun, against: Limit) -> None:
    p50, p99 = run.latencies.percentile(0.5), run.latencies.percentile(0.99)
    bench.add(SECTION, f"{name}, p50", p50, "ms", against, p99_ms=p99)


async def _load(call: Call, window: int, seconds: float) -> MeasuredRun:
    """Run calls on the nodes in rotation."""
    tasks: set[asyncio.Task[object]] = set()  # the loop holds only weak references to tasks

    def send(number: int) -> None:
        task = asyncio.ensure_future(call(_path(number % NODES)))
        tasks.add(task)
        task.add_done_callback(lambda task: done(number, task))

    def done(number: int, task: asyncio.Task[object]) -> None:
        tasks.discard(task)
        error = task.exception()
        if error is None:
            pump.answered(number)
        else:
            pump.failed(error)

    pump = Pump(send, window)
    return await pump.run(seconds)


def _path(number: int) -> str:
    return f"/bench-{number}"
