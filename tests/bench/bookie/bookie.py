"""One real bookie process under load: adds in bulk and one by one, reads, memory, and replay after a crash."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import uvloop

from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.messages import BookieOp, BookieRequest
from tests.bench.bench import Bench
from tests.bench.bookie.host import config_for
from tests.bench.bookie.load import AddLoad, ask, connected, statistics
from tests.bench.figure import Limit, at_least, at_most, ratio_at_least, ratio_at_most
from tests.bench.process import Child, bytes_written, cpu_time, memory_bytes

SECTION = "bookie"
KIB, MIB = 1 << 10, 1 << 20
SMALL_WINDOW = 2_000  # the most unanswered adds of 1 KiB
BIG_WINDOW = 64  # adds of 128 KiB
BACKLOG_ENTRY_BYTES = 64 * KIB
BACKLOG_BYTES = 2 << 30
TAIL_ADDS = 5_000  # each read back as soon as it was acknowledged
BEYOND_CACHES_BYTES = 150 * MIB  # memory without the caches
REPLAYS = ((KIB, 512 * MIB), (64 * KIB, 1024 * MIB))  # entries of a size, and how much of them
STAT_BLOCK_BYTES = 512  # the unit of st_blocks
ADD_SECONDS_MAX = 60.0  # for loads with a number instead of a time


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.measure_limits()
    for name, measure in (("bookie", _measure_serving), ("replay", _measure_replay)):
        measure(bench, bench.directory / name)
        shutil.rmtree(bench.directory / name)


def _measure_serving(bench: Bench, directory: Path) -> None:
    async def run(server: Child, address: str) -> None:
        with connected(address) as connection:
            await _measure_loads(bench, server, address, connection)

    with Child("tests.bench.bookie.host", directory) as server:
        uvloop.run(run(server, server.said()))


async def _measure_loads(bench: Bench, server: Child, address: str, connection: BookieConnection) -> None:
    bench.say("measuring one bookie: adds")
    await AddLoad(connection, 1, KIB).run(SMALL_WINDOW, bench.seconds(1.0))  # the journal has created its files
    await _measure_rate(bench, server, connection, AddLoad(connection, 2, KIB), SMALL_WINDOW)
    await _measure_rate(bench, server, connection, AddLoad(connection, 3, 128 * KIB), BIG_WINDOW)
    alone = await _measure_latency(bench, AddLoad(connection, 4, KIB))
    bench.say("measuring one bookie: reads")
    backlog = AddLoad(connection, 5, BACKLOG_ENTRY_BYTES)
    await backlog.run(BIG_WINDOW, ADD_SECONDS_MAX, bench.count(BACKLOG_BYTES // BACKLOG_ENTRY_BYTES))
    await _measure_reads(bench, address, backlog)
    await _measure_latency_beside_reader(bench, address, backlog, AddLoad(connection, 6, KIB), alone)
    await _measure_tail(bench, connection)
    await _report_index(bench, connection, bench.directory / "bookie")
    _report_memory(bench, server)


async def _measure_rate(bench: Bench, server: Child, connection: BookieConnection, load: AddLoad, window: int) -> None:
    before, cpu_before, written_before = await statistics(connection), cpu_time(server.pid), bytes_written(server.pid)
    run = await load.run(window, bench.seconds(3.0))
    after, cpu = await statistics(connection), cpu_time(server.pid) - cpu_before
    written = (bytes_written(server.pid) - written_before) / run.bytes
    size = run.bytes // run.messages
    peer = bench.peer
    syncs = after["journal_syncs"] - before["journal_syncs"]
    more = {
        "adds_per_sync": run.messages / max(1, syncs),
        "user_us_per_add": cpu.user / run.messages * 1e6,
        "kernel_us_per_add": cpu.kernel / run.messages * 1e6,
        "p50_ms": run.latencies.percentile(0.5),
    }
    per_second = run.messages / run.seconds
    name = f"{size // KIB} KiB adds, {window:,} in flight"
    if size == KIB:
        bench.add(SECTION, name, per_second, "adds/s", peer.small_rate, aim=ratio_at_least(0.06), **more)
    else:
        big = Limit(peer.big.messages / peer.big.seconds, "bare log, 128 KiB")
        bench.add(SECTION, name, per_second, "adds/s", big, **more)
    journal_bytes = after["journal_bytes_fsynced"] - before["journal_bytes_fsynced"]
    limit = bench.disk.of_blocks(journal_bytes / max(1, syncs))
    aim = at_least(round(0.6 * limit.value, 1)) if size > KIB else None
    per_sync = journal_bytes / max(1, syncs) / 1e3
    journal = journal_bytes / run.seconds / 1e6
    name = f"{size // KIB} KiB adds"
    bench.add(SECTION, f"journal meanwhile, {name}", journal, "MB/s", limit, aim=aim, kb_per_sync=per_sync)
    if size > KIB:
        fresh = bench.disk.fresh_of_blocks(journal_bytes / max(1, syncs))
        bench.add(SECTION, f"the same, of what newly allocated blocks take, {name}", journal, "MB/s", fresh)
        flushed = after["bytes_flushed"] - before["bytes_flushed"]
        both = (journal_bytes + flushed) / run.seconds / 1e6
        bench.add(SECTION, f"journal and entry logs meanwhile, {name}", both, "MB/s", limit)
        once = Limit(1.0, "each byte once")
        name = f"bytes written to the disk for each byte, one copy, {name}"
        bench.add(SECTION, name, written, "bytes", once, aim=at_most(1.27), three_copies=3 * written)


async def _measure_latency(bench: Bench, load: AddLoad) -> float:
    """Return the 99th percentile in ms."""
    run = await load.run(1, bench.seconds(4.0))
    p50, p99 = run.latencies.percentile(0.5), run.latencies.percentile(0.99)
    bench.add(
        SECTION, "one add in flight, p50", p50, "ms", bench.peer.add_p50, aim=ratio_at_most(2.0), adds=run.messages
    )
    bench.add(SECTION, "one add in flight, p99", p99, "ms", bench.peer.add_p99, aim=ratio_at_most(2.5))
    return p99


async def _measure_reads(bench: Bench, address: str, backlog: AddLoad) -> None:
    rate = _read_in_child(address, backlog, bench.seconds(3.0))
    echo = 1e3 / bench.peer.echo_p50.value  # round trips per second
    bench.add(
        SECTION,
        f"catch-up read, {BACKLOG_ENTRY_BYTES // KIB} KiB entries",
        rate["mb_per_s"],
        "MB/s",
        Limit(echo * MIB / 1e6, "1 MiB for each empty round trip"),
        aim=ratio_at_least(0.03),
    )


async def _measure_latency_beside_reader(
    bench: Bench, address: str, backlog: AddLoad, load: AddLoad, alone_p99: float
) -> None:
    seconds = bench.seconds(4.0)
    with _reader(address, backlog, seconds + 1.0) as reader:
        run = await load.run(1, seconds)
        read = json.loads(reader.said())
    bench.add(
        SECTION,
        "one add in flight beside a catch-up reader, p99",
        run.latencies.percentile(0.99),
        "ms",
        Limit(alone_p99, "the same alone"),
        aim=at_most(round(2 * alone_p99, 3)),
        p50_ms=run.latencies.percentile(0.5),
        read_mb_per_s=read["mb_per_s"],
    )


async def _measure_tail(bench: Bench, connection: BookieConnection) -> None:
    """Read each entry right after its acknowledgement, and count where it came from."""
    load = AddLoad(connection, 8, KIB)
    before = await statistics(connection)
    for number in range(bench.count(TAIL_ADDS)):
        await load.run(1, ADD_SECONDS_MAX, 1)
        await ask(connection, BookieRequest(BookieOp.READ, 0, load.ledger_id, number))
    after = await statistics(connection)
    reads = after["reads"] - before["reads"]
    hits = sum(after[name] - before[name] for name in ("write_cache_hits", "read_cache_hits"))
    bench.add(
        SECTION, "tail reads served from memory", hits / reads, "of reads", Limit(1.0, "all of them"), reads=reads
    )


async def _report_index(bench: Bench, connection: BookieConnection, directory: Path) -> None:
    """Measure the index's bytes on disk per added entry."""
    entries = (await statistics(connection))["entries_added"]
    size = sum(path.stat().st_size for path in (directory / "data" / "index").iterdir())
    logs = [path for kind in ("log", "kept") for path in (directory / "data").glob(f"*.{kind}")]
    stored = sum(path.stat().st_blocks * STAT_BLOCK_BYTES for path in logs)
    bench.add(
        SECTION,
        "index, bytes on the disk for each entry",
        size / entries,
        "bytes",
        Limit(stored / entries, "the entries themselves"),
        entries=entries,
        mb=size / 1e6,
    )


def _report_memory(bench: Bench, server: Child) -> None:
    config = config_for(Path(), {})
    bound = config.write_cache_bytes + config.read_cache_bytes + config.index_cache_bytes + BEYOND_CACHES_BYTES
    bench.add(
        SECTION,
        "memory after all of this",
        (memory_bytes(server.pid) + memory_bytes(server.pid, "RssShmem")) / 1e6,  # its aligned buffers are the latter
        "MB",
        Limit(bound / 1e6, "its caches + 150 MiB"),
        aim=at_most(round(bound / 1e6)),
        peak_mb=memory_bytes(server.pid, "VmHWM") / 1e6,
    )


def _measure_replay(bench: Bench, directory: Path) -> None:
    for size, total in REPLAYS:
        _measure_replay_of(bench, directory / str(size), size, bench.count(total // size))


def _measure_replay_of(bench: Bench, directory: Path, size: int, count: int) -> None:
    """Fill a journal without flushes, kill the bookie, and start it again with its usual settings."""
    bench.say(f"measuring one bookie: replay of {size // KIB} KiB entries")
    changes = {"flush_interval_ms": 3_600_000, "write_cache_bytes": 4 << 30}  # it is flushed at 1.5 GiB

    async def fill(address: str) -> int:
        with connected(address) as connection:
            window = SMALL_WINDOW if size == KIB else BIG_WINDOW
            await AddLoad(connection, 1, size).run(window, ADD_SECONDS_MAX, count)
            return int((await statistics(connection))["journal_bytes_fsynced"])

    async def replayed(address: str) -> dict[str, Any]:
        with connected(address) as connection:
            return await statistics(connection)

    with Child("tests.bench.bookie.host", directory, json.dumps(changes)) as server:
        journal_bytes = uvloop.run(fill(server.said()))
        server.kill()
    with Child("tests.bench.bookie.host", directory) as server:
        found = uvloop.run(replayed(server.said()))
        peak = memory_bytes(server.pid, "VmHWM") / 1e6
        server.kill()
    assert found["replayed_entries"] == count, "every acknowledged entry is replayed"  # I1
    seconds_per_gb = found["replay_seconds"] / journal_bytes * 1e9
    written = Limit(1e3 / bench.disk.best.value, "writing 1 GB at the disk's best")
    sample = f"scaled from {journal_bytes / 1e9:.2f} GB"
    name = f"replay of a journal of {size // KIB} KiB entries after SIGKILL"
    bench.add(SECTION, name, seconds_per_gb, "s/GB", written, sample=sample, peak_mb=peak)


def _reader(address: str, backlog: AddLoad, seconds: float) -> Child:
    return Child("tests.bench.bookie.load", address, backlog.ledger_id, backlog.next_entry_id - 1, seconds)


def _read_in_child(address: str, backlog: AddLoad, seconds: float) -> dict[str, float]:
    with _reader(address, backlog, seconds) as reader:
        found: dict[str, float] = json.loads(reader.said())
    return found
