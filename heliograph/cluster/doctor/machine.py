"""Checks of this machine: the interpreter, Ray, Java, the limits of processes, and the disks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from heliograph.base.errors import HeliographError, UnsupportedError
from heliograph.base.system.files import file_system_of, sync_data
from heliograph.base.system.processes import memory_left
from heliograph.base.version import DISTRIBUTION, heliograph_version
from heliograph.client import ray_release
from heliograph.cluster.doctor.finding import CheckResult, ok, problem, warning
from heliograph.metadata.etcd_member.binary import dotted, find_etcd

OPEN_FILES_WANTED = 65_536  # connections, entry logs and the index of a bookie
OPEN_FILES_LEAST = 4_096
SYNC_WRITES = 100
SYNC_WRITE_BYTES = 4_096
SYNC_SECONDS_MAX = 10.0  # for one disk; a slower one is measured by fewer writes # I15
SYNC_WARNING_MS = 20.0
SYNC_PROBLEM_MS = 250.0  # publishing waits for it
FREE_SHARE_WARNING = 0.10
RAM_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})
_BOUND = re.compile(r"(>=|<)\s*(\d+)\.(\d+)")


def check_python() -> CheckResult:
    """Check the interpreter: its version, and that it runs assertions."""
    found = f"{sys.version.split()[0]}, heliograph {heliograph_version()}"
    wanted = _wanted_python()
    if not _is_within(".".join(map(str, sys.version_info[:2])), wanted):
        return problem("Python", found, f"use a Python with {wanted}")
    if os.environ.get("PYTHONOPTIMIZE") or sys.flags.optimize:
        return problem("Python", f"{found}, without assertions", "unset PYTHONOPTIMIZE, and run python without -O")
    return ok("Python", found)


def check_ray() -> CheckResult:
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return warning(
            "Ray",
            "not installed",
            f"all but the client and `helio dev` needs it: pip install '{DISTRIBUTION}[cluster]'",
        )
    try:
        ray_release.require_supported(found)
    except UnsupportedError as error:
        return problem("Ray", found, f"install ray{error.limit}, and the same version on every node")
    if told := ray_release.untested(found):
        return warning("Ray", told, f"ray=={ray_release.NEWEST_TESTED}.* was tested")
    return ok("Ray", found)


def check_java() -> CheckResult:
    """Check the Java that Spark would use."""
    from heliograph.pipelines.spark.java import java_environment

    try:
        home = java_environment(os.environ).get("JAVA_HOME") or os.environ.get("JAVA_HOME", "")
    except HeliographError as error:
        return warning("Java", str(error), "only Spark needs it: set JAVA_HOME to a Java that it runs on")
    if not home and shutil.which("java") is None:
        return warning("Java", "none", f"only Spark needs it: pip install '{DISTRIBUTION}[spark]'")
    return ok("Java", home or str(shutil.which("java")))


def check_etcd(configured: str) -> CheckResult:
    """Check the etcd that a member on this machine would run.

    Args:
        configured: its path; empty: it is looked for in PATH.
    """
    try:
        path, version = find_etcd(configured)
    except HeliographError as error:
        return warning("etcd", str(error), "nodes labelled heliograph.io/metadata=true need it, others do not")
    return ok("etcd", f"{dotted(version)}, {path}")


def check_open_files() -> CheckResult:
    """Check how many files a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    name, found = "open files", f"{_limit(soft)} (hard limit {_limit(hard)})"
    way_out = f"ulimit -n {OPEN_FILES_WANTED} before `helio up` and `ray start`, or LimitNOFILE= in the systemd unit"
    if 0 <= soft < OPEN_FILES_LEAST:
        return problem(name, found, way_out)
    if 0 <= soft < OPEN_FILES_WANTED:
        return warning(name, found, way_out)
    return ok(name, found)


def check_memory(sizes: tuple[int, int] | None = None) -> CheckResult:
    """Check how much of the machine's memory is left.

    Args:
        sizes: bytes that are left, and all; None: those of the system.
    """
    if (sizes := sizes or memory_left()) is None:
        return ok("memory", "this system does not report free memory")
    left, total = sizes
    found = f"{left / 2**30:.1f} GiB of {total / 2**30:.1f} left"
    if left < FREE_SHARE_WARNING * total:
        return warning("memory", found, "Ray ends jobs where less than 5 % is left: run fewer, or add memory")
    return ok("memory", found)


def separate_disks(directories: Sequence[Path]) -> list[Path]:
    """Return the first directory on each file system."""
    found: dict[int, Path] = {}
    for directory in directories:
        found.setdefault(_nearest(directory).stat().st_dev, directory)
    return list(found.values())


def check_disk(directory: Path, full_share: float, headroom_bytes: int) -> Iterator[CheckResult]:
    """Check the file system of a directory: its kind, its free space, and the time of a synced write.

    Args:
        directory: it need not exist; then the nearest one above it is measured.
        full_share: used share above which a bookie takes no entries, unless ``headroom_bytes`` are free.
    """
    place = _nearest(directory)
    name = f"disk of {directory}"
    if (kind := file_system_of(place)) in RAM_FILE_SYSTEMS:
        yield problem(name, f"{kind}, which is memory", "choose a disk with data_directory: a power cut deletes all")
    usage = shutil.disk_usage(place)
    used = (usage.total - usage.free) / usage.total if usage.total else 1.0
    found = f"{usage.free / 2**30:.1f} GiB of {usage.total / 2**30:.1f} free"
    if used > full_share and usage.free < headroom_bytes:
        yield problem(name, found, "free space or add a disk: bookies on it are read-only")
    elif 1 - used < FREE_SHARE_WARNING:
        yield warning(name, found, "free space, shorten retention, or add bookies on other disks")
    else:
        yield ok(name, found)
    yield _check_sync(place, directory)


def sync_times_ms(directory: Path, writes: int = SYNC_WRITES) -> list[float]:
    """Return the times of single synced writes to a file in a directory, sorted.

    Raises:
        OSError: the directory cannot be written.
    """
    times: list[float] = []
    with tempfile.NamedTemporaryFile(dir=directory, prefix=".helio-doctor-") as file:
        begun = time.monotonic()
        while len(times) < writes and time.monotonic() - begun < SYNC_SECONDS_MAX:
            before = time.perf_counter()
            os.write(file.fileno(), bytes(SYNC_WRITE_BYTES))
            sync_data(file.fileno())
            times.append((time.perf_counter() - before) * 1000)
    return sorted(times)


def _check_sync(place: Path, directory: Path) -> CheckResult:
    name = f"fsync in {directory}"
    try:
        times = sync_times_ms(place)
    except OSError as error:
        return problem(name, f"{place} cannot be written: {error.strerror}", "give this user the directory")
    p99 = times[max(0, -(-len(times) * 99 // 100) - 1)]
    found = f"p50 {times[len(times) // 2]:.2f} ms, p99 {p99:.2f} ms of {len(times)} writes of 4 KiB"
    if p99 >= SYNC_PROBLEM_MS:
        return problem(name, found, "each publish waits for it: use a local SSD, or find other writers of the disk")
    if p99 >= SYNC_WARNING_MS:
        return warning(name, found, "each publish waits for it: a local SSD takes 1 to 5 ms")
    return ok(name, found)


def _wanted_python() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"] or ""
    return ""


def _is_within(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as ``<3.14,>=3.11``, by its first two numbers."""
    found = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return all(
        found >= (int(major), int(minor)) if sign == ">=" else found < (int(major), int(minor))
        for sign, major, minor in _BOUND.findall(bounds)
    )


def _nearest(directory: Path) -> Path:
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)
