"""A cluster in one process goes on after it was stopped for longer than its sessions last (I13)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.base.home import ClusterHome
from heliograph.metadata import paths
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets
from heliograph.standalone.config import BROKER

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 2  # of the sessions
RECEIVE_SECONDS = 120
SHORT_SESSIONS = f"""
import json, signal, sys
from heliograph.standalone import config, parts
config.SESSION_TIMEOUT_MS = parts.SESSION_TIMEOUT_MS = {TIMEOUT_SECONDS * 1_000}
"""
DEV = """
from heliograph.cli import main
sys.argv[1:] = ["dev", "--bookies", "2", "--port", "0", "--http-port", "0", "--json", "--home", sys.argv[1]]
main()
"""
LOCAL = """
import heliograph
with heliograph.local(sys.argv[1], bookies=2) as cluster:
    print(json.dumps({"service_url": cluster.service_url, "http_url": cluster.http_url}), flush=True)
    signal.pause()
"""


@contextlib.contextmanager
def running(program: str, home: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """A cluster with short sessions: its process group, and what it printed."""
    command = [sys.executable, "-c", SHORT_SESSIONS + program, str(home)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    try:
        yield process.pid, json.loads(process.stdout.readline())
        assert process.poll() is None, "it serves to the end"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()


def stop_for(group: int, seconds: float) -> None:
    """Let no process of a group run for a time."""
    os.killpg(group, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.killpg(group, signal.SIGCONT)


def sessions(home: Path) -> dict[str, int]:
    """Return the session of each part, by the path of its registration."""
    state = ClusterHome(home).load()
    assert state is not None

    async def ask() -> dict[str, int]:
        store = await connect_store(with_secrets(state.metadata_url, ClusterHome(home).secret()))
        try:
            nodes = [paths.broker_available(BROKER), *(paths.bookie_available(f"bookie-{n}") for n in (1, 2))]
            return {node: (await store.get(node))[1].ephemeral_owner for node in nodes}
        finally:
            await store.close()

    return asyncio.run(ask())


def publish_over_http(http_url: str, value: str) -> int:
    """Return the status of the answer."""
    body = json.dumps({"messages": [{"payload": value}]}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{http_url}/topics/persistent/public/default/orders", body, headers)
    try:
        with urllib.request.urlopen(request, timeout=RECEIVE_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [3 * TIMEOUT_SECONDS, pytest.param(60, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "program", [pytest.param(DEV, id="dev"), pytest.param(LOCAL, id="local", marks=pytest.mark.full)]
)
def test_a_stopped_process_goes_on_with_its_sessions_and_clients(tmp_path: Path, program: str, seconds: float) -> None:
    home, sent, statuses = tmp_path / "home", list[str](), list[int]()
    with running(program, home) as (group, printed), heliograph.connect(printed["service_url"]) as client:
        producer = client.producer("orders", send_timeout_ms=RECEIVE_SECONDS * 1_000)
        keys = client.consumer("orders", "keys", type="key_shared", initial_position="earliest")
        consumer = client.consumer("orders", "all", initial_position="earliest")

        def publish() -> None:
            sent.append(f"own {len(sent)}")
            producer.send(sent[-1].encode(), key=sent[-1])
            sent.append(f"http {len(sent)}")
            statuses.append(publish_over_http(printed["http_url"], sent[-1]))

        publish()
        before = sessions(home)
        stop_for(group, seconds)
        ends = time.monotonic() + 1.5 * TIMEOUT_SECONDS  # a session that lost its time would be over by then
        while time.monotonic() < ends:
            publish()
            time.sleep(0.1)
        assert set(statuses) == {200}
        assert sessions(home) == before
        for waiting in (consumer, keys):
            received = set[str]()
            while len(received) < len(sent):
                message = waiting.receive(timeout=RECEIVE_SECONDS)
                received.add(message.value.decode())
                waiting.ack(message)
            assert received == set(sent)
