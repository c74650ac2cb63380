"""A cluster in the Ray of others: through Ray Client, on labelled nodes, from tasks, actors and jobs.

Each view of it is a program of its own, because a process can be in one Ray only.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from heliograph.ray.process import LOOPBACK_VARIABLE, PROGRAM
from tests.patience import START_SECONDS
from tests.rules.source import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

SECONDS_MAX = 500
# What Ray says where a limit of its own was too short for a busy machine, before anything of the program ran.
NODE_TOO_SLOW = "The current node timed out during startup"  # after 30 s, which no option of Ray changes
NOT_BEGUN = (NODE_TOO_SLOW, "No available agent to submit job", "Starting Ray client server failed")

START = f"""
import ray
import heliograph

def start():
    return heliograph.start(start_timeout_ms={START_SECONDS * 1_000}, bookies=2, write_quorum=2, gateway=False,
        ensemble_size=2, ack_quorum=2, brokers=1, broker_port=0, operator=False)
"""

USE = """
import ray
import heliograph

def exchange(topic):
    with heliograph.connect() as client:
        with client.producer(topic) as producer:
            producer.send_many([b"%d" % number for number in range(20)])
        with client.consumer(topic, "all", initial_position="earliest") as consumer:
            return [int(message.value) for message in consumer.receive_many(20, timeout=120)]

@ray.remote(num_cpus=0.1)
class Plain:
    def exchange(self, topic):
        return exchange(topic)

@ray.remote(num_cpus=0.1)
class Concurrent:
    async def exchange(self, topic):
        async with await heliograph.connect_async() as client:
            async with client.producer(topic) as producer:
                await producer.send_many([b"%d" % number for number in range(20)])
            async with client.consumer(topic, "all", initial_position="earliest") as consumer:
                return [int(message.value) for message in await consumer.receive_many(20, timeout=120)]

def exchange_everywhere(name):
    plain, concurrent = Plain.remote(), Concurrent.remote()  # Ray ends an actor without a handle before it has run
    seen = {
        "driver": exchange(name + "-driver"),
        "task": ray.get(ray.remote(num_cpus=0.1)(exchange).remote(name + "-task")),
        "actor": ray.get(plain.exchange.remote(name + "-actor")),
        "async actor": ray.get(concurrent.exchange.remote(name + "-async")),
    }
    assert seen == dict.fromkeys(seen, list(range(20))), seen
"""


class OwnRay:
    """The Ray of a user, and what his programs do in it."""

    def __init__(self, told: dict[str, str], directory: Path) -> None:
        self.address = told["address"]
        self.client = told["client"]
        self.dashboard = told["dashboard"]
        self.directory = directory

    def run(self, program: str, cwd: Path | None = None, **variables: str) -> str:
        """Run a program, which has to end well, and return what it printed."""
        return finished([sys.executable, "-c", program], cwd or self.directory, environment(self.directory, variables))

    def submit(self, program: str, runtime: dict[str, Any]) -> str:
        """Run a program of a working directory as a job, and return its output."""
        command = [sys.executable, *PROGRAM, "job", "submit", "--address", self.dashboard]
        command += ["--runtime-env-json", json.dumps(runtime), "--", sys.executable, program]
        return finished(command, self.directory, environment(self.directory, {}))


def environment(directory: Path, variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "HELIOGRAPH_"))}
    kept[LOOPBACK_VARIABLE] = "0"  # no node of another Ray takes this one for its own
    return {**kept, "HELIOGRAPH_STATE_ROOT": str(directory / "state"), "PYTHONPATH": str(ROOT), **variables}


def finished(command: list[str], cwd: Path, variables: dict[str, str]) -> str:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        ran = subprocess.run(
            command, cwd=cwd, env=variables, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
        said = ran.stdout + ran.stderr
        if not any(words in said for words in NOT_BEGUN) or time.monotonic() > deadline:
            assert ran.returncode == 0, said
            return ran.stdout
        time.sleep(1)


@contextlib.contextmanager
def own_ray(directory: Path, *options: str) -> Iterator[OwnRay]:
    """Start the nodes, again if Ray gives up on one that is slow; they end with the block."""
    deadline, errors = time.monotonic() + SECONDS_MAX, directory / "nodes.err"
    while True:
        with errors.open("w") as written, nodes(directory, options, written) as process:
            assert process.stdout is not None
            told = next((line for line in process.stdout if line.startswith("{")), "")
            if told:
                yield OwnRay(json.loads(told), directory)
                return
        said = errors.read_text()
        assert NODE_TOO_SLOW in said, said
        assert time.monotonic() < deadline, said


@contextlib.contextmanager
def nodes(directory: Path, options: Sequence[str], errors: IO[str]) -> Iterator[subprocess.Popen[str]]:
    """Run the process of the nodes; it ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.cluster.deployment.ray_nodes", *options],
        cwd=ROOT,
        env=environment(directory, {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    with process:
        assert process.stdin is not None
        try:
            yield process
        finally:
            process.stdin.close()
            process.wait(SECONDS_MAX)


def test_ray_client_starts_a_cluster_on_labelled_nodes_and_every_process_finds_it(tmp_path: Path) -> None:
    with own_ray(tmp_path) as own:
        said = own.run(
            f"""
{START}{USE}
import json
from heliograph.client.admin.admin import AdminSync
from heliograph.ray.gcs import actors_alive

ray.init({own.client!r})
cluster = start()
exchange_everywhere("client")
assert start() == cluster
assert len(AdminSync().list_topics()) == 4
node_of = ray.remote(num_cpus=0)(lambda: (dict(actors_alive()), {{n["NodeID"]: n["Labels"] for n in ray.nodes()}}))
actors, nodes = ray.get(node_of.remote())
labels = {{name: nodes[node] for name, node in actors.items() if name}}
print(json.dumps(labels))
"""
        )
        labels = json.loads(said.splitlines()[-1])
        assert labels["bookie-1"]["heliograph.io/bookie"] == "bookie-1"
        assert labels["bookie-2"]["heliograph.io/bookie"] == "bookie-2"
        assert labels["broker-1"]["heliograph.io/broker"] == "true"
        assert labels["metadata"]["heliograph.io/metadata"] == "true"
        own.run(
            f"""
{USE}
from heliograph.client import ray_release
from heliograph.ray import gcs

ray.init()
exchange_everywhere("node")
assert gcs.draining_nodes() == frozenset()
assert not ray_release.is_ray_client()
""",
            RAY_ADDRESS=own.address,
        )
        stopped = own.run(
            f"""
{START}
cluster = start()
cluster.stop(delete_data=True)
try:
    heliograph.connect()
except heliograph.errors.ClusterNotFoundError as error:
    print(error)
""",
            RAY_ADDRESS=own.client,
        )
        assert "no Heliograph runs in Ray namespace 'heliograph'" in stopped


PROJECT = {
    "settings.py": 'NAME = "the user\'s own"\n',
    "metadata/__init__.py": 'TEXT = "a package named as one of ours"\n',
    "heliograph_notes.txt": "read from the working directory\n",
    "use.py": USE,
    "job.py": f"""
import os
from pathlib import Path

{START}
from metadata import TEXT
from settings import NAME
from use import exchange_everywhere

def here():
    return Path("heliograph_notes.txt").read_text(), os.environ["COLOUR"], NAME, TEXT

ray.init()
cluster = ray.get(ray.remote(num_cpus=0.1)(start).remote())  # from a task
exchange_everywhere("job")
assert ray.get(ray.remote(num_cpus=0)(here).remote()) == here()
print("job done", here()[1])
""",
    "second.py": """
from use import exchange_everywhere
exchange_everywhere("second")  # no ray.init: connect() joins the Ray of the job
print("second done")
""",
}


@pytest.mark.full
def test_jobs_with_a_working_directory_start_it_and_find_it(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    with own_ray(tmp_path, "--for-jobs") as own:
        runtime = {"working_dir": str(project), "env_vars": {"COLOUR": "blue", "PYTHONPATH": str(ROOT)}}
        for program, words in (("job.py", "job done blue"), ("second.py", "second done")):
            assert words in own.submit(program, runtime)
        # The job that started it has ended, and with it the package of its working directory.
        own.run(f"{USE}\nray.init(); exchange_everywhere('after')", RAY_ADDRESS=own.address)
        own.run(
            """
import os, signal, time
import ray
from heliograph.client import discovery

ray.init()
pid = lambda: ray.get(discovery.actor("broker-1").pid.remote(), timeout=300)
old = pid()
os.kill(old, signal.SIGKILL)
while True:
    try:
        if pid() != old:
            break
    except ray.exceptions.RayError:
        pass
    time.sleep(0.2)
""",
            RAY_ADDRESS=own.address,
        )
        own.run(f"{USE}\nray.init(); print(exchange('restarted'))", RAY_ADDRESS=own.address)
