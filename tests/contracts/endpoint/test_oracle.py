"""The endpoint answers as ZooKeeper 3.8 does, byte for byte wherever the answer is deterministic."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contracts.endpoint.backends import EndpointOverMemory
from tests.contracts.endpoint.wire.random_calls import RandomConversation
from tests.contracts.endpoint.wire.transcript import Line, Transcript
from tests.contracts.metadata.zookeeper_server import missing, shared_server

ORACLE = pytest.mark.skipif(bool(missing()), reason=missing() or "never")
STEPS = 250


def compare(directory: Path, talk: Callable[[str, str], Transcript]) -> list[Line]:
    """Send the same requests to the endpoint and to ZooKeeper."""
    root = f"/{uuid.uuid4().hex}"
    server = shared_server()

    async def both() -> tuple[list[Line], list[Line]]:
        backend = EndpointOverMemory(directory)
        await backend.start()
        try:
            return await talk(backend.address, root).run(), await talk(server.address, root).run()
        finally:
            await backend.stop()

    ours, theirs = asyncio.run(both())
    for number, (mine, expected) in enumerate(zip(ours, theirs, strict=True)):
        assert mine == expected, f"line {number}, after {ours[max(0, number - 8) : number]}"
    return ours


@ORACLE
def test_both_answer_a_long_conversation_alike(tmp_path: Path) -> None:
    assert len(compare(tmp_path, Transcript)) > 150


@ORACLE
@pytest.mark.parametrize("seed", range(5))
def test_both_answer_random_conversations_alike(tmp_path: Path, seed: int) -> None:
    lines = compare(tmp_path, lambda address, root: RandomConversation(address, root, seed, STEPS))
    assert any(line[-1] for line in lines), "there are events to compare"
