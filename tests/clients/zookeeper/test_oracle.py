"""ZooKeeper 3.9 as the oracle: the endpoint and the metadata contract are compared with it, as with Debian's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.zookeeper.served import zookeeper_class_path
from tests.contracts.metadata.zookeeper_server import CLASS_PATH_VARIABLE

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 500.0
LOG_CHARACTERS_MAX = 8_000


@pytest.mark.parametrize(
    "which",
    [
        ["tests/contracts/endpoint/test_oracle.py"],
        pytest.param(["tests/contracts/metadata", "-k", "[zookeeper"], marks=pytest.mark.full),
    ],
    ids=["wire", "contract"],
)
def test_it_agrees(which: list[str]) -> None:
    environment = {**os.environ, CLASS_PATH_VARIABLE: zookeeper_class_path(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *which],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-LOG_CHARACTERS_MAX:]
    assert " passed" in done.stdout.splitlines()[-1]
    assert "skipped" not in done.stdout.splitlines()[-1], "all of them ran"
