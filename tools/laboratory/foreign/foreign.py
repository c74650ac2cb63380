"""Redis, NATS JetStream and Kafka beside Heliograph: messages of 1 KiB, one copy, synced before it is acknowledged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import uvloop

from heliograph.cli.messages.measure import MeasuredRun
from tests.bench.bench import Bench
from tests.bench.figure import Limit, ratio_at_least
from tests.bench.process import cpu_time
from tools.laboratory.foreign import own, servers
from tools.laboratory.foreign.loads import (
    BACKLOG,
    BACKLOG_BYTES,
    MANY,
    SECONDS,
    SIZE,
    CatchUp,
    Runs,
    connected,
    loads,
    pumped,
    read_again_and_again,
    ready,
)
from tools.laboratory.foreign.protocols.connection import Publisher
from tools.laboratory.foreign.servers import ForeignServer, Unavailable

SECTION = "foreign"
BATCH_RECORDS, BATCHES_IN_FLIGHT = 127, 4
FILL_SECONDS_MAX = 15.0  # of a backlog: those that sync each message by itself get a smaller one, read more often
OURS, KAFKA = "Heliograph", "Kafka"
FOREIGN = {"Redis": servers.redis, "NATS JetStream": servers.nats, KAFKA: servers.kafka}


def report(bench: Bench) -> None:
    """Measure the rows of the section; a server that cannot be run is left out, and why is printed."""
    bench.say("measuring Heliograph, one process")
    found = {OURS: own.measure(bench, _directory(bench, "heliograph"))}
    for name, start in FOREIGN.items():
        bench.say(f"measuring {name}")
        try:
            with start(_directory(bench, name.split()[0])) as server:
                found[name] = uvloop.run(_measure(bench, server))
        except Unavailable as why:
            bench.say(f"{name} is skipped: {why}")
    for name, runs in found.items():
        _add(bench, name, runs, found[OURS])
    add_catch_up(bench, found)


def _directory(bench: Bench, name: str) -> Path:
    directory = bench.directory / f"foreign-{name.lower()}"
    directory.mkdir()
    return directory


def _add(bench: Bench, name: str, runs: Runs, ours: Runs) -> None:
    named = f"{name} {runs.version}"
    p50 = Limit(ours.one.latencies.percentile(0.5), OURS)
    value, p99 = runs.one.latencies.percentile(0.5), runs.one.latencies.percentile(0.99)
    bench.add(SECTION, f"one message in flight, p50: {named}", value, "ms", p50, p99_ms=p99)
    bench.add(
        SECTION,
        f"{MANY:,} in flight, each by itself: {named}",
        _rate(runs.many),
        "msgs/s",
        Limit(_rate(ours.many), OURS),
        server_us_per_message=runs.many_cpu / runs.many.messages * 1e6,
    )
    if runs.batches is not None and ours.batches is not None:
        bench.add(
            SECTION,
            f"batches of 128 KiB: {named}",
            _rate(runs.batches),
            "msgs/s",
            Limit(_rate(ours.batches), OURS),
            server_us_per_message=runs.batches_cpu / runs.batches.messages * 1e6,
        )


def _rate(run: MeasuredRun) -> float:
    return run.messages / run.seconds


def add_catch_up(bench: Bench, found: Mapping[str, Runs]) -> None:
    """Add how fast new consumers read a backlog: by the least client each, of which Heliograph's is to be ahead of
    Kafka's, and by our own client."""
    ours, kafka = found[OURS], found.get(KAFKA)
    assert ours.least is not None, "Heliograph's backlog was read"
    beside = Limit(ours.least.rate, f"{OURS}, least client")
    for name, runs in found.items():
        if runs.least is None:
            continue
        row = f"catch-up read, least client: {name} {runs.version}"
        if name == OURS and kafka is not None and kafka.least is not None:
            _add_read(bench, row, runs.least, Limit(kafka.least.rate, KAFKA), is_aim=True)
        else:
            _add_read(bench, row, runs.least, beside)
    if ours.client is not None:
        _add_read(bench, f"catch-up read, our client: {OURS} {ours.version}", ours.client, beside)


def _add_read(bench: Bench, row: str, found: CatchUp, against: Limit, *, is_aim: bool = False) -> None:
    bench.add(
        SECTION,
        row,
        found.rate,
        "msgs/s",
        against,
        aim=ratio_at_least(1.0) if is_aim else None,
        server_us_per_message=found.server_us,
        mb_per_s=found.run.bytes / found.run.seconds / 1e6,
    )


async def _measure(bench: Bench, server: ForeignServer) -> Runs:
    publisher = await ready(await connected(lambda: server.publisher("bench"), server.port))
    batches, batches_cpu = None, 0.0
    try:
        one, many, cpu = await loads(bench, lambda window, seconds: pumped(publisher, window, seconds), server.pid)
        if publisher.has_batches:
            publisher.records = BATCH_RECORDS
            await pumped(publisher, BATCHES_IN_FLIGHT, bench.seconds(SECONDS) / 5)  # warm
            before = cpu_time(server.pid).total
            batches = await pumped(publisher, BATCHES_IN_FLIGHT, bench.seconds(SECONDS))
            batches_cpu = cpu_time(server.pid).total - before
    finally:
        publisher.close()
    return Runs(server.version, one, many, cpu, batches, batches_cpu, await _catch_up(bench, server))


async def _catch_up(bench: Bench, server: ForeignServer) -> CatchUp:
    publisher = await ready(await connected(lambda: server.publisher(BACKLOG), server.port))
    try:
        messages = await _fill(bench, publisher)
    finally:
        publisher.close()
    seconds = bench.seconds(SECONDS)
    return await read_again_and_again(lambda: server.reader(BACKLOG, messages), server.port, server.pid, seconds)


async def _fill(bench: Bench, publisher: Publisher) -> int:
    """Publish a backlog; return how many messages it has."""
    window = MANY
    if publisher.has_batches:
        publisher.records, window = BATCH_RECORDS, BATCHES_IN_FLIGHT
    requests = bench.count(BACKLOG_BYTES // SIZE // publisher.records)
    return (await pumped(publisher, window, bench.seconds(FILL_SECONDS_MAX), requests)).messages
