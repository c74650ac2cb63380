"""Reads of one bookie, in processor time: single entries at random places, and scans of tables beside Parquet.

Processor time is counted in the process of the bookie and in that of its reader; neither depends on what else the
machine does as much as seconds do. The bookie has flushed what it holds, and caches none of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import uvloop

from heliograph.actors.errors import BookieError
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.metadata.model import Segment
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.pipelines.reading.columns import ALL_COLUMNS, schema_of
from heliograph.pipelines.reading.range_reader import read_ranges
from heliograph.protocol import entry as topic_entry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_batch, heads_of
from tests.bench.bench import Bench
from tests.bench.bookie.host import BOOKIE_ID
from tests.bench.bookie.load import TIMEOUT_MS, ask, connected, statistics
from tests.bench.figure import Limit, at_most
from tests.bench.process import Child, precise_cpu_seconds

SECTION = "reads"
KIB = 1 << 10
VALUE_BYTES = KIB
BATCH_MESSAGES = 127  # of a batch of 128 KiB
SCANNED_ROWS = 400_000
SCANS = 3  # of which the cheapest counts
PARQUET_TIMES = 2.0  # processor time of bookie and reader together
RANDOM_READS = 5_000
RANDOM_MS = 0.2
IN_FLIGHT = 64
TOPIC = "persistent://public/default/reads"
SETTLED_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Case:
    """A ledger: its rows, in entries of so many messages."""

    name: str
    ledger_id: int
    messages: int


CASES = (
    Case("entries of 1 KiB", 1, 1),
    Case("batches of 128 KiB", 2, BATCH_MESSAGES),
)


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    directory = bench.directory / "reads"
    directory.mkdir()
    changes = {"flush_interval_ms": 500, "read_cache_bytes": 0, "scrub_bytes_per_second": 0}
    with Child("tests.bench.bookie.host", directory, json.dumps(changes)) as bookie:
        address = bookie.said()
        for case in CASES:
            bench.say(f"measuring scans of {case.name}")
            piece = uvloop.run(_fill(address, case, bench.count(SCANNED_ROWS)))
            _measure_scan(bench, bookie.pid, case, piece)
        bench.say("measuring random reads")
        last = bench.count(SCANNED_ROWS) - 1
        uvloop.run(_measure_random(bench, bookie.pid, address, CASES[0].ledger_id, last))


def _measure_scan(bench: Bench, pid: int, case: Case, piece: LedgerRange) -> None:
    plan, parquet = bench.directory / f"{case.ledger_id}.ranges", bench.directory / f"{case.ledger_id}.parquet"
    plan.write_text(piece.to_json())
    with pq.ParquetWriter(parquet, schema=schema_of(ALL_COLUMNS)) as writer:
        for batch in read_ranges([piece], ALL_COLUMNS):
            writer.write_batch(batch)
    rounds = []
    for _ in range(SCANS):
        before = precise_cpu_seconds(pid)
        scanned = _scan(plan)
        served = precise_cpu_seconds(pid) - before
        rounds.append((served, scanned["cpu_seconds"], _scan(parquet)["cpu_seconds"]))
    us = 1e6 / scanned["rows"]
    bookie, reader, stored = (min(each) * us for each in zip(*rounds, strict=True))
    bench.add(
        SECTION,
        f"processor time of a row, seven columns of 1 KiB, {case.name}",
        bookie + reader,
        "us",
        Limit(stored, "Parquet, page cache"),
        aim=at_most(PARQUET_TIMES * stored),
        bookie_us=bookie,
        reader_us=reader,
        rows=scanned["rows"],
    )
    parquet.unlink()


def _scan(path: Path) -> dict[str, float]:
    with Child("tests.bench.tables.scan", path, *ALL_COLUMNS) as child:
        found: dict[str, float] = json.loads(child.said())
    return found


async def _measure_random(bench: Bench, pid: int, address: str, ledger_id: int, last: int) -> None:
    """Read single entries, one after the other, so far apart that none is read ahead."""
    places = random.Random(1)
    reads = bench.count(RANDOM_READS)
    with connected(address) as connection:
        await ask(connection, BookieRequest(BookieOp.READ, 0, ledger_id, last))
        before = await statistics(connection)
        cpu, own = precise_cpu_seconds(pid), time.process_time()
        for _ in range(reads):
            await ask(connection, BookieRequest(BookieOp.READ, 0, ledger_id, places.randrange(last)))
        cpu, own = precise_cpu_seconds(pid) - cpu, time.process_time() - own
        after = await statistics(connection)
    limit = Limit(RANDOM_MS, "the aim")
    bench.add(
        SECTION,
        "processor time of a bookie, one entry of 1 KiB at a random place",
        cpu / reads * 1e3,
        "ms",
        limit,
        aim=at_most(RANDOM_MS),
        reader_ms=own / reads * 1e3,
        disk_reads=after["disk_reads"] - before["disk_reads"],
        reads=reads,
    )


async def _fill(address: str, case: Case, rows: int) -> LedgerRange:
    """Add a ledger, and wait until it is in entry logs."""
    entries = max(1, rows // case.messages)
    places = asyncio.Semaphore(IN_FLIGHT)
    failed: list[Answer | BookieError] = []

    def answered(_: object, answer: Answer | BookieError, body: memoryview) -> None:
        if not isinstance(answer, Answer) or answer.status is not Status.OK:
            failed.append(answer)
        places.release()

    stored = 0
    with connected(address) as connection:
        for entry_id in range(entries):
            await places.acquire()
            payload = _entry(case.messages)
            stored += len(payload)
            body = encode_entry(case.ledger_id, entry_id, entry_id - 1, stored, payload)
            request = BookieRequest(BookieOp.ADD, 0, case.ledger_id, entry_id)
            connection.request(request, body, answered, None, TIMEOUT_MS)
        for _ in range(IN_FLIGHT):
            await places.acquire()
        assert not failed, f"an add failed: {failed[0]}"
        await _settled(connection)
    segments = (Segment(0, (BOOKIE_ID,)),)
    addresses = ((BOOKIE_ID, address),)
    return LedgerRange(TOPIC, -1, case.ledger_id, 0, entries - 1, 1, 1, segments, addresses, size=stored)


async def _settled(connection: BookieConnection) -> None:
    deadline = time.monotonic() + SETTLED_SECONDS_MAX
    while (await statistics(connection))["write_cache_entries"] and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.1)  # the bookie has no call that waits for a flush


def _entry(messages: int) -> bytes:
    metadata = pb.MessageMetadata(producer_name="reads", sequence_id=0, publish_time=1_700_000_000_000)
    block = topic_entry.encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=1_700_000_000_000, index=0))
    if messages == 1:
        return block + topic_entry.encode_entry(metadata, os.urandom(VALUE_BYTES))
    values = [os.urandom(VALUE_BYTES) for _ in range(messages)]
    return block + encode_batch(metadata, heads_of(values, None), values, pb.NONE)
