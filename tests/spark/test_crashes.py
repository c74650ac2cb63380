"""A stream copies a topic, and parts of it are killed at each step of a micro-batch: the copy holds each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import heliograph
from heliograph.base.home import ClusterHome
from heliograph.client.admin.admin import AdminSync
from heliograph.cluster.config import ClusterConfig
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.reading.range_reader import read_ranges
from heliograph.pipelines.spark.java import java_environment
from tests.cluster.support.awaited_steps import ENTRIES, STEPS
from tests.cluster.support.live_cluster import LiveCluster, wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # warnings of Spark and Ray themselves
]

ENTRY_ROWS = 500
STEP_SECONDS = 300.0
Kill = Callable[[int, subprocess.Popen[bytes]], None]  # of the process that waits, and the driver


@pytest.fixture
def live(cluster: ClusterConfig, monkeypatch: pytest.MonkeyPatch) -> LiveCluster:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(cluster.home_directory))  # where drivers find the cluster
    state = ClusterHome(cluster.home_directory).load()
    assert state is not None, "the cluster runs"
    return LiveCluster(cluster, state)


def published(origin: str, copy: str, entries: int) -> list[bytes]:
    """Make both topics; return the rows of the first."""
    admin = AdminSync()
    for name in (origin, copy):
        admin.create_topic(name)
    admin.namespaces.set_topic_policies(copy, {"deduplication": True})
    is_on = lambda: admin.topic_stats(copy)["deduplicationStatus"] == "Enabled"  # noqa: E731
    wait_for(is_on, STEP_SECONDS, f"{copy} does not deduplicate")
    rows = [b"%06d" % row for row in range(entries * ENTRY_ROWS)]
    with heliograph.connect() as client, client.producer(origin) as producer:
        for first in range(0, len(rows), ENTRY_ROWS):
            values = rows[first : first + ENTRY_ROWS]
            producer.send_many(values, keys=[f"k{int(value) % 7}" for value in values])
    return rows


def rows_of(topic: str) -> list[bytes]:
    batches = read_ranges(plan_topic(topic), ("value",))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


@contextmanager
def running(directory: Path, origin: str, copy: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the driver as a session of its own, which ends with the block."""
    environment = {**os.environ, **java_environment(os.environ)}
    environment["PYTHONPATH"] = str(Path(heliograph.__file__).parents[1])
    environment["PYSPARK_PYTHON"] = sys.executable
    command = [sys.executable, "-m", "tests.spark.micro_batches", str(directory), origin, copy]
    with (directory / "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # the test has ended all of them
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def copied_while_killed(directory: Path, origin: str, kill: Kill, *, ends_driver: bool = False) -> None:
    """Run the stream to its end; in each micro-batch ``kill`` is called at its step."""
    rows = published(origin, f"{origin}-copy", ENTRIES * len(STEPS))
    waiting = [directory / f"{number}-{step}" for number, step in enumerate(STEPS)]
    while not (directory / "ended").exists():
        with running(directory, origin, f"{origin}-copy") as driver:

            def has_come(driver: subprocess.Popen[bytes] = driver) -> bool:
                log = (directory / "log").read_text(errors="replace")[-5_000:]
                assert driver.poll() in (None, 0), f"the driver ended: {log}"
                return (directory / "ended").exists() or (bool(waiting) and waiting[0].exists())

            while not (directory / "ended").exists():
                wait_for(has_come, STEP_SECONDS, f"the stream is not at {waiting[0].name if waiting else 'its end'}")
                if (directory / "ended").exists():
                    break
                step = waiting.pop(0)
                kill(int(step.read_text()), driver)
                step.with_name(f"{step.name}.passed").touch()
                if ends_driver:
                    break
    assert not waiting, "every step was reached"
    assert sorted(rows_of(f"{origin}-copy")) == rows


@pytest.mark.full
def test_the_driver_is_killed_at_each_step(live: LiveCluster, tmp_path: Path) -> None:
    def kill(pid: int, driver: subprocess.Popen[bytes]) -> None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()

    copied_while_killed(tmp_path, "driver-killed", kill, ends_driver=True)


@pytest.mark.full
def test_the_executor_is_killed_at_each_step(live: LiveCluster, tmp_path: Path) -> None:
    def kill(pid: int, driver: subprocess.Popen[bytes]) -> None:
        if pid != driver.pid:
            os.kill(pid, signal.SIGKILL)
            return
        for worker in workers_of(driver.pid):  # between tasks: those that Spark keeps for the next one
            os.kill(worker, signal.SIGKILL)

    copied_while_killed(tmp_path, "executor-killed", kill)


@pytest.mark.full
@pytest.mark.parametrize("part", ["broker-1", "bookie-1"])
def test_a_part_of_the_cluster_is_killed_at_each_step(live: LiveCluster, tmp_path: Path, part: str) -> None:
    def kill(pid: int, driver: subprocess.Popen[bytes]) -> None:
        killed.append(live.sigkill(part))

    def kill_again(pid: int, driver: subprocess.Popen[bytes]) -> None:
        if killed:
            live.wait_back(part, killed[-1])
        kill(pid, driver)

    killed: list[int] = []
    copied_while_killed(tmp_path, f"{part}-killed", kill_again)
    live.wait_back(part, killed[-1])


def test_a_task_and_the_broker_are_killed_while_rows_are_written(
    spark: SparkSession, live: LiveCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The share of the normal run: one frame, whose writer dies in its midst, and then the broker."""
    from heliograph.pipelines.spark import dataframe
    from heliograph.pipelines.spark.dataframe import topic_dataframe, write_dataframe

    rows = published("short", "short-copy", ENTRIES)
    writer_of, broker = dataframe._writer, live.pid("broker-1")
    files = str(tmp_path)

    def dying(writer: object) -> object:
        write = writer_of(writer)  # type: ignore[arg-type]

        def gated(batches: object) -> object:
            def dies(batches: object) -> object:
                for number, batch in enumerate(piece for one in batches for piece in halves(one)):  # type: ignore[attr-defined]
                    for name, pid in (("task", os.getpid()), ("broker", broker)):
                        if number == 1 and not os.path.exists(f"{files}/{name}"):
                            with open(f"{files}/{name}", "w"):
                                os.kill(pid, signal.SIGKILL)
                    yield batch

            return write(dies(batches))  # type: ignore[arg-type]

        return gated

    def halves(batch: object) -> list[object]:
        middle = batch.num_rows // 2  # type: ignore[attr-defined]
        return [batch.slice(0, middle), batch.slice(middle)]  # type: ignore[attr-defined]

    monkeypatch.setattr(dataframe, "_writer", dying)
    frame: DataFrame = topic_dataframe(spark, "short")
    assert write_dataframe(frame, "short-copy", key="__key", query="copy") == len(rows)
    assert {file.name for file in tmp_path.iterdir()} == {"task", "broker"}
    live.wait_back("broker-1", broker)
    assert sorted(rows_of("short-copy")) == rows


def workers_of(driver: int) -> list[int]:
    """Return the Python workers of a driver's session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            session = int((entry / "stat").read_text().rpartition(")")[2].split()[3])
            command = (entry / "cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if session == driver and (b"pyspark.daemon" in command or b"pyspark.worker" in command):
            found.append(int(entry.name))
    return found
