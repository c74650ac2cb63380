"""The commands of docs/requests.md answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import heliograph


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
