"""Requests over HTTP and by the commands of docs/requests.md, on a cluster in this process beside a responder of
Python."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import heliograph

TEXT = {"Content-Type": "text/plain"}


async def test_a_responder_answers_http(
    cluster: heliograph.LocalCluster, client: heliograph.AsyncClient, topic: str
) -> None:
    async def words(data: bytes) -> AsyncIterator[bytes]:
        for word in data.split():
            yield word

    async def upper(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("no such document")
        return data.upper()

    url = f"{cluster.http_url}/topics/persistent/public/default/{topic}"
    async with httpx.AsyncClient(timeout=30) as http, client.respond(topic, upper):
        answer = await http.post(f"{url}?reply=wait", content="hello", headers=TEXT)
        assert (answer.status_code, answer.json()["payload"]) == (200, "HELLO")
        answer = await http.post(f"{url}?reply=wait", content="bad", headers=TEXT)
        assert (answer.status_code, answer.json()["reason"]) == (502, "ValueError: no such document")
        async with client.respond(topic + "-words", words):
            answer = await http.post(f"{url}-words?reply=stream", content="to be", headers=TEXT)
        assert answer.text.count('data: {"payload"') == 2
        assert "event: end" in answer.text
        answer = await http.post(f"{url}-words?reply=wait&replyTimeoutMs=50", content="nobody answers", headers=TEXT)
        assert answer.status_code == 504


@pytest.mark.slow
def test_the_command_asks(cluster: heliograph.LocalCluster, topic: str) -> None:
    def words(data: bytes) -> Any:
        yield from data.split()

    def answer(data: bytes) -> bytes:
        return data.upper() if data == b"hello" else bytes(int(data))

    with cluster.connect() as client, client.respond(topic, answer), client.respond(topic + "-words", words):
        assert _helio(cluster, topic, "hello") == (0, "HELLO\n", "")
        assert _helio(cluster, topic + "-words", "a b", "--stream") == (0, "a\nb\n", "")
        code, out, error = _helio(cluster, topic, "bad")
        assert (code, out) == (1, "")
        assert "ValueError: invalid literal" in error


def _helio(cluster: heliograph.LocalCluster, *arguments: str) -> tuple[int, str, str]:
    command = [str(Path(sys.executable).with_name("helio")), "request", *arguments, "--address", cluster.service_url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr
