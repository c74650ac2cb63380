"""The peer of bookies and brokers: one fsynced copy behind a socket (``tests/bench/peers/host.py``)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import uvloop

from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.bench import Bench
from tests.bench.figure import Limit
from tests.bench.peers.host import ACK, LENGTH_BYTES
from tests.bench.process import Child, cpu_time, memory_bytes
from tests.bench.pump import Pump

SECTION = "peer"
SMALL_BYTES, SMALL_WINDOW = 1 << 10, 2_000
BIG_BYTES, BIG_WINDOW = 128 << 10, 64


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """The figures of the bare log: runs with one and with many requests in flight."""

    echo: MeasuredRun
    one_by_one: MeasuredRun
    one_by_one_cpu_seconds: float
    small: MeasuredRun
    small_cpu_seconds: float
    big: MeasuredRun
    memory_bytes: int

    @property
    def echo_p50(self) -> Limit:
        """Return the median of a round trip without a disk, in ms."""
        return Limit(self.echo.latencies.percentile(0.5), "TCP round trip, p50")

    @property
    def add_p50(self) -> Limit:
        """Return the median of one durable 1 KiB add with one in flight, in ms."""
        return Limit(self.one_by_one.latencies.percentile(0.5), "bare log, one in flight, p50")

    @property
    def add_p99(self) -> Limit:
        """Return its 99th percentile."""
        return Limit(self.one_by_one.latencies.percentile(0.99), "bare log, one in flight, p99")

    @property
    def add_cpu(self) -> Limit:
        """Return the server's CPU-microseconds for one durable 1 KiB add with one in flight."""
        us = self.one_by_one_cpu_seconds / self.one_by_one.messages * 1e6
        return Limit(us, "bare log, one copy, one in flight")

    @property
    def small_rate(self) -> Limit:
        """Return 1 KiB adds per second with many in flight."""
        return Limit(self.small.messages / self.small.seconds, "bare log, 1 KiB")

    @property
    def small_cpu(self) -> Limit:
        """Return the server's CPU-seconds per million 1 KiB adds."""
        return Limit(self.small_cpu_seconds / self.small.messages * 1e6, "bare log, one copy, 1 KiB adds")

    @property
    def memory(self) -> Limit:
        """Return the MB of the server's memory, which is mostly Python and uvloop."""
        return Limit(self.memory_bytes / 1e6, "the bare log's server")


class BareClient(asyncio.Protocol):
    """A client that sends frames; answers come in order."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[int], None], int]] = deque()
        self._odd_bytes = 0
        self._out: list[bytes] = []
        self._loop = asyncio.get_running_loop()
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        answers, self._odd_bytes = divmod(self._odd_bytes + len(data), len(ACK))
        for _ in range(answers):
            answered, number = self._waiting.popleft()
            answered(number)

    def send(self, frame: bytes, answered: Callable[[int], None], number: int) -> None:
        """Send a frame; the frames of one iteration of the loop are sent together."""
        self._waiting.append((answered, number))
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)

    def _flush(self) -> None:
        assert self.transport is not None, "it is connected before it sends"
        out, self._out = self._out, []
        self.transport.writelines(out)


def measure(directory: Path, seconds: float) -> PeerLimits:
    """Run the bare log and measure each load for ``seconds``."""
    directory.mkdir(parents=True, exist_ok=True)
    with Child("tests.bench.peers.host", "thread", directory / "log") as server:
        return uvloop.run(_measure(server, server.said(), seconds))


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    peer, disk = bench.peer, bench.disk
    best = disk.best
    sync = Limit(disk.overwrite[4096].p50_ms, "overwrite + fdatasync, 4 KiB, p50")
    bench.add(SECTION, "TCP round trip, p50", peer.echo_p50.value, "ms", sync)
    bench.add(
        SECTION,
        "bare log, one in flight, p50",
        peer.add_p50.value,
        "ms",
        sync,
        p99_ms=peer.add_p99.value,
        cpu_us=peer.add_cpu.value,
    )
    rate = peer.small_rate.value
    bench.add(
        SECTION,
        "bare log, 1 KiB, many in flight",
        rate * SMALL_BYTES / 1e6,
        "MB/s",
        best,
        adds_per_s=rate,
        cpu_s_per_million=peer.small_cpu.value,
    )
    bench.add(SECTION, "bare log, 128 KiB, many in flight", peer.big.bytes / peer.big.seconds / 1e6, "MB/s", best)
    _report_relay(bench)


def _report_relay(bench: Bench) -> None:
    relay, peer = bench.relay, bench.peer
    name = f"{relay.p50.name}, one in flight"
    bench.add(SECTION, f"{name}, p50", relay.p50.value, "ms", peer.add_p50, p99_ms=relay.p99.value)
    bench.add(
        SECTION,
        f"{name}, CPU of the relay and the logs",
        relay.cpu.value,
        "us",
        peer.add_cpu,
        relay_us=relay.relay_cpu_seconds / relay.run.messages * 1e6,
        logs_us=relay.logs_cpu_seconds / relay.run.messages * 1e6,
    )


async def _measure(server: Child, address: str, seconds: float) -> PeerLimits:
    host, _, port = address.rpartition(":")
    _, client = await asyncio.get_running_loop().create_connection(BareClient, host, int(port))
    echo = await load(client, 0, 1, seconds / 2)
    before = cpu_time(server.pid)
    one_by_one = await load(client, SMALL_BYTES, 1, seconds)
    one_by_one_cpu = (cpu_time(server.pid) - before).total
    before = cpu_time(server.pid)
    small = await load(client, SMALL_BYTES, SMALL_WINDOW, seconds)
    cpu = (cpu_time(server.pid) - before).total
    big = await load(client, BIG_BYTES, BIG_WINDOW, seconds)
    assert client.transport is not None, "it was connected"
    client.transport.close()
    return PeerLimits(echo, one_by_one, one_by_one_cpu, small, cpu, big, memory_bytes(server.pid))


async def load(client: BareClient, size: int, window: int, seconds: float) -> MeasuredRun:
    """Send frames of ``size`` bytes for ``seconds``, ``window`` of them in flight."""
    frame = size.to_bytes(LENGTH_BYTES) + bytes(size)
    pump = Pump(lambda number: client.send(frame, pump.answered, number), window, size)
    return await pump.run(seconds)
