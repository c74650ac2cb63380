"""Samples of a cluster: memory, descriptors and threads of each process, its disk, and the nodes of its metadata."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from tests.bench.rest.family import pss_bytes, sample

Series = dict[tuple[str, str], list[tuple[float, float]]]  # by part and unit: seconds and values
NODES = "heliograph_metadata_nodes"
SCRAPE_SECONDS_MAX = 30.0
TOLERANCES = {"MB": 2.0, "files": 5.0, "threads": 2.0, "MB on disk": 1e9, "nodes": 50.0}  # an hour; messages are kept


def look(series: Series, session: int, home: Path, http_url: str, began: float) -> None:
    """Add one sample of all parts of a session, the cluster's disk and its metadata."""
    now = time.monotonic() - began
    sums: defaultdict[tuple[str, str], float] = defaultdict(float)
    names = {pid: process.name for pid, process in sample(session).items()} | {os.getpid(): "client"}
    for pid, name in names.items():
        with suppress(OSError):  # it has ended
            sums[name, "MB"] += pss_bytes(pid, "Pss_Anon") / 1e6
            sums[name, "files"] += len(os.listdir(f"/proc/{pid}/fd"))
            sums[name, "threads"] += len(os.listdir(f"/proc/{pid}/task"))
    sums["data", "MB on disk"] = _disk_bytes(home) / 1e6
    if (nodes := _nodes(http_url)) is not None:
        sums["metadata", "nodes"] = nodes
    for key, value in sums.items():
        series.setdefault(key, []).append((now, value))


def _disk_bytes(directory: Path) -> int:
    found = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                found += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return found


def _nodes(http_url: str) -> float | None:
    """Return the nodes of the metadata store, as the gateway's metrics have them; None if they do not say."""
    with suppress(OSError), urlopen(f"{http_url}/metrics", timeout=SCRAPE_SECONDS_MAX) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(NODES):
                return float(line.rsplit(" ", 1)[1])
    return None
