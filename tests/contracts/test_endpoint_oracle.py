"""The endpoint answers as ZooKeeper 3.8 does, request by request and byte for byte where nothing is left to chance."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path

import pytest

from tests.contracts.endpoint_backends import EndpointOverMemory
from tests.contracts.wire_transcript import Line, Transcript
from tests.contracts.zookeeper_server import missing, shared_server


@pytest.mark.parametrize("name", [pytest.param("zookeeper", marks=[pytest.mark.skip(missing())] if missing() else [])])
def test_both_answer_a_long_conversation_alike(tmp_path: Path, name: str) -> None:
    root = f"/{uuid.uuid4().hex}"
    server = shared_server()

    async def both() -> tuple[list[Line], list[Line]]:
        backend = EndpointOverMemory(tmp_path)
        await backend.start()
        try:
            return await Transcript(backend.address, root).run(), await Transcript(server.address, root).run()
        finally:
            await backend.stop()

    ours, theirs = asyncio.run(both())
    assert len(ours) > 150
    assert ours == theirs
