"""``helio dev`` as a process: what it prints, how others find it, and what a kill costs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph

pytestmark = pytest.mark.slow

HELIO = (sys.executable, "-c", "from heliograph.cli import main; main()")
SECONDS_MAX = 300
READ_SECONDS = 60


@contextlib.contextmanager
def running(*options: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A ``helio dev`` with free ports, and what it printed."""
    with started("--json", *options) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())


@contextlib.contextmanager
def started(*options: str) -> Iterator[subprocess.Popen[str]]:
    command = [*HELIO, "dev", "--port", "0", "--http-port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def helio(*arguments: str, standard_input: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HELIO, *arguments], input=standard_input, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )


def test_commands_find_it_and_ctrl_c_ends_it(state_root: Path) -> None:
    with running() as (process, printed):
        assert printed["directory"] == str(state_root / "heliograph")
        assert helio("produce", "greetings", standard_input="hello\n").returncode == 0
        consumed = helio("consume", "greetings", "--from", "earliest", "-n", "1")
        assert consumed.stdout == "hello\n", consumed.stderr
        listed = json.loads(helio("topics", "list", "--json").stdout)
        assert "persistent://public/default/greetings" in json.dumps(listed)
        status = json.loads(helio("status", "--wait", str(SECONDS_MAX), "--json").stdout)
        assert status["healthy"]
        assert status["service_url"] == printed["service_url"]
        assert {part["name"]: part["pid"] for part in status["actors"]} == dict.fromkeys(
            ("metadata", "bookie-1", "broker-1", "gateway"), process.pid
        )
        refused = helio("up")
        assert refused.returncode == 1
        assert f"process {process.pid} has a cluster" in refused.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
    assert not (state_root / "heliograph" / "cluster.json").exists()


def test_settings_of_the_environment_hold(state_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_MAX_MESSAGE_BYTES", "2048")
    monkeypatch.setenv("HELIOGRAPH_BROKER__DEFAULTS__MESSAGE_TTL_SECONDS", "77")
    with running():
        assert helio("produce", "orders", "x" * 3_000).returncode == 0
        found = json.loads(helio("topics", "stats", "orders", "--internal", "--json").stdout)
        assert found["numberOfEntries"] == 2, "it is stored in chunks"
        policies = json.loads(helio("namespaces", "policies", "get", "public/default", "--json").stdout)["policies"]
        assert policies["message_ttl_seconds"] == 77
    monkeypatch.setenv("HELIOGRAPH_MAX_MESSAGE_BYTES", "much")
    assert "HELIOGRAPH_MAX_MESSAGE_BYTES" in helio("dev", "--port", "0", "--http-port", "0").stderr


def test_what_was_confirmed_before_a_kill_is_there_after_it(state_root: Path) -> None:
    confirmed: list[bytes] = []
    for _ in range(2):
        with running() as (process, printed), heliograph.connect(printed["service_url"]) as client:
            producer = client.producer("orders")
            for _ in range(50):
                value = b"%d" % len(confirmed)
                producer.send(value)
                confirmed.append(value)
            os.kill(process.pid, signal.SIGKILL)
    with (
        running() as (_, printed),
        heliograph.connect(printed["service_url"]) as client,
        client.reader("orders", start="earliest") as reader,
    ):
        assert [reader.receive(timeout=READ_SECONDS).value for _ in confirmed] == confirmed


@pytest.mark.parametrize("option", ["--port", "--http-port"])
def test_a_taken_port_is_named_with_its_option(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        other = ({"--port", "--http-port"} - {option}).pop()
        ran = helio("dev", option, port, other, "0")
    assert ran.returncode == 1
    assert ran.stderr.strip() == (
        f"error: port {port} on 127.0.0.1 is in use: stop its server, or give {option} another one, 0 for any"
    )


def test_the_line_that_it_prints_lets_a_page_of_a_development_server_in() -> None:
    page = "http://localhost:3000"

    def answer(http_url: str) -> tuple[int, str | None]:
        url = f"{http_url}/admin/v2/persistent/public/default"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers={"Origin": page})) as found:
                return found.status, found.headers["access-control-allow-origin"]
        except urllib.error.HTTPError as error:
            return error.code, error.headers["access-control-allow-origin"]

    with started("--temporary") as process:
        assert process.stdout is not None
        printed = ""
        while page not in (line := process.stdout.readline()):
            assert line, f"it ended: {printed}"
            printed += line
        http_url = re.search(r"http://127[0-9.]+:[0-9]+", printed)
        assert http_url is not None, printed
        assert answer(http_url[0]) == (403, None)
    name, command, *options = line.split()
    assert (name, command) == ("helio", "dev")
    with running("--temporary", *options) as (_, told):
        assert answer(told["http_url"]) == (200, page)
