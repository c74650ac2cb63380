"""What a plain install can do: the client, ``helio``, ``helio dev``; what it says of the rest; what one extra adds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

from tests.cluster.install.environment import Environment
from tests.cluster.install.plain import make_plain
from tests.patience import START_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PROGRAM = """
import sys
import heliograph

with heliograph.local() as cluster, cluster.connect() as client:
    with client.producer("greetings") as producer:
        producer.send(b"hello")
    with client.reader("greetings", "earliest") as reader:
        print(reader.receive(60).value.decode())
assert not {"ray", "grpc", "kazoo", "pyspark", "pandas"} & {*sys.modules}
"""


def test_ray_is_not_there(plain: Environment, tmp_path: Path) -> None:
    for package in ("ray", "kazoo", "etcd3", "grpc", "pyspark"):
        assert "ModuleNotFoundError" in plain.run(["python", "-c", f"import {package}"], tmp_path, code=1)


def test_a_program_runs_a_cluster_of_its_own(plain: Environment, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    assert plain.run(["python", "program.py"], tmp_path) == "hello\n"


def test_helio_dev_serves_the_commands(plain: Environment, tmp_path: Path) -> None:
    at = {"HELIOGRAPH_HOME": str(tmp_path / "home")}
    helio = shutil.which("helio", path=str(plain.directory / "bin"))
    assert helio is not None
    command = [helio, "dev", "--port", "0", "--http-port", "0", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, env=plain.variables(at), stdout=subprocess.PIPE, text=True) as dev:
        try:
            assert dev.stdout is not None
            assert "pulsar://127.0.0.1:" in dev.stdout.readline()
            plain.run(["helio", "produce", "greetings", "hello"], tmp_path, at)
            assert (
                plain.run(["helio", "consume", "greetings", "--from", "earliest", "-n", "1"], tmp_path, at) == "hello\n"
            )
            assert "greetings" in plain.run(["helio", "topics", "list"], tmp_path, at)
            assert plain.run(["helio", "status"], tmp_path, at).splitlines()[-1] == "healthy"
            assert "0 problems" in plain.run(["helio", "doctor"], tmp_path, at)
            assert " dev heliograph." in plain.run(["helio", "logs"], tmp_path, at)
        finally:
            os.kill(dev.pid, signal.SIGINT)
        assert dev.wait(60) == 0


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["helio", "up"], "cluster"),
        (["helio", "topics", "list"], "cluster"),
        (["python", "-c", "import heliograph.spark"], "spark"),
        (["python", "-c", "import heliograph.ray_data"], "spark"),
    ],
)
def test_what_lacks_names_its_extra(plain: Environment, tmp_path: Path, command: list[str], extra: str) -> None:
    at = {"HELIOGRAPH_HOME": str(tmp_path / "home"), "RAY_ADDRESS": "127.0.0.1:1"}
    said = plain.run(command, tmp_path, at, code=1)
    assert f"pip install 'heliograph-ray[{extra}]'" in said.splitlines()[-1]


def test_a_cluster_needs_no_more_than_its_extra(wheel: Path, tmp_path: Path) -> None:
    """The extras for tables bring numpy and others, which Ray takes where they are."""
    cluster = make_plain(tmp_path / "venv", wheel, "cluster")
    assert "ModuleNotFoundError" in cluster.run(["python", "-c", "import numpy"], tmp_path, code=1)
    settings = {
        "HELIOGRAPH_HOME": str(tmp_path / "home"),
        "HELIOGRAPH_NAMESPACE": f"extra-{uuid.uuid4().hex[:8]}",
        "HELIOGRAPH_START_TIMEOUT_MS": str(START_SECONDS * 1_000),
        "HELIOGRAPH_METADATA_PORT": "0",
        "HELIOGRAPH_BROKER_PORT": "0",
        "HELIOGRAPH_GATEWAY_PORT": "0",
    }
    cluster.run(["helio", "up", "--lean"], tmp_path, settings)
    try:
        cluster.run(["helio", "produce", "greetings", "hello"], tmp_path, settings)
        consume = ["helio", "consume", "greetings", "--from", "earliest", "-n", "1"]
        assert cluster.run(consume, tmp_path, settings) == "hello\n"
    finally:
        cluster.run(["helio", "down"], tmp_path, settings)
