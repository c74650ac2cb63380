"""Memory runs short on the machine: Ray ends its workers again and again, and no part ends.

The limit of Ray's monitor is a little above what the machine uses when the cluster starts, so that nothing is filled.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.exceptions

import heliograph
from heliograph.base.processes import session_members
from heliograph.client import discovery
from tests.cluster.support.live_cluster import LiveCluster, start, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

BEYOND_BYTES = 150 << 20
STEP_BYTES = 50 << 20
FILL_BYTES_MAX = 6_000 << 20
HELD_SECONDS = 15.0
WAIT_SECONDS = 240.0
GAP_SECONDS_MAX = 60.0  # without a receipt; the machine may be busy
LID_SECONDS = 90.0
END_WHEN_IDLE = ("ray::IDLE", "heliograph-fork-server")  # titles

FILL = """
import sys, time
limit, step, most = map(int, sys.argv[1:])
def used():
    found = dict(line.split()[:2] for line in open("/proc/meminfo"))
    return (int(found["MemTotal:"]) - int(found["MemAvailable:"])) * 1024
held = []
while True:
    if used() < limit and len(held) * step < most:
        held.append(bytearray(b"x" * step))
    else:
        time.sleep(0.2)
"""

LAYOUTS = [  # with the MiB between what is used before the start and the limit: what the cluster needs, and some more
    pytest.param(({"lean": True}, 1_000), id="lean"),
    pytest.param(({"parts": "together"}, 1_500), id="together", marks=pytest.mark.full),
    pytest.param(({"parts": "apart"}, 4_000), id="apart", marks=pytest.mark.full),
]


def memory() -> tuple[int, int]:
    """Return the bytes that are used, as Ray counts them, and all."""
    found = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(found["MemTotal:"]) * 1024
    return total - int(found["MemAvailable:"]) * 1024, total


class ShortCluster:
    """A cluster whose Ray ends workers when the machine uses more than ``limit`` bytes."""

    def __init__(self, live: LiveCluster, limit: int) -> None:
        self.live = live
        self.limit = limit
        self.names = discovery.actor_names(live.namespace)

    def pids(self) -> dict[str, int]:
        """Return the processes of all parts, when all of them answer."""
        found: dict[str, int] = {}

        def have_answered() -> bool:
            with contextlib.suppress(ray.exceptions.RayError, heliograph.errors.HeliographError):
                found.update({name: self.live.call(name, "pid", timeout=20) for name in self.names})
                return True
            return False

        wait_for(have_answered, WAIT_SECONDS, "not all parts answer")
        return found

    def actors(self) -> set[int]:
        """Return the workers of Ray that pass calls on to parts."""
        process = self.live.state.ray_process
        assert process is not None
        return {each.pid for each in session_members(process) if is_worker(each.pid)}

    def processes(self) -> dict[int, str]:
        """Return all processes of this Ray and of the cluster, with their titles, but for those that end when idle."""
        process = self.live.state.ray_process
        assert process is not None
        found = {each.pid: title_of(each.pid) for each in session_members(process)}
        return {pid: title for pid, title in found.items() if title and not title.startswith(END_WHEN_IDLE)}

    def told(self) -> str:
        """Return the notes of the status."""
        return "\n".join(self.live.report().notes)

    def starts(self) -> dict[str, int]:
        """Return how often each part was started in a row."""
        found = {file.stem: json.loads(file.read_text()) for file in (self.live.home / "logs").glob("*.starts")}
        return {name: len(starts["times_ms"]) for name, starts in found.items()}


def title_of(pid: int) -> str:
    """Return the title of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    return ""


def is_worker(pid: int) -> bool:
    title = title_of(pid)
    return title.startswith("ray::") and "Agent" not in title


@pytest.fixture(params=LAYOUTS)
def short(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShortCluster]:
    discovery.detach()
    used, total = memory()
    layout, room = request.param
    limit = used + (room << 20)
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{limit / total:.4f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "250")
    options = {"bookies": 2, "brokers": 1, "ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "operator": True}
    live = start(tmp_path, f"short-{uuid.uuid4().hex[:8]}", **{**options, **layout})
    try:
        yield ShortCluster(live, limit)
    finally:
        live.stop()


class Publishing:
    """A producer on a thread. ``gap`` is the longest time in seconds without a receipt."""

    def __init__(self, namespace: str, topic: str) -> None:
        self.gap = 0.0
        self.count = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(namespace, topic), daemon=True)

    def __enter__(self) -> Publishing:
        self._thread.start()
        wait_for(lambda: self.count > 0, WAIT_SECONDS, "nothing is published")
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self, namespace: str, topic: str) -> None:
        with heliograph.connect(namespace=namespace) as client, client.producer(topic) as producer:
            last = time.monotonic()
            while not self._is_over.is_set():
                producer.send(b"%d" % self.count)
                self.count += 1
                self.gap, last = max(self.gap, time.monotonic() - last), time.monotonic()
                time.sleep(0.02)


def test_a_program_beside_ray_that_fills_the_machine_ends_no_part(short: ShortCluster, topic: str) -> None:
    before, actors = short.pids(), short.actors()
    with Publishing(short.live.namespace, topic) as publishing:
        arguments = map(str, (short.limit + BEYOND_BYTES, STEP_BYTES, FILL_BYTES_MAX))
        with subprocess.Popen([sys.executable, "-c", FILL, *arguments]) as filling:
            try:
                wait_for(lambda: not actors <= short.actors(), WAIT_SECONDS, "Ray ended no worker")
                time.sleep(HELD_SECONDS)
            finally:
                filling.kill()
    assert short.pids() == before
    assert set(short.starts().values()) == {1}
    assert publishing.gap < GAP_SECONDS_MAX
    wait_for(lambda: "memory ran short" in short.told(), WAIT_SECONDS, "status does not say why")
    assert "; the largest user was " in short.told()


def leak(limit: int) -> None:
    """Take memory until the machine uses more than ``limit`` bytes, and keep it there. Runs in Ray's workers."""
    held: list[bytearray] = []
    while True:
        if memory()[0] < limit and len(held) * STEP_BYTES < FILL_BYTES_MAX:
            held.append(bytearray(b"x" * STEP_BYTES))
        time.sleep(0.05)


class Leaker:
    def leak(self, limit: int) -> None:
        leak(limit)


def started_leaker() -> Any:
    """Return an actor of a user with Ray's defaults, whose worker runs."""
    leaker: Any = ray.remote(Leaker).options(num_cpus=0).remote()
    ray.get(leaker.__ray_ready__.remote(), timeout=WAIT_SECONDS)
    return leaker


def holds_against(short: ShortCluster, topic: str, start: Callable[[], Any]) -> None:
    """Check that no part ends while the call that ``start`` makes leaks, until Ray ends its worker."""
    before = short.pids()
    with Publishing(short.live.namespace, topic) as publishing, pytest.raises(ray.exceptions.RayError):
        ray.get(start(), timeout=WAIT_SECONDS)
    assert short.pids() == before
    assert set(short.starts().values()) == {1}
    assert publishing.gap < GAP_SECONDS_MAX


@pytest.mark.full
def test_an_actor_that_leaks_ends_no_part(short: ShortCluster, topic: str) -> None:
    holds_against(short, topic, lambda: started_leaker().leak.remote(short.limit + BEYOND_BYTES))


@pytest.mark.full
def test_a_task_that_leaks_ends_no_part(short: ShortCluster, topic: str) -> None:
    task = ray.remote(leak).options(num_cpus=0, max_retries=0)
    holds_against(short, topic, lambda: task.remote(short.limit + BEYOND_BYTES))


@pytest.mark.full
def test_an_actor_that_is_older_than_the_parts_leaks_and_ends_none(short: ShortCluster, topic: str) -> None:
    actors = short.actors()
    leaker = started_leaker()
    for pid in actors:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not actors & short.actors(), WAIT_SECONDS, "Ray has not noticed that its workers ended")
    short.pids()  # all parts have new actors, which Ray takes for younger than the leaker
    holds_against(short, topic, lambda: leaker.leak.remote(short.limit + BEYOND_BYTES))


@pytest.mark.full
def test_processes_that_all_stood_still_go_on_as_they_were(short: ShortCluster, topic: str) -> None:
    before, processes = short.pids(), short.processes()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for pid in processes:
            os.kill(pid, number)
        if number == signal.SIGSTOP:
            time.sleep(LID_SECONDS)
    with Publishing(short.live.namespace, topic):
        assert short.pids() == before
    after = short.processes()
    assert {pid: title for pid, title in processes.items() if pid not in after} == {}
    assert set(short.starts().values()) == {1}
