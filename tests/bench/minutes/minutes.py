"""The steps of the README's first minutes, each in a process of its own, as a user types them.

The wheel and what it requires are installed by pip into an empty environment, from the registry or pip's cache; steps
that need no Ray run in it. Ray, which takes its own time to start, is that of the benchmarks.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.bench.bench import Bench
from tests.bench.figure import Limit, at_most
from tests.bench.machine import ROOT

SECTION = "minutes"
STEP_SECONDS_MAX = 600
MESSAGES = 40  # between the two tasks
PROGRAM = """
import heliograph
client = heliograph.connect()
with client.producer("sensors") as producer:
    producer.send("21.5", key="kitchen")
with client.consumer("sensors", "display", initial_position="earliest") as consumer:
    message = consumer.receive(timeout=60)
    consumer.ack(message)
assert message.value == b"21.5"
client.close()
"""
TEST = """
def test_orders_arrive(heliograph_client, heliograph_topic):
    heliograph_client.producer(heliograph_topic).send(b"hello")
    reader = heliograph_client.reader(heliograph_topic, start="earliest")
    assert reader.receive(timeout=60).value == b"hello"
"""


def report(bench: Bench) -> None:
    """Measure each step."""
    folder = bench.directory / "minutes"
    folder.mkdir()
    settings = {"HELIOGRAPH_STATE_ROOT": str(folder / "state"), "HOME": str(folder)}
    bare = Limit(_seconds([sys.executable, "-c", "pass"], folder, settings)[0], "start of Python")

    def add(name: str, measured: tuple[float, float], aim: float) -> None:
        bench.say(f"{name}: {measured[0]:.2f} s")
        bench.add(SECTION, name, measured[0], "s", bare, aim=at_most(aim), cpu_s=measured[1])

    wheel = _wheel(folder)
    venv.create(folder / "venv", with_pip=True)
    python, helio = folder / "venv" / "bin" / "python", str(folder / "venv" / "bin" / "helio")
    own = {**settings, "HOME": os.environ.get("HOME", str(folder))}  # pip's cache and configuration
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)]
    add("pip install of the wheel into an empty environment", _seconds(install, folder, own), 60)
    with _dev(helio, folder, settings) as measured:
        add("helio dev is ready", measured, 3)
        add("helio produce", _seconds([helio, "produce", "orders", "hello"], folder, settings), 1)
        consume = [helio, "consume", "orders", "-s", "audit", "--from", "earliest", "-n", "1"]
        add("helio consume", _seconds(consume, folder, settings), 1)
        add("helio topics list", _seconds([helio, "topics", "list"], folder, settings), 1)
        add("the same from Python", _seconds([str(python), "-c", PROGRAM], folder, settings), 1)
    add("import heliograph", _seconds([str(python), "-c", "import heliograph"], folder, settings), 0.15)
    add("helio --help", _seconds([helio, "--help"], folder, settings), 0.3)
    completed = {**settings, "_HELIO_COMPLETE": "complete_bash", "COMP_WORDS": "helio topics cr", "COMP_CWORD": "2"}
    add("completion of a command of helio", _seconds([helio], folder, completed), 0.2)
    add("helio status of a cluster of helio up", _status(folder, settings), 1)
    add("a test with the fixture heliograph_client, from set-up to tear-down", _test(folder, settings), 1)
    add("ray.init, heliograph.start, two tasks of which one is killed", _in_ray(folder, settings), 60)


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    dropped = ("HELIOGRAPH_", "RAY_", "PYTHON", "VIRTUAL_ENV", "PYTEST_")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | dict(settings)


def _seconds(command: list[str], folder: Path, settings: Mapping[str, str]) -> tuple[float, float]:
    """Run a command to its end; return its seconds, and those of the processor.

    Raises:
        RuntimeError: it failed.
    """
    before, begun = os.times(), time.perf_counter()
    ran = subprocess.run(
        command,
        cwd=folder,
        env=_environment(settings),
        capture_output=True,
        text=True,
        timeout=STEP_SECONDS_MAX,
        check=False,
    )
    seconds, after = time.perf_counter() - begun, os.times()
    if ran.returncode:
        raise RuntimeError(f"{' '.join(command[:4])} ended with {ran.returncode}: {ran.stdout}{ran.stderr}")
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, used


def _wheel(folder: Path) -> Path:
    program = "import sys, hatchling.build; print(hatchling.build.build_wheel(sys.argv[1]))"
    made = subprocess.run(
        [sys.executable, "-c", program, str(folder)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return folder / made.stdout.splitlines()[-1]


@contextlib.contextmanager
def _dev(helio: str, folder: Path, settings: Mapping[str, str]) -> Iterator[tuple[float, float]]:
    """Run `helio dev`; yield the seconds until it said where it listens, and those of the processor until then."""
    begun = time.perf_counter()
    command = [helio, "dev", "--port", "0", "--http-port", "0", "--json"]
    with subprocess.Popen(
        command, cwd=folder, env=_environment(settings), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None, "its output is a pipe"
        try:
            assert json.loads(process.stdout.readline())["service_url"]
            seconds = time.perf_counter() - begun
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            yield seconds, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        finally:
            process.terminate()


def _test(folder: Path, settings: Mapping[str, str]) -> tuple[float, float]:
    """Run a test of a user's project; return what pytest says that it took, and the processor's share of the run."""
    (folder / "test_orders.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", "test_orders.py"]
    for _ in range(2):  # the first run writes the bytecode, with pytest's own form of assertions
        _, used = _seconds(command, folder, {**settings, "PYTHONPATH": str(ROOT)})
    (case,) = ElementTree.parse(folder / "found.xml").iter("testcase")
    return float(case.get("time", "nan")), used


def _status(folder: Path, settings: Mapping[str, str]) -> tuple[float, float]:
    """Start a cluster by `helio up`; return the seconds of `helio status`, which joins no Ray."""
    program = "import sys; from heliograph.cli.app import main; sys.exit(main())"
    helio = [sys.executable, "-c", program]
    own = {**settings, "PYTHONPATH": str(ROOT), "HELIOGRAPH_STATE_ROOT": str(folder / "up")}
    own |= {f"HELIOGRAPH_{name}_PORT": "0" for name in ("BROKER", "GATEWAY", "DASHBOARD")}
    try:
        _seconds([*helio, "up"], folder, own)
        _seconds([*helio, "status", "--wait", "60"], folder, own)
        return _seconds([*helio, "status"], folder, own)
    finally:
        _seconds([*helio, "down", "--delete-data"], folder, own)


def _in_ray(folder: Path, settings: Mapping[str, str]) -> tuple[float, float]:
    """Run a program that starts both, and sends messages from a task to another one, which is killed half-way."""
    command = [sys.executable, "-m", "tests.cluster.deployment.in_ray", str(folder), str(MESSAGES)]
    return _seconds(command, folder, {**settings, "PYTHONPATH": str(ROOT)})
