"""The loads that every server gets through its least client: publishing, and reading a backlog."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.bench import Bench
from tests.bench.process import cpu_time, precise_cpu_seconds
from tests.bench.pump import Pump
from tools.laboratory.foreign.protocols.connection import ANSWER_SECONDS_MAX, PeerConnection, Publisher, Reader

SIZE = 1 << 10
MANY = 1_000
SECONDS = 4.0
BACKLOG = "backlog"  # the stream that is read
BACKLOG_BYTES = 1 << 30  # in batches
READ_SECONDS_MAX = 120.0  # of one consumer
Load = Callable[[int, float], Awaitable[MeasuredRun]]  # requests in flight, seconds

Connection = TypeVar("Connection", bound=PeerConnection)


@dataclass(slots=True)
class CatchUp:
    """What new consumers read of a backlog, one after another, with the server's processor seconds meanwhile."""

    run: MeasuredRun = field(default_factory=MeasuredRun)
    cpu_seconds: float = 0.0

    def add(self, run: MeasuredRun, cpu_seconds: float) -> None:
        """Add one consumer."""
        self.run.messages += run.messages
        self.run.bytes += run.bytes
        self.run.seconds += run.seconds
        self.cpu_seconds += cpu_seconds

    @property
    def rate(self) -> float:
        """Return messages per second."""
        return self.run.messages / self.run.seconds

    @property
    def server_us(self) -> float:
        """Return the server's processor time for a message, in microseconds."""
        return self.cpu_seconds / self.run.messages * 1e6


@dataclass(frozen=True, slots=True)
class Runs:
    """What one server did.

    Attributes:
        one: one message in flight.
        many: many, with the server's processor seconds.
        batches: the same in batches, where the protocol has them.
        least: the backlog read by the least client.
        client: the backlog read by Heliograph's own client.
    """

    version: str
    one: MeasuredRun
    many: MeasuredRun
    many_cpu: float
    batches: MeasuredRun | None = None
    batches_cpu: float = 0.0
    least: CatchUp | None = None
    client: CatchUp | None = None


async def loads(bench: Bench, load: Load, pid: int) -> tuple[MeasuredRun, MeasuredRun, float]:
    """Return the runs with one and with many in flight, and the server's processor seconds of the second."""
    await load(1, bench.seconds(SECONDS) / 5)  # warm
    one = await load(1, bench.seconds(SECONDS))
    await load(MANY, bench.seconds(SECONDS) / 5)
    before = cpu_time(pid).total
    many = await load(MANY, bench.seconds(SECONDS))
    return one, many, cpu_time(pid).total - before


async def connected(make: Callable[[], Connection], port: int) -> Connection:
    """Return a connection to a server on this machine."""
    _, connection = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
    return connection


async def pumped(publisher: Publisher, window: int, seconds: float, count: int = 1 << 62) -> MeasuredRun:
    """Publish for ``seconds``, at most ``count`` requests, ``window`` of them in flight. Return what was acknowledged.

    Raises:
        Exception: why the connection failed.
    """
    payload = os.urandom(SIZE)
    pump = Pump(lambda number: publisher.send(payload, pump.answered, number), window, SIZE)
    running = asyncio.ensure_future(pump.run(seconds, count))
    waited: set[asyncio.Future[Any]] = {running, publisher.failed}
    await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
    if publisher.failed.done() and not running.done():
        running.cancel()
        publisher.failed.result()
    run = await running
    run.messages *= publisher.records
    run.bytes *= publisher.records
    return run


async def ready(publisher: Publisher) -> Publisher:
    """Return a publisher that may send.

    Raises:
        TimeoutError: the server did not answer.
    """
    async with asyncio.timeout(ANSWER_SECONDS_MAX):
        await publisher.ready
    return publisher


async def read_again_and_again(make: Callable[[], Reader], port: int, pid: int, seconds: float) -> CatchUp:
    """Have one new consumer after another read the backlog, until that took ``seconds`` of reading; at least one does.

    Raises:
        TimeoutError: a consumer did not come to the end.
        Exception: why a connection failed.
    """
    found = CatchUp()
    while found.run.seconds < seconds:
        before = precise_cpu_seconds(pid)
        reader = await connected(make, port)
        try:
            async with asyncio.timeout(READ_SECONDS_MAX):
                await asyncio.wait((reader.ended, reader.failed), return_when=asyncio.FIRST_COMPLETED)
            if not reader.ended.done():
                reader.failed.result()
        finally:
            reader.close()
        found.add(reader.run, precise_cpu_seconds(pid) - before)
    return found
