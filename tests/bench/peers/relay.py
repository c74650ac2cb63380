"""The peer of a cluster with one message in flight: a bare relay and three bare logs, each a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import uvloop

from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.figure import Limit
from tests.bench.peers.peer import SMALL_BYTES, BareClient, load
from tests.bench.process import Child, precise_cpu_seconds

LOGS = 3
NAME = "bare relay, three logs"


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What the relay did with one frame of 1 KiB in flight.

    Attributes:
        relay_cpu_seconds: the processor time of the relay.
        logs_cpu_seconds: that of all logs together.
    """

    run: MeasuredRun
    relay_cpu_seconds: float
    logs_cpu_seconds: float

    @property
    def p50(self) -> Limit:
        """Return the median in ms."""
        return Limit(self.run.latencies.percentile(0.5), NAME)

    @property
    def p99(self) -> Limit:
        """Return the 99th percentile in ms."""
        return Limit(self.run.latencies.percentile(0.99), NAME)

    @property
    def cpu(self) -> Limit:
        """Return the processor time of all four processes for a frame, in microseconds."""
        return Limit((self.relay_cpu_seconds + self.logs_cpu_seconds) / self.run.messages * 1e6, NAME)


def measure(directory: Path, seconds: float) -> RelayLimits:
    """Run the relay with its logs, one frame in flight, for ``seconds``."""
    directory.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        logs = [
            stack.enter_context(Child("tests.bench.peers.host", "loop", directory / f"log-{number}"))
            for number in range(1, LOGS + 1)
        ]
        relay = stack.enter_context(Child("tests.bench.peers.relay_host", *(log.said() for log in logs)))
        return uvloop.run(_measure(relay, logs, seconds))


async def _measure(relay: Child, logs: Sequence[Child], seconds: float) -> RelayLimits:
    host, _, port = relay.said().rpartition(":")
    _, client = await asyncio.get_running_loop().create_connection(BareClient, host, int(port))
    await load(client, SMALL_BYTES, 1, seconds / 10)  # warm
    pids = [log.pid for log in logs]
    before = precise_cpu_seconds(relay.pid), precise_cpu_seconds(*pids)
    run = await load(client, SMALL_BYTES, 1, seconds)
    used = precise_cpu_seconds(relay.pid) - before[0], precise_cpu_seconds(*pids) - before[1]
    assert client.transport is not None, "it was connected"
    client.transport.close()
    return RelayLimits(run, *used)
