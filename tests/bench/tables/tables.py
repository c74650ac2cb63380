"""Topics as tables, on one core: against the same rows in a Parquet file, and against a consumer of the topic."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pyarrow.parquet as pq
import uvloop

import heliograph
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.reading.columns import ALL_COLUMNS, VALUE, schema_of
from heliograph.pipelines.reading.range_reader import read_ranges
from heliograph.pipelines.writing.in_flight import IN_FLIGHT_BYTES_MAX
from tests.bench.bench import Bench
from tests.bench.broker.consume import reader
from tests.bench.broker.private_cluster import PrivateCluster
from tests.bench.figure import Aim, Limit, at_least, at_most
from tests.bench.process import Child
from tests.bench.tables.expanding import expanding_ledgers

SECTION = "tables"
BATCH_ROWS = 1_000
ROWS_AIM = 1_000_000  # value only, small messages, a second of one core
BYTES_AIM_MB = 400  # value only, 1 KiB
ALL_COLUMNS_SHARE = 1 / 3  # of the rows with the value alone
PARQUET_SHARE = 1 / 3
FEW_BYTES, MANY_BYTES = 1 << 30, 20 << 30  # of values in the topics whose readers' memory is compared
FLAT = 1.2  # times the memory of the small topic's reader


@dataclass(frozen=True, slots=True)
class Case:
    """A topic: messages of equal or different sizes, with or without keys."""

    name: str
    topic: str
    rows: int
    sizes: Sequence[int]
    has_keys: bool = False

    @property
    def mean_bytes(self) -> float:
        """Return the mean size of a message."""
        return sum(self.sizes) / len(self.sizes)


CASES = (
    Case("100 bytes", "tables-small", 3_000_000, (100,)),
    Case("50 to 149 bytes, keys", "tables-varied", 3_000_000, tuple(range(50, 150)), has_keys=True),
    Case("1 KiB", "tables-large", 600_000, (1 << 10,)),
)
WRITTEN = ((100, 1_000_000), (1 << 10, 300_000))  # bytes of a value, rows


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    cluster = bench.cluster()
    for case in CASES:
        bench.say(f"measuring tables of messages of {case.name}")
        uvloop.run(_fill(cluster, case, bench.count(case.rows)))
        _measure(bench, cluster, case)
    _measure_memory(bench)
    for size, rows in WRITTEN:
        bench.say(f"measuring tables written in messages of {size} bytes")
        _written(bench, cluster, size, bench.count(rows))


def _written(bench: Bench, cluster: PrivateCluster, size: int, rows: int) -> None:
    waiting, found = (_write(cluster, size, rows, in_flight) for in_flight in (0, IN_FLIGHT_BYTES_MAX))
    limit = Limit(waiting["rows"] / waiting["seconds"], "1,000 rows on their way")
    bench.add(
        SECTION,
        f"written by one task, keys, {size} bytes",
        found["rows"] / found["seconds"],
        "rows/s",
        limit,
        aim=at_least(limit.value),
        mb_per_s=found["rows"] * size / found["seconds"] / 1e6,
        cpu_us_a_row=found["cpu_seconds"] / found["rows"] * 1e6,
    )


def _write(cluster: PrivateCluster, size: int, rows: int, in_flight: int) -> dict[str, float]:
    topic = f"written-{size}-{in_flight}"
    with Child("tests.bench.tables.write", cluster.service_url, topic, rows, size, in_flight) as child:
        found: dict[str, float] = json.loads(child.said())
    return found


def _measure(bench: Bench, cluster: PrivateCluster, case: Case) -> None:
    ranges = plan_topic(case.topic, access=ClusterAccess(cluster.namespace))
    plan, parquet = bench.directory / f"{case.topic}.ranges", bench.directory / f"{case.topic}.parquet"
    plan.write_text("\n".join(piece.to_json() for piece in ranges))
    with pq.ParquetWriter(parquet, schema=schema_of(ALL_COLUMNS)) as writer:
        for batch in read_ranges(ranges, ALL_COLUMNS):
            writer.write_batch(batch)
    with reader("ours", cluster, case.topic, "earliest", bench.seconds(4.0)) as child:
        child.said()
        consumed = json.loads(child.said())
    consumer = Limit(consumed["messages"] / consumed["seconds"], "our client consumes")
    consumer_cpu = consumed["cpu_us_a_message"]
    values = _scan(plan, VALUE)
    fast = ROWS_AIM if case.mean_bytes < 1000 else BYTES_AIM_MB * 1e6 / case.mean_bytes
    _add(bench, f"value of {case.name}", values, consumer, at_least(fast), consumer_cpu)
    every = _scan(plan, *ALL_COLUMNS)
    alone = Limit(values["rows"] / values["seconds"], "value alone")
    _add(bench, f"seven columns, {case.name}", every, alone, at_least(ALL_COLUMNS_SHARE * alone.value))
    stored = _scan(parquet, *ALL_COLUMNS)
    limit = Limit(stored["rows"] / stored["seconds"], "Parquet, page cache")
    _add(bench, f"seven columns, {case.name}, again", every, limit, at_least(PARQUET_SHARE * limit.value))
    bench.add(
        SECTION,
        f"processor time of a row, seven columns, {case.name}",
        _cpu_us(every),
        "us",
        Limit(_cpu_us(stored), "Parquet, page cache"),
        aim=at_most(_cpu_us(stored) / PARQUET_SHARE),
        consumer_us=consumer_cpu,
    )
    parquet.unlink()
    _measure_count(bench, case, plan)


def _measure_count(bench: Bench, case: Case, plan: Path) -> None:
    """Count rows by the heads of entries, and by whole entries, as counts were made before."""
    heads, whole = _scan(plan, "--count"), _scan(plan, "--count-whole")
    assert heads["rows"] == whole["rows"], "both count the same rows"
    bench.add(
        SECTION,
        f"count of {case.name}",
        heads["rows"] / heads["seconds"],
        "rows/s",
        Limit(whole["rows"] / whole["seconds"], "whole entries"),
        aim=at_least(whole["rows"] / whole["seconds"]),
        mb_received=heads["bytes"] / 1e6,
        mb_of_whole_entries=whole["bytes"] / 1e6,
        cpu_us_a_row=_cpu_us(heads),
        cpu_us_a_row_of_whole_entries=_cpu_us(whole),
    )


def _scan(path: Path, *columns: str) -> dict[str, float]:
    with Child("tests.bench.tables.scan", path, *columns) as child:
        found: dict[str, float] = json.loads(child.said())
    return found


def _add(
    bench: Bench, name: str, found: dict[str, float], against: Limit, aim: Aim, consumer_cpu: float | None = None
) -> None:
    bench.add(
        SECTION,
        name,
        found["rows"] / found["seconds"],
        "rows/s",
        against,
        aim=aim,
        mb_per_s=found["bytes"] / found["seconds"] / 1e6,
        cpu_us_a_row=_cpu_us(found),
        peak_mb=found["peak_mb"],
        **({} if consumer_cpu is None else {"consumer_us": consumer_cpu}),
    )


def _cpu_us(found: dict[str, float]) -> float:
    """Return the processor time of a row, in microseconds."""
    return found["cpu_seconds"] / found["rows"] * 1e6


def _measure_memory(bench: Bench) -> None:
    """Read two topics of which one is many times as large, and compare the memory of the readers."""
    bench.say("measuring the memory of a reader of a large topic")
    small, large = FEW_BYTES, bench.count(MANY_BYTES)
    with expanding_ledgers(bench.directory / "expanding", (small, large)) as ranges:
        found = []
        for number, piece in enumerate(ranges):
            plan = bench.directory / f"expanding-{number}.ranges"
            plan.write_text(piece.to_json())
            found.append(_scan(plan, *ALL_COLUMNS))
    few, many = found
    bench.add(
        SECTION,
        f"memory of a reader of {many['bytes'] / 1e9:.0f} GB of values, ZSTD",
        many["pss_mb"],
        "MB",
        Limit(few["pss_mb"], f"of {few['bytes'] / 1e9:.1f} GB"),
        aim=at_most(FLAT * few["pss_mb"]),
        peak_mb=many["peak_mb"],
        seconds=many["seconds"],
        mb_per_s=many["bytes"] / many["seconds"] / 1e6,
    )


async def _fill(cluster: PrivateCluster, case: Case, rows: int) -> None:
    client = await heliograph.connect_async(cluster.service_url)
    try:
        producer = await client.producer(case.topic)
        sizes = [case.sizes[number % len(case.sizes)] for number in range(BATCH_ROWS)]
        ends = list(accumulate(sizes))
        keys = [f"key-{number % 317}" for number in range(BATCH_ROWS)] if case.has_keys else None
        for _ in range(max(1, rows // BATCH_ROWS)):
            random = os.urandom(ends[-1])  # no value comes twice: Parquet would store it once
            values = [random[end - size : end] for size, end in zip(sizes, ends, strict=True)]
            await producer.send_many(values, keys=keys)
    finally:
        await client.close()
