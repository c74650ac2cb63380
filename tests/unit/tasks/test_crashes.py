"""Workers that are killed: no job is lost, few run again, and only those that kill their workers become letters."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import heliograph
from heliograph.errors import JobFailedError
from tests.unit.tasks.program import work_of

pytestmark = pytest.mark.slow

FULL = os.environ.get("FULL", "0") != "0"
SECONDS = 3_000 if FULL else 100
JOBS, KILLS = (10_000, 20) if FULL else (200, 2)
WORKERS, CONCURRENCY = 2, 4


class WorkerProcesses:
    """Worker processes that are started again when they end."""

    def __init__(self, address: str, queue: str, log: Path) -> None:
        self._command = [sys.executable, "-m", "tests.unit.tasks.program", address, queue, str(log)]
        self._running: list[subprocess.Popen[bytes]] = []
        self.ends = 0

    def keep_up(self, workers: int = WORKERS) -> None:
        """Start as many as there should be."""
        alive = [each for each in self._running if each.poll() is None]
        self.ends += len(self._running) - len(alive)
        while len(alive) < workers:
            alive.append(subprocess.Popen(self._command, stderr=subprocess.DEVNULL))
        self._running = alive

    def kill_one(self, choice: random.Random) -> None:
        """Kill one of them as the kernel would."""
        victim = choice.choice(self._running)
        victim.kill()
        victim.wait()

    def end(self) -> None:
        """Kill all that are left."""
        self.ends += sum(each.poll() is not None for each in self._running)
        for each in self._running:
            each.kill()
            each.wait()


async def keep_up(processes: WorkerProcesses) -> None:
    while True:
        processes.keep_up()
        await asyncio.sleep(0.1)


async def begun(log: Path, jobs: int) -> None:
    while True:
        if log.exists() and len(log.read_text().splitlines()) >= jobs:
            return
        await asyncio.sleep(0.05)


@pytest.mark.timeout(SECONDS + 60)
async def test_no_job_is_lost_while_workers_are_killed(client: heliograph.Client, queue: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    work, choice = work_of(client, queue, log), random.Random(7)
    processes = WorkerProcesses(client.options.service_urls[0], queue, log)
    keeping = asyncio.get_running_loop().create_task(keep_up(processes))
    try:
        async with asyncio.timeout(SECONDS):
            jobs = [await work.submit(number, 0.01) for number in range(JOBS)]
            for wanted in range(KILLS):
                await begun(log, (wanted + 1) * JOBS // (KILLS + 1))
                processes.kill_one(choice)
            results = await asyncio.gather(*(job.result() for job in jobs), return_exceptions=True)
    finally:
        keeping.cancel()
        processes.end()
    bad = [number for number in range(JOBS) if number % 100 == 99]
    assert [each for each in results if not isinstance(each, BaseException)] == [
        2 * number for number in range(JOBS) if number not in bad
    ]
    assert all(isinstance(results[number], JobFailedError) for number in bad)
    runs = Counter(map(int, log.read_text().split()))
    assert set(runs) == set(range(JOBS))
    repeated = sum(runs[number] - 1 for number in range(JOBS) if number not in bad)
    assert repeated <= KILLS * CONCURRENCY, "only the jobs in hand of a worker that was killed"


async def test_only_the_job_that_ends_its_workers_becomes_a_letter(
    client: heliograph.Client, queue: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    work = work_of(client, queue, log)
    processes = WorkerProcesses(client.options.service_urls[0], queue, log)
    innocent = [await work.submit(number, 0.2) for number in range(10)]
    poison = await work.submit(50, 0.1, ends_its_worker=True)
    keeping = asyncio.get_running_loop().create_task(keep_up(processes))
    try:
        async with asyncio.timeout(SECONDS):
            with pytest.raises(JobFailedError, match="its worker ended 2 times while it ran alone"):
                await poison.result()
            assert [await job.result() for job in innocent] == [2 * number for number in range(10)]
    finally:
        keeping.cancel()
        processes.end()
    assert processes.ends == 3, "once among others, then twice alone"
