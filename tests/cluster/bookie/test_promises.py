"""A broken promise of our own ends the process, wherever on the event loop it is noticed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.server.connection import BookieClientConnection as ServerSide
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.messages import BookieOp, BookieRequest, Flag
from heliograph.base.processes import EXIT_BROKEN
from tests.cluster.support.bookie_peer import serving, small_config


@pytest.mark.parametrize(
    ("owner", "method"), [(BookieStorage, "add"), (ServerSide, "on_durable"), (BookieStorage, "fence")]
)
async def test_a_bookie_stops_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    def broken(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a promise")

    told: list[BaseException] = []
    async with serving(small_config(tmp_path), on_failure=told.append) as (bookie, peer):
        monkeypatch.setattr(owner, method, broken)
        call = peer.call(BookieOp.READ_LAC, 1, flags=Flag.FENCE) if method == "fence" else peer.add(1, 0, b"x")
        with pytest.raises(ConnectionError):
            await call
        assert isinstance(bookie.failure, AssertionError)
        assert told == [bookie.failure]


async def test_a_client_is_told_of_what_a_callback_raised(tmp_path: Path) -> None:
    told: list[BaseException] = []
    loop = asyncio.get_running_loop()
    done = asyncio.Event()

    def on_broken(error: BaseException) -> None:
        told.append(error)
        done.set()

    def on_answer(context: object, answer: Any, body: memoryview) -> None:
        raise AssertionError(f"a promise of {context}")

    def connection(address: str) -> BookieConnection:
        return BookieConnection("b1", address, lambda: int(loop.time() * 1000), on_broken=on_broken)

    async with serving(small_config(tmp_path)) as (bookie, _):
        one = connection(bookie.address)
        one.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", on_answer, "an answer", 60_000)
        await asyncio.wait_for(done.wait(), 60)
        one.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", on_answer, "a late one", -1)
        one.expire(int(loop.time() * 1000))
        one.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", on_answer, "a lost one", 5_000)
        one.close()
        one.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", on_answer, "a closed one", 5_000)
        await asyncio.sleep(0)
    assert [str(error) for error in told] == [
        f"a promise of {what}" for what in ("an answer", "a late one", "a lost one", "a closed one")
    ]


def test_the_process_ends_by_default() -> None:
    program = (
        "from heliograph.base.processes import end_process\n"
        "try:\n    raise AssertionError('a promise')\nexcept AssertionError as error:\n    end_process(error)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == EXIT_BROKEN
    assert "AssertionError: a promise" in ended.stderr
