"""Calls between the actor of a part and its process, over a pair of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from heliograph.base.errors import NotFoundError, ServiceNotReadyError
from heliograph.cluster.keeping import channel as channels
from heliograph.cluster.keeping.channel import CALL, CANCEL, END, PartCalls, PartChannel, answered


def looped(test: Callable[[pytest.MonkeyPatch], Coroutine[Any, Any, None]]) -> Callable[[pytest.MonkeyPatch], None]:
    """Run a test on an event loop of its own, of the kind that parts have."""

    @functools.wraps(test)
    def run(monkeypatch: pytest.MonkeyPatch) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(monkeypatch))

    return run


class Pair:
    """An actor's end with its calls, and the end of the process."""

    def __init__(self, calls: PartCalls, process: PartChannel, ends: list[str]) -> None:
        self.calls = calls
        self.process = process
        self.ends = ends


@contextlib.asynccontextmanager
async def pair() -> AsyncIterator[Pair]:
    ours, theirs = socket.socketpair()
    ends: list[str] = []
    process = await PartChannel.over(theirs)

    async def ended() -> None:
        ends.append("ended")

    calls = PartCalls(await PartChannel.over(ours), ended)
    yield Pair(calls, process, ends)
    process.close()
    await calls.end()  # until both ends are closed


async def answer(process: PartChannel, method: Any) -> None:
    frame = await process.receive()
    assert frame is not None
    assert frame[0] == CALL
    await answered(process, frame[1], method(*frame[3], **frame[4]))


@looped
async def test_calls_return_what_the_method_does_or_raise_what_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    async def double(number: int, *, by: int = 2) -> int:
        if number < 0:
            raise NotFoundError(f"no {number}")
        return number * by

    async with pair() as ends:
        task = asyncio.create_task(ends.calls.call("double", (4,), {"by": 3}))
        await answer(ends.process, double)
        assert await task == 12
        task = asyncio.create_task(ends.calls.call("double", (-1,), {}))
        await answer(ends.process, double)
        with pytest.raises(NotFoundError, match="no -1"):
            await task


@looped
async def test_an_outcome_that_cannot_be_sent_is_told_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    async def lock() -> Any:
        return threading.Lock()

    async with pair() as ends:
        task = asyncio.create_task(ends.calls.call("lock", (), {}))
        await answer(ends.process, lock)
        with pytest.raises(ServiceNotReadyError, match="lock"):
            await task


@looped
async def test_the_process_hears_of_a_caller_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ends:
        task = asyncio.create_task(ends.calls.call("wait", (), {}))
        frame = await ends.process.receive()
        assert frame is not None
        task.cancel()
        assert await ends.process.receive() == (CANCEL, frame[1])


@looped
async def test_calls_of_a_process_that_ends_fail_and_its_actor_hears_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ends:
        task = asyncio.create_task(ends.calls.call("wait", (), {}))
        assert await ends.process.receive() is not None
        ends.process.close()
        with pytest.raises(ServiceNotReadyError, match="has ended"):
            await task
        assert ends.ends == ["ended"]
        with pytest.raises(ServiceNotReadyError, match="has ended"):  # and not wait for ever
            await ends.calls.call("wait", (), {})


@looped
async def test_calls_fail_while_the_actor_starts_the_process_again(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    started = asyncio.Event()

    async def start() -> None:
        await started.wait()

    calls = PartCalls(await PartChannel.over(ours), start)
    theirs.close()
    await asyncio.sleep(0.01)  # until it has read the end
    task = asyncio.create_task(calls.call("wait", (), {}))
    await asyncio.sleep(0)
    started.set()
    with pytest.raises(ServiceNotReadyError, match="has ended"):
        await task


@looped
async def test_the_end_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ends:
        task = asyncio.create_task(ends.calls.end())
        assert await ends.process.receive() == (END,)
        assert not task.done()
        ends.process.close()
        await task


@looped
async def test_a_frame_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pair() as ends:
        monkeypatch.setattr(channels, "FRAME_BYTES_MAX", 100)  # I15
        with pytest.raises(ValueError, match="at most 100"):
            await ends.calls.call("take", (bytes(200),), {})


@looped
async def test_an_end_waits_while_the_other_takes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:  # I15
    ours, theirs = socket.socketpair()
    process = await PartChannel.over(theirs)
    await process.drained()
    sending = asyncio.create_task(process.send("result", 1, bytes(4 << 20)))
    await asyncio.sleep(0)
    drained = asyncio.create_task(process.drained())
    await asyncio.sleep(0.05)
    assert not drained.done()
    actor = await PartChannel.over(ours)
    assert await actor.receive() == ("result", 1, bytes(4 << 20))
    await asyncio.wait_for(asyncio.gather(sending, drained), 30)
    actor.close()
    process.close()
