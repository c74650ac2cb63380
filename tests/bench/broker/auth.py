"""What authentication costs a publish once the connection stands: brokers with and without it, measured in turns."""

from __future__ import annotations

import base64
import secrets
import statistics
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import uvloop

import heliograph
from heliograph.auth.issuing import new_token
from heliograph.cli.messages.load import MessageLoad, Sender
from heliograph.cli.messages.measure import MeasuredRun
from heliograph.client.aio.producer.producer import AsyncProducer
from tests.bench.bench import Bench
from tests.bench.broker.auth_host import ROLE
from tests.bench.figure import Limit, at_least, at_most
from tests.bench.process import Child, precise_cpu_seconds

SECTION = "auth"
SIZE = 1 << 10
WINDOW = 500  # entries in flight, for throughput
ROUNDS = 30  # many short ones: what slows the machine down for a while then slows all brokers alike
ENTRIES, WAITED_ENTRIES = 1_500, 200  # of one turn
KINDS = ("open", "auth", "open")  # the second open one shows how far two equal brokers differ


@dataclass(slots=True)
class Turns:
    """What one broker did in each round.

    Attributes:
        rates: entries per second.
        cpu: microseconds of the servers' processor time for an entry, bookie included.
        p50s: the median latency in ms with one entry in flight.
    """

    rates: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    p50s: list[float] = field(default_factory=list)


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    key = secrets.token_bytes(32)
    bench.say("measuring what authentication costs a publish")
    with Child(
        "tests.bench.broker.auth_host", bench.directory / "auth", base64.b64encode(key).decode(), *KINDS
    ) as host:
        token = new_token(ROLE, key, "HS256")
        plain, checked, again = uvloop.run(_measure(bench.count(ROUNDS), host.said().split(), token, host.pid))
    _add(bench, "entries of 1 KiB, not batched", "entries/s", plain.rates, checked.rates, again.rates)
    _add(bench, "servers' CPU for an entry", "us", plain.cpu, checked.cpu, again.cpu)
    _add(bench, "one in flight, p50", "ms", plain.p50s, checked.p50s, again.p50s)


def _add(
    bench: Bench, name: str, unit: str, plain: Sequence[float], checked: Sequence[float], again: Sequence[float]
) -> None:
    """Add the value with authentication, beside that without it in the same rounds.

    The ratio of the row is the median of the rounds' ratios, which a slow moment of the machine does not move.
    """
    ratio, noise = (statistics.median(a / b for a, b in zip(part, plain, strict=True)) for part in (checked, again))
    base = statistics.median(plain)
    aim = at_least(base * 0.98) if unit == "entries/s" else at_most(base * 1.02)
    limit = Limit(base, "the same without authentication")
    bench.add(SECTION, f"{name}, authenticated", ratio * base, unit, limit, aim=aim, two_without=noise)


async def _measure(rounds: int, urls: Sequence[str], token: str, pid: int) -> list[Turns]:
    turns = [Turns() for _ in urls]
    async with AsyncExitStack() as stack:
        producers = []
        for url in urls:
            client = await heliograph.connect_async(url, token=token)
            stack.push_async_callback(client.close)
            producers.append(await client.producer("cost", batch_messages=1, linger_ms=0))
        for number in range(rounds + 1):
            order = range(len(urls)) if number % 2 else reversed(range(len(urls)))
            for place in order:
                before = precise_cpu_seconds(pid)
                fast = await _send(producers[place], ENTRIES, WINDOW)
                used = precise_cpu_seconds(pid) - before
                waited = await _send(producers[place], WAITED_ENTRIES, 1)
                if number:  # the first round warms
                    turns[place].rates.append(fast.messages / fast.seconds)
                    turns[place].cpu.append(used / fast.messages * 1e6)
                    turns[place].p50s.append(waited.latencies.percentile(0.5))
    return turns


async def _send(producer: AsyncProducer, entries: int, window: int) -> MeasuredRun:
    run = await Sender(producer, MessageLoad(entries, SIZE, window, 0, 1, 0)).run()
    assert not run.errors, run.last_error
    return run
