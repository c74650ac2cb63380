"""A topic is copied in micro-batches, and processes are killed at each step of one: the copy holds each row once.

The same with Spark, and with one part of a larger cluster at a time, is in ``tests/spark/test_crashes.py``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import heliograph
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.reading.range_reader import read_ranges
from tests.cluster.support.awaited_steps import ENTRIES, STEPS
from tests.cluster.support.live_cluster import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

ENTRY_ROWS = 500
STEP_SECONDS = 300.0


class Host:
    """A cluster in a process of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports = ["0", "0"]
        self.service_url = ""
        self.access = ClusterAccess()  # by its gateway: the process of the tests may have joined a Ray
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the process, at the same ports as before, and wait until it serves."""
        command = [sys.executable, "-m", "tests.cluster.pipelines.local_host", str(self._home), *self._ports]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None, "it is a pipe"
        urls = self._process.stdout.readline().split()
        assert len(urls) == 2, "the cluster serves"
        self._ports = [str(urlsplit(url).port) for url in urls]
        self.service_url, self.access = urls[0], ClusterAccess(gateway=urls[1])

    def kill(self) -> None:
        assert self._process is not None, "it was started"
        with self._process:  # closes its pipe
            self._process.kill()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    home = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOGRAPH_HOME", str(home))
        patch.setenv("PYTHONPATH", str(Path(heliograph.__file__).parents[1]))
        patch.delenv("RAY_ADDRESS", raising=False)
        running = Host(home)
        running.start()
        try:
            yield running
        finally:
            running.kill()


def published(host: Host, origin: str, copy: str) -> list[bytes]:
    """Make both topics; return the rows of the first."""
    admin = host.access.admin_sync()
    for name in (origin, copy):
        admin.create_topic(name)
    admin.namespaces.set_topic_policies(copy, {"deduplication": True})
    while admin.topic_stats(copy)["deduplicationStatus"] != "Enabled":
        time.sleep(0.01)  # ends by the time-out of the test at the latest
    rows = [b"%06d" % row for row in range(ENTRIES * len(STEPS) * ENTRY_ROWS)]
    with heliograph.connect(host.service_url) as client, client.producer(origin) as producer:
        for first in range(0, len(rows), ENTRY_ROWS):
            values = rows[first : first + ENTRY_ROWS]
            producer.send_many(values, keys=[f"k{int(value) % 7}" for value in values])
    return rows


@contextmanager
def driver(directory: Path, origin: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the driver as a session of its own, which ends with the block."""
    command = [sys.executable, "-m", "tests.cluster.pipelines.micro_batches", str(directory), origin, f"{origin}-copy"]
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def copied(
    host: Host, directory: Path, origin: str, kill: Callable[[int, int], None], *, ends_driver: bool = False
) -> None:
    """Copy a topic; in each micro-batch ``kill`` is called at its step, with the waiting process and the driver."""
    rows = published(host, origin, f"{origin}-copy")
    waiting = [directory / f"{number}-{step}" for number, step in enumerate(STEPS)]
    ended = directory / "ended"
    while not ended.exists():
        with driver(directory, origin) as process:

            def has_come(process: subprocess.Popen[bytes] = process) -> bool:
                told = (directory / "log").read_text(errors="replace")[-3_000:]
                assert process.poll() in (None, 0), f"the driver ended: {told}"
                return ended.exists() or bool(waiting and waiting[0].exists())

            while True:
                wait_for(has_come, STEP_SECONDS, f"the copy is not at {waiting[0].name if waiting else 'its end'}")
                if ended.exists():
                    break
                step = waiting.pop(0)
                kill(int(step.read_text()), process.pid)
                step.with_name(f"{step.name}.passed").touch()
                if ends_driver:
                    break
    assert not waiting, "every step was reached"
    batches = read_ranges(plan_topic(f"{origin}-copy", access=host.access), ("value",))
    assert sorted(value for batch in batches for value in batch.column("value").to_pylist()) == rows


def test_the_driver_is_killed_at_each_step(host: Host, tmp_path: Path) -> None:
    copied(host, tmp_path, "driver-killed", lambda pid, driver: os.killpg(driver, signal.SIGKILL), ends_driver=True)


@pytest.mark.full
def test_the_task_is_killed_while_it_reads_and_writes(host: Host, tmp_path: Path) -> None:
    def kill(pid: int, driver: int) -> None:
        if pid != driver:
            os.kill(pid, signal.SIGKILL)

    copied(host, tmp_path, "task-killed", kill)


@pytest.mark.full
def test_broker_and_bookie_are_killed_at_each_step(host: Host, tmp_path: Path) -> None:
    def kill(pid: int, driver: int) -> None:
        host.kill()
        host.start()

    copied(host, tmp_path, "cluster-killed", kill)
