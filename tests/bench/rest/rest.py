"""Clusters at rest: ``helio up`` and a lean one, with their parts apart and together, and one process without Ray."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.bench.bench import Bench
from tests.bench.figure import Limit, at_most
from tests.bench.machine import ROOT
from tests.bench.rest.family import ProcessSample, sample

SECTION = "rest"
SETTLE_SECONDS = 30.0  # what a start leaves to be done is over by then
MEASURED_SECONDS = 60.0
UP_SECONDS_MAX = 300
HELIO = (sys.executable, "-c", "from heliograph.cli import main; main()")
LARGEST = 3  # kinds of process that are named beside a sum
# Options of `helio up`, and the aims: MB, cores and seconds until it is up.
CLUSTERS: Mapping[str, tuple[tuple[str, ...], tuple[float, float, float]]] = {
    "helio up": ((), (900, 0.05, 10)),
    "helio up --parts together": (("--parts=together",), (900, 0.05, 10)),
    "helio up --lean": (("--lean",), (500, 0.03, 10)),  # its parts are together
    "helio up --lean --parts apart": (("--lean", "--parts=apart"), (500, 0.03, 10)),
}
DEV, DEV_AIMS = "helio dev", (100, 0.005, 3)


@dataclass(frozen=True, slots=True)
class Rest:
    """One cluster at rest: processes, memory, processor time and wakes a second, and the seconds of its start."""

    processes: int
    pss_bytes: int
    cores: float
    wakes: float
    up_seconds: float
    memory_of: Mapping[str, float]  # MB, by kind of process
    cores_of: Mapping[str, float]
    own_pss_bytes: int  # of the processes of parts; the rest is Ray's
    own_cores: float


def report(bench: Bench) -> None:
    """Measure each kind of cluster."""
    measured = {name: (_cluster(bench, number, name), CLUSTERS[name][1]) for number, name in enumerate(CLUSTERS)}
    measured[DEV] = _one_process(bench), DEV_AIMS
    first = next(iter(measured.values()))[0]
    for name, (rest, (memory, cores, up)) in measured.items():
        bench.add(
            SECTION,
            f"memory at rest: {name}",
            rest.pss_bytes / 1e6,
            "MB",
            Limit(first.pss_bytes / 1e6, "helio up"),
            aim=at_most(memory),
            processes=rest.processes,
            own_mb=rest.own_pss_bytes / 1e6,
            **{f"{kind}_mb": found for kind, found in rest.memory_of.items()},
        )
        bench.add(
            SECTION,
            f"processor at rest: {name}",
            rest.cores,
            "cores",
            Limit(first.cores, "helio up"),
            aim=at_most(cores),
            wakes_per_s=rest.wakes,
            own=rest.own_cores,
            **rest.cores_of,
        )
        bench.add(
            SECTION,
            f"until it is up: {name}",
            rest.up_seconds,
            "s",
            Limit(first.up_seconds, "helio up"),
            aim=at_most(up),
        )


def _cluster(bench: Bench, number: int, name: str) -> Rest:
    """Start a cluster, leave it alone, measure it and stop it."""
    home = bench.directory / f"rest-{number}"
    options = [f"--home={home}", f"--namespace=rest-{os.getpid()}-{number}"]
    free = [f"--{port}-port=0" for port in ("broker", "gateway", "dashboard")]
    begun = time.perf_counter()
    run_helio("up", *options, *free, *CLUSTERS[name][0])
    up_seconds = time.perf_counter() - begun
    try:
        bench.say(f"{name}: up in {up_seconds:.1f} s")
        return _left_alone(bench, int(json.loads((home / "cluster.json").read_text())["ray_pid"]), up_seconds)
    finally:
        run_helio("down", *options, "--delete-data")


def _one_process(bench: Bench) -> Rest:
    """Start `helio dev`, leave it alone, measure it and stop it."""
    command = [*HELIO, "dev", f"--home={bench.directory / 'rest-dev'}", "--port=0", "--http-port=0", "--json"]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, env=_environment(), cwd=Path.home(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None, "its output is a pipe"
            if not process.stdout.readline():
                raise RuntimeError("helio dev did not start")
            return _left_alone(bench, process.pid, time.perf_counter() - begun)
        finally:
            process.terminate()


def _left_alone(bench: Bench, session: int, up_seconds: float) -> Rest:
    """Measure the processes of a session after a while in which nothing is asked of them."""
    time.sleep(bench.seconds(SETTLE_SECONDS))
    before, begun = sample(session), time.perf_counter()
    time.sleep(bench.seconds(MEASURED_SECONDS))
    after, seconds = sample(session), time.perf_counter() - begun
    return between(before, after, seconds, up_seconds)


def between(
    before: Mapping[int, ProcessSample], after: Mapping[int, ProcessSample], seconds: float, up_seconds: float
) -> Rest:
    """Return what the processes used between two samples; one that ended meanwhile is not counted."""
    memory: Counter[str] = Counter()
    cores: dict[str, float] = {}
    own_cores = 0.0
    for pid, now in after.items():
        memory[now.name] += now.pss_bytes
        used = (now.cpu_seconds - before[pid].cpu_seconds if pid in before else now.cpu_seconds) / seconds
        cores[now.name] = cores.get(now.name, 0.0) + used
        own_cores += used if now.is_own else 0.0
    wakes = sum(now.wakes - before[pid].wakes for pid, now in after.items() if pid in before)
    return Rest(
        processes=len(after),
        pss_bytes=memory.total(),
        cores=sum(cores.values()),
        wakes=wakes / seconds,
        up_seconds=up_seconds,
        memory_of={name: found / 1e6 for name, found in memory.most_common(LARGEST)},
        cores_of=dict(sorted(cores.items(), key=lambda each: -each[1])[:LARGEST]),
        own_pss_bytes=sum(now.pss_bytes for now in after.values() if now.is_own),
        own_cores=own_cores,
    )


def run_helio(*arguments: str) -> None:
    """Run a command of ``helio``.

    Raises:
        RuntimeError: it failed; with what it said.
    """
    ran = subprocess.run(
        [*HELIO, *arguments],
        env=_environment(),
        cwd=Path.home(),
        capture_output=True,
        text=True,
        timeout=UP_SECONDS_MAX,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"helio {arguments[0]} ended with {ran.returncode}: {ran.stderr[-2_000:]}")


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
    return {**kept, "PYTHONPATH": str(ROOT)}
