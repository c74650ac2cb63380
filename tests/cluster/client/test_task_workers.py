"""examples/tasks.py and examples/serve_tasks.py: workers follow the backlog in a Ray of their own, and one of them is
killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

SECONDS = 600
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS + 60)]


def test_workers_follow_the_backlog_and_no_job_is_lost() -> None:
    command = [sys.executable, "-m", "examples.tasks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 workers: nothing is to be done" in done.stdout
    assert "201 results by" in done.stdout


def test_replicas_come_with_the_backlog_and_no_task_is_lost() -> None:
    command = [sys.executable, "-m", "examples.serve_tasks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "61 results by" in done.stdout
    assert "no backlog, no replicas" in done.stdout
