"""Tasks a second and the time of one, beside Celery and taskiq on Redis: a worker of eight slots, one synced copy."""

from __future__ import annotations

import statistics
from pathlib import Path

from tests.bench.bench import Bench
from tests.bench.figure import Limit
from tests.bench.process import Child
from tools.laboratory.beside.environment import OURS, Found, measured
from tools.laboratory.foreign import servers
from tools.laboratory.foreign.servers import Unavailable

SECTION = "tasks"
TASKS, ROUNDS = 2_000, 3
PEERS = {"Celery": "celery", "taskiq": "taskiq"}
PROGRAMS = "tools.laboratory.beside.task_programs"


def report(bench: Bench) -> None:
    """Measure the rows of the section; a queue that cannot be run is left out, and why is printed."""
    found: dict[str, list[Found]] = {}
    for _ in range(ROUNDS):  # in turns, so that all have the same noise
        directory = bench.directory / f"tasks-{sum(map(len, found.values()))}"
        directory.mkdir()
        bench.say(f"measuring tasks of {OURS}")
        with Child("tools.laboratory.foreign.host", directory) as server:
            found.setdefault(OURS, []).append(measured(PROGRAMS, "heliograph", server.said(), bench.count(TASKS)))
        for name, kind in PEERS.items():
            bench.say(f"measuring tasks of {name}")
            try:
                found.setdefault(name, []).append(_on_redis(bench, directory, kind))
            except Unavailable as why:
                bench.say(f"{name} is skipped: {why}")
    for name, runs in found.items():
        if runs:
            _add(bench, name, runs, found[OURS])


def _add(bench: Bench, name: str, runs: list[Found], ours: list[Found]) -> None:
    def median_of(of: list[Found], field: str) -> float:
        return statistics.median(run[field] for run in of)

    rate, p50 = Limit(median_of(ours, "rate"), OURS), Limit(median_of(ours, "p50_ms"), OURS)
    bench.add(SECTION, f"submitted together: {name}", median_of(runs, "rate"), "tasks/s", rate)
    p99_ms = median_of(runs, "p99_ms")
    bench.add(SECTION, f"one by one, p50: {name}", median_of(runs, "p50_ms"), "ms", p50, p99_ms=p99_ms)


def _on_redis(bench: Bench, directory: Path, kind: str) -> Found:
    own = directory / kind
    own.mkdir()
    with servers.redis(own) as server:
        return measured(PROGRAMS, kind, f"redis://127.0.0.1:{server.port}/0", bench.count(TASKS))
