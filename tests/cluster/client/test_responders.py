"""Responders in processes of their own that are killed: each request is answered, and once."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import heliograph
from tests.waits import until

SECONDS = 120
REQUESTS = 300
RESPONDERS = 3
IN_HAND = 4  # requests of one responder
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(SECONDS + 60)]

# Notes each call, so that a request whose responder died is known to have been begun.
RESPONDER = """
import os, signal, sys, time
import heliograph

def answer(data):
    with open(sys.argv[2], "a") as calls:
        calls.write(f"{os.getpid()} {data.decode()}\\n")
    time.sleep(0.02)
    return data + b" answered"

client = heliograph.connect(sys.argv[1])
responder = client.respond("asked", answer, concurrency=4)
print("ready", flush=True)
signal.pause()
"""


def test_the_example_runs() -> None:
    command = [sys.executable, "-m", "examples.request"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    assert "200 answers by" in done.stdout
    assert "a stream: once upon a time" in done.stdout


def test_a_killed_responder_leaves_no_request_without_its_one_answer(tmp_path: Path) -> None:
    noted = tmp_path / "calls"
    with heliograph.local(tmp_path / "data") as cluster:
        command = [sys.executable, "-c", RESPONDER, cluster.service_url, str(noted)]
        responders = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(RESPONDERS)]
        try:
            for each in responders:
                assert each.stdout is not None
                assert each.stdout.readline() == b"ready\n"
            answers, dropped = asyncio.run(_asked(cluster.service_url, responders[0], noted))
        finally:
            for each in responders:
                each.kill()
                each.communicate()
    assert answers == [f"{number} answered".encode() for number in range(REQUESTS)]
    calls = noted.read_text().splitlines()
    repeated = len(calls) - len({call.split()[1] for call in calls})
    assert {call.split()[1] for call in calls} == {str(number) for number in range(REQUESTS)}
    assert repeated <= IN_HAND, "only what the dead responder had in hand was called again"
    assert dropped <= repeated, "and only that could be answered twice"
    assert responders[0].returncode == -signal.SIGKILL


async def _asked(address: str, victim: subprocess.Popen[bytes], noted: Path) -> tuple[list[bytes], int]:
    """Ask, kill a responder that has begun, and return the answers and how many were dropped."""
    async with await heliograph.connect_async(address) as client:
        asking = [asyncio.ensure_future(client.request("asked", f"{n}", timeout=60)) for n in range(REQUESTS)]
        await until(lambda: f"{victim.pid} " in (noted.read_text() if noted.exists() else ""))
        victim.send_signal(signal.SIGKILL)
        return await asyncio.gather(*asking), client._requests().dropped
