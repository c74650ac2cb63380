"""Ctrl-C at any moment says nothing, and a stream that cannot say a character replaces it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import heliograph
from tests.waits import block_until

pytestmark = pytest.mark.slow

HELIO = (sys.executable, "-c", "from heliograph.cli import main; main()")
SECONDS = 60
WINDOW = 100  # messages that are sent and not yet acknowledged


@pytest.fixture(scope="module")
def cluster() -> Iterator[heliograph.LocalCluster]:
    with heliograph.local() as running:
        running.connect().producer("orders").send("x")
        yield running


def interrupted(*arguments: str, wait: Callable[[], None]) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command that gets Ctrl-C after ``wait``."""
    program = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # pytest may run without
        "from heliograph.cli import main; print('begun', flush=True); main()"  # which loads the commands
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    wait()
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=SECONDS)
    return process.returncode, out, error


@pytest.mark.parametrize("seconds", [0.1, 0.3, 3])
def test_an_interrupt_is_silent(cluster: heliograph.LocalCluster, seconds: float) -> None:
    found = interrupted("consume", "orders", "-f", "--address", cluster.service_url, wait=partial(time.sleep, seconds))
    assert found == (130, "", "")


def test_an_interrupted_measurement_says_its_result_so_far(cluster: heliograph.LocalCluster) -> None:
    admin = cluster.connect().admin
    admin.create_topic("measured")

    def some_are_acknowledged() -> None:
        block_until(lambda: admin.topic_stats("measured")["msgInCounter"] >= 3 * WINDOW)

    arguments = ("perf", "produce", "measured", "--messages", "50000000", "--size", "100", "--window", str(WINDOW))
    code, out, error = interrupted(*arguments, "--address", cluster.service_url, wait=some_are_acknowledged)
    assert (code, error) == (130, "")
    found = dict(line.split(None, 1) for line in out.splitlines() if len(line.split()) > 1)
    assert int(found["messages"].replace(",", "")) > 0
    assert found["mb_per_s"].rstrip().endswith("B/s")


def test_a_stream_of_ascii_gets_question_marks(cluster: heliograph.LocalCluster) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PATH": "/usr/bin:/bin"}
    command = [*HELIO, "produce", "gr\u00fc\u00dfe", "--address", cluster.service_url]
    ran = subprocess.run(
        command, input="x", capture_output=True, text=True, env=environment, timeout=SECONDS, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("1 message published to gr??e")


def test_sigterm_of_a_starting_cluster_stops_what_it_has_started() -> None:
    program = """
import os, signal, time
from heliograph.cluster import lifecycle
def start(config, progress):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)  # a second one, while that is stopped
        print("stopped what was started", flush=True)
lifecycle.up = start
from heliograph.cli import main
main()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program, "up"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (143, "stopped what was started\n", "")
