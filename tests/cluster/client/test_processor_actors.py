"""Processors in Ray: examples/processor_actors.py, and deployments that are changed, refused and deleted."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util import list_named_actors
from typer.testing import CliRunner

import heliograph
from heliograph.base.errors import BadRequestError, RunningLoopError
from heliograph.cli.app import app

SECONDS = 600
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS + 60)]
KEYS, MESSAGES = 20, 200
MODULE = "def handle(message, context):\n    context.send('else', message.data)\n"


class Totals(heliograph.Processor):
    """Adds the numbers of each key, and sends each sum."""

    state = dict

    async def on_message(self, message: Any, context: Any) -> None:
        """Add a number."""
        context.state["sum"] = context.state.get("sum", 0) + int(message.value)
        context.send("sums", {"sum": context.state["sum"], "process": os.getpid()}, key=message.key)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[heliograph.LocalCluster]:
    """Return a cluster, in a Ray of the module's own."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with heliograph.local(tmp_path_factory.mktemp("data")) as cluster:
        yield cluster
    ray.shutdown()


@pytest.fixture(scope="module")
def client(cluster: heliograph.LocalCluster) -> Iterator[heliograph.Client]:
    with cluster.connect() as client:
        yield client


def actors() -> set[str]:
    """Return the names of the instances that there are."""
    named = list_named_actors(all_namespaces=True)
    return {each["name"] for each in named if each["name"].startswith("heliograph-processor-")}


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for something that is bound to come."""
    until = time.monotonic() + SECONDS / 4
    while not is_so():
        assert time.monotonic() < until, "it did not come"
        time.sleep(0.1)


def test_each_payment_counts_once_although_a_process_is_killed() -> None:
    command = [sys.executable, "-m", "examples.processor_actors"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "500 payments, 20 customers, 3 processes; each payment counts once" in done.stdout


def test_a_second_deployment_goes_on_with_another_number_of_instances(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    client.admin.create_topic("numbers", partitions=4)
    sums: Counter[str] = Counter()
    expected: list[tuple[str, int]] = []
    found: list[tuple[str, int]] = []
    processes: list[set[int]] = []
    before: set[str] = set()
    with client.producer("numbers") as producer, client.reader("sums", "earliest", schema=dict) as reader:
        for instances in (2, 3, 1):
            options: dict[str, Any] = {"client": client, "commit_every": 0.05, "num_cpus": 0}
            heliograph.process("numbers", Totals, name="totals", instances=instances, **options).deploy()
            eventually(lambda: not before & actors())  # noqa: B023
            before = actors()
            assert len(before) == instances
            for number in range(MESSAGES):
                key = f"key-{number % KEYS}"
                sums[key] += number
                expected.append((key, sums[key]))
                producer.send(str(number), key=key)
            messages = [reader.receive(timeout=120) for _ in range(MESSAGES)]
            found += [(each.key or "", each.value["sum"]) for each in messages]
            processes.append({each.value["process"] for each in messages})
        assert not reader.has_message_available(), "no output comes twice"
    assert sorted(found) == sorted(expected)
    assert [len(each) for each in processes] == [2, 3, 1]
    assert len(set.union(*processes)) == 6, "no process is of two deployments"
    deleting = ["functions", "delete", "totals", "--home", str(cluster.directory)]
    assert CliRunner().invoke(app, deleting, catch_exceptions=False).exit_code == 0
    eventually(lambda: not actors())


def test_what_cannot_be_imported_where_it_runs_is_refused(
    client: heliograph.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    handle = importlib.import_module("only_here").handle
    with pytest.raises(BadRequestError, match=r"cannot be imported where it runs.*only_here") as refused:
        heliograph.process("here", handle, name="here", client=client, num_cpus=0).deploy()
    assert "Traceback" not in str(refused.value)
    assert not actors()


@pytest.mark.parametrize(
    ("wrong", "field", "told"),
    [
        ({"replicas": 2}, "replicas", "replicas is 2"),
        ({"num_cpus": -1}, "ray_options", "num_cpus cannot be negative"),
        ({"colour": "red"}, "ray_options", "colour"),
        ({"name": "mine"}, "ray_options", "name"),
    ],
)
def test_workers_of_tasks_with_options_that_ray_refuses_are_refused_at_the_call(
    client: heliograph.Client, wrong: dict[str, Any], field: str, told: str
) -> None:
    @heliograph.task(queue="refused", client=client)
    def work() -> None: ...

    with pytest.raises(BadRequestError, match=told) as refused:
        work.run(**wrong)
    assert refused.value.field == field
    assert "heliograph-tasks-refused" not in {each["name"] for each in list_named_actors(all_namespaces=True)}


def test_what_does_not_pickle_is_refused_with_the_reason(client: heliograph.Client) -> None:
    lock = threading.Lock()

    def handle(message: Any, context: Any) -> None:
        lock.acquire()

    with pytest.raises(BadRequestError, match=r"cannot be imported where it runs: cannot pickle '_thread.lock' object"):
        heliograph.process("here", handle, name="here", client=client, num_cpus=0).deploy()

    @heliograph.task(queue="refused", client=client)
    def work() -> None:
        lock.acquire()

    with pytest.raises(BadRequestError, match=r"cannot run where its workers are: cannot pickle '_thread.lock' object"):
        work.run()


def test_options_that_ray_refuses_are_refused_before_anything_ends(client: heliograph.Client) -> None:
    with pytest.raises(BadRequestError, match="num_cpus"):
        heliograph.process("here", Totals, name="here", client=client, num_cpus=-1).deploy()
    assert not actors()


async def test_deploy_blocks_no_event_loop(client: heliograph.Client) -> None:
    with pytest.raises(RunningLoopError, match=r"asyncio\.to_thread"):
        heliograph.process("here", Totals, name="here", client=client).deploy()
