"""The limits of this disk: the cost of appending and overwriting with fdatasync, without Heliograph.

Overwriting is measured through the page cache and past it (O_DIRECT); the faster one counts, because it is a limit.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from heliograph.cli.messages.measure import Latencies
from tests.bench.bench import Bench
from tests.bench.figure import Limit

SECTION = "disk"
KIB = 1 << 10
SIZES = (4 * KIB, 64 * KIB, 256 * KIB, 1024 * KIB, 4096 * KIB)
LOG_BYTES = 512 << 20  # of a file that grows beside an overwritten one, before the next is begun
LOG_SYNC_BYTES = 24 << 20  # between two syncs of it, as a bookie's flush
FILE_BYTES = 64 << 20  # as a bookie's journal file
TWICE_SIZES = (256 * KIB, 1024 * KIB, 4096 * KIB)
FILES_AT_ONCE = 3  # three bookies share this disk in a cluster on one machine
SHARED_BYTES = 256 * KIB
PASSES = 2  # over all sizes; the faster one counts, because it is a limit


@dataclass(frozen=True, slots=True)
class DiskRun:
    """One way of writing: bytes per second, and the time of one write with its sync."""

    bytes_per_second: float
    latencies: Latencies

    @property
    def mb_per_second(self) -> float:
        """Return the rate in 10^6 bytes per second."""
        return self.bytes_per_second / 1e6

    @property
    def p50_ms(self) -> float:
        """Return the median time of one write with its sync."""
        return self.latencies.percentile(0.5)


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """The limits. ``overwrite`` and ``append`` are by block size; ``shared`` is the sum of three files at once.

    ``fresh`` is by block size: bytes per second of files whose blocks are allocated and were never written, each block
    with a sync. So a journal writes whose files become entry logs.
    ``twice`` is by block size too: bytes per second of a file that is overwritten with a sync for each block, while a
    thread appends as much to another file: what a bookie that stores each byte in a journal and a log can take.
    """

    append: dict[int, DiskRun]
    overwrite: dict[int, DiskRun]
    shared_bytes_per_second: float
    fresh: dict[int, DiskRun]
    twice_bytes_per_second: dict[int, float]
    cache_cpu_per_byte: float  # seconds that the kernel takes to put a byte of a growing file into its page cache
    recache_cpu_per_byte: float  # the same for a file that is in the cache already

    @property
    def best(self) -> Limit:
        """Return the highest MB/s of one file over all block sizes."""
        return Limit(max(run.mb_per_second for run in self.overwrite.values()), "best overwrite of one file")

    def of_blocks(self, size: float) -> Limit:
        """Return MB/s of one file overwritten in blocks of the measured size that is nearest to ``size`` bytes."""
        nearest = min(SIZES, key=lambda each: abs(math.log(each / size)))
        return Limit(self.overwrite[nearest].mb_per_second, f"overwrite of one file, {nearest // KIB} KiB")

    def fresh_of_blocks(self, size: float) -> Limit:
        """Return MB/s of newly allocated files in blocks of the nearest measured size."""
        nearest = min(self.fresh, key=lambda each: abs(math.log(each / size)))
        return Limit(self.fresh[nearest].mb_per_second, f"newly allocated files, {nearest // KIB} KiB")

    def twice_of_blocks(self, size: float) -> Limit:
        """Return MB/s of a journal in blocks of the nearest measured size, while a log takes the same bytes."""
        nearest = min(self.twice_bytes_per_second, key=lambda each: abs(math.log(each / size)))
        value = self.twice_bytes_per_second[nearest] / 1e6
        return Limit(value, f"the same overwrite while a log takes each byte too, {nearest // KIB} KiB")

    @property
    def shared(self) -> Limit:
        """Return MB/s of three files overwritten at once in 256 KiB blocks."""
        return Limit(self.shared_bytes_per_second / 1e6, "three files overwritten at once, 256 KiB")


@dataclass(frozen=True, slots=True)
class DiskYardstick:
    """What a disk does with a sync for each write: the median of a small one, the rate of larger ones."""

    append_p50_ms: float
    overwrite_mb_per_s: float

    def __str__(self) -> str:
        return (
            f"append + fdatasync of 4 KiB takes {self.append_p50_ms:.3f} ms, overwrite + fdatasync of 256 KiB does "
            f"{self.overwrite_mb_per_s:,.0f} MB/s"
        )


def yardstick(directory: Path, seconds: float) -> DiskYardstick:
    """Measure this disk for about that time; ``measure`` is thorough."""
    used = _prewritten(directory / "yardstick")
    small = _append(directory / "yardstick-append", 4 * KIB, seconds / 2)
    large = _overwrite(used, SHARED_BYTES, seconds / 2)
    used.unlink()
    return DiskYardstick(small.p50_ms, large.mb_per_second)


def measure(directory: Path, seconds: float, bytes_cached: int) -> DiskLimits:
    """Measure each way of writing for ``seconds``, and the cost of caching that many bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    used = [_prewritten(directory / f"overwrite-{number}") for number in range(FILES_AT_ONCE)]
    append: dict[int, DiskRun] = {}
    overwrite: dict[int, DiskRun] = {}
    fresh: dict[int, DiskRun] = {}
    twice: dict[int, float] = {}
    shared = 0.0
    for _ in range(PASSES):
        for size in SIZES:
            _keep_faster(append, size, _append(directory / "append", size, seconds / PASSES))
            for is_direct in (False, True):
                _keep_faster(overwrite, size, _overwrite(used[0], size, seconds / PASSES / 2, is_direct=is_direct))
        for size in TWICE_SIZES:
            _keep_faster(fresh, size, _write_fresh(directory / "fresh", size, seconds / PASSES))
            run = _overwrite_and_append(used[0], directory / "log", size, seconds / PASSES)
            twice[size] = max(twice.get(size, 0.0), run)
        shared = max(shared, _overwrite_together(used, seconds / PASSES))
    cache, recache = _cache_cpu(directory / "cached", bytes_cached)
    limits = DiskLimits(append, overwrite, shared, fresh, twice, cache, recache)
    for path in used:
        path.unlink()
    return limits


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    limits = bench.disk
    for size in SIZES:
        for way, run in (("append", limits.append[size]), ("overwrite", limits.overwrite[size])):
            bench.add(
                SECTION,
                f"{way} + fdatasync, {size // KIB} KiB",
                run.mb_per_second,
                "MB/s",
                limits.best,
                p50_ms=run.p50_ms,
                p99_ms=run.latencies.percentile(0.99),
            )
    for size in TWICE_SIZES:
        run, name = limits.fresh[size], f"newly allocated files + fdatasync, {size // KIB} KiB"
        bench.add(SECTION, name, run.mb_per_second, "MB/s", limits.of_blocks(size), p50_ms=run.p50_ms)
        name = f"overwrite + fdatasync while a log takes each byte too, {size // KIB} KiB"
        bench.add(SECTION, name, limits.twice_of_blocks(size).value, "MB/s", limits.of_blocks(size))
    bench.add(SECTION, limits.shared.name, limits.shared.value, "MB/s", limits.best)
    again = Limit(limits.recache_cpu_per_byte * 1e9, "overwriting the cached file")
    bench.add(SECTION, "kernel's CPU for caching a new file", limits.cache_cpu_per_byte * 1e9, "s/GB", again)


def _append(path: Path, size: int, seconds: float) -> DiskRun:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        return _write(fd, size, seconds, wraps=False)
    finally:
        os.close(fd)
        path.unlink()


def _keep_faster(runs: dict[int, DiskRun], size: int, run: DiskRun) -> None:
    if size not in runs or run.bytes_per_second > runs[size].bytes_per_second:
        runs[size] = run


def _overwrite(path: Path, size: int, seconds: float, *, is_direct: bool = False) -> DiskRun:
    fd = _open(path, os.O_RDWR, is_direct=is_direct)
    try:
        return _write(fd, size, seconds, wraps=True)
    finally:
        os.close(fd)


def _open(path: Path, flags: int, *, is_direct: bool) -> int:
    """Open a file past the page cache if that is requested and the file system supports it."""
    if is_direct:
        try:
            return os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError:
            pass
    return os.open(path, flags, 0o600)


def _overwrite_and_append(path: Path, log: Path, size: int, seconds: float) -> float:
    """Return the bytes per second that both files take: the slower one counts."""
    written, appended = [0], [0]
    ended = threading.Event()

    def append() -> None:
        block = _block(1 << 20)
        while not ended.is_set():
            fd = _open(log, os.O_RDWR | os.O_CREAT | os.O_TRUNC, is_direct=True)
            for offset in range(0, LOG_BYTES, len(block)):
                while written[0] < appended[0] and not ended.is_set():
                    time.sleep(0.0002)
                if ended.is_set():
                    break
                os.pwrite(fd, block, offset)
                appended[0] += len(block)
                if appended[0] % LOG_SYNC_BYTES == 0:
                    os.fdatasync(fd)
            os.close(fd)

    appender = threading.Thread(target=append)
    fd = _open(path, os.O_RDWR, is_direct=True)
    block = _block(size)
    appender.start()
    begun = time.perf_counter()
    try:
        while time.perf_counter() - begun < seconds:
            os.pwrite(fd, block, written[0] % (FILE_BYTES - FILE_BYTES % size))
            os.fdatasync(fd)
            written[0] += size
        return min(written[0], appended[0]) / (time.perf_counter() - begun)
    finally:
        ended.set()
        appender.join()
        os.close(fd)
        log.unlink()


def _block(size: int) -> mmap.mmap:
    """Return random bytes in aligned memory."""
    block = mmap.mmap(-1, size)
    block[:] = os.urandom(size)
    return block


def _write(fd: int, size: int, seconds: float, *, wraps: bool) -> DiskRun:
    data = _block(size)
    latencies = Latencies()
    offset, written = 0, 0
    begun = now = time.perf_counter()
    while now - begun < seconds:
        os.pwrite(fd, data, offset)
        os.fdatasync(fd)
        before, now = now, time.perf_counter()
        latencies.add((now - before) * 1000)
        written += size
        offset += size
        if wraps and offset + size > FILE_BYTES:
            offset = 0
    return DiskRun(written / (now - begun), latencies)


def _write_fresh(path: Path, size: int, seconds: float) -> DiskRun:
    """Write file after file, whose allocation is not measured."""
    data = _block(size)
    latencies = Latencies()
    written, took = 0, 0.0
    for fd in _allocated(path):
        for offset in range(0, FILE_BYTES - size + 1, size):
            begun = time.perf_counter()
            os.pwrite(fd, data, offset)
            os.fdatasync(fd)
            its = time.perf_counter() - begun
            latencies.add(its * 1000)
            written, took = written + size, took + its
        if took >= seconds:
            break
    return DiskRun(written / took, latencies)


def _allocated(path: Path) -> Iterator[int]:
    """Yield new files of FILE_BYTES whose blocks were not written, one at a time."""
    while True:
        fd = _open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, is_direct=True)
        try:
            os.posix_fallocate(fd, 0, FILE_BYTES)
            os.fsync(fd)
            yield fd
        finally:
            os.close(fd)
            path.unlink()


def _overwrite_together(paths: list[Path], seconds: float) -> float:
    """Return bytes per second of all files together, each written by its own thread (system calls release the GIL)."""
    with ThreadPoolExecutor(len(paths)) as threads:
        return sum(run.bytes_per_second for run in threads.map(lambda p: _overwrite(p, SHARED_BYTES, seconds), paths))


def _cache_cpu(path: Path, size: int) -> tuple[float, float]:
    """Return kernel seconds per byte of appending to a new file without a sync, and of overwriting it.

    Where a hypervisor allocates memory at first touch, the first is many times the second.
    """
    data = os.urandom(1 << 20)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        costs = []
        for _ in range(2):
            before = os.times().system
            for offset in range(0, size, len(data)):
                os.pwrite(fd, data, offset)
            costs.append((os.times().system - before) / size)
    finally:
        os.close(fd)
        path.unlink()
    return costs[0], costs[1]


def _prewritten(path: Path) -> Path:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        for offset in range(0, FILE_BYTES, 1 << 20):
            os.pwrite(fd, os.urandom(1 << 20), offset)
        os.fsync(fd)
    finally:
        os.close(fd)
    return path
