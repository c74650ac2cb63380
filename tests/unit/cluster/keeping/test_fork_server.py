"""What processes of parts are forked from may have one thread: a fork has no other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

# All that a fork server may load, and how many threads there are then.
PROGRAM = """
import importlib, os
from heliograph.cluster.keeping.fork_server import USED_BY_RAY
for module in (*USED_BY_RAY, "heliograph.cluster.keeping.host", "heliograph.cluster.deployment"):  # which has all parts
    importlib.import_module(module)
print(len(os.listdir("/proc/self/task")))
"""


def test_the_code_of_all_parts_starts_no_thread() -> None:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "1\n"
