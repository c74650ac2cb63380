"""Event loops on background threads: results, refusals, closing, and what a forked child gets."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import CancelledError
from typing import Any

import pytest

from heliograph.base.errors import AlreadyClosedError
from heliograph.base.loop_thread import LoopThread, SharedLoopThread


async def name_of_thread() -> str:
    return threading.current_thread().name


def test_a_coroutine_runs_on_the_named_thread() -> None:
    with LoopThread("worker") as thread:
        assert thread.run(name_of_thread()) == "worker"
        assert thread.start(name_of_thread()).result(10) == "worker"


def test_a_failure_reaches_the_caller() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with LoopThread("worker") as thread, pytest.raises(ValueError, match="no"):
        thread.run(fail())


def test_waiting_on_its_own_thread_is_refused_instead_of_hanging() -> None:
    with LoopThread("worker") as thread:

        async def wait_for_itself() -> None:
            thread.run(asyncio.sleep(0))

        with pytest.raises(RuntimeError, match="cannot wait"):
            thread.run(wait_for_itself())


def test_closing_cancels_what_runs_and_ends_the_thread() -> None:
    cancelled = threading.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    thread = LoopThread("to be closed")
    pending = thread.start(wait_for_ever())
    thread.run(asyncio.sleep(0))
    thread.close()
    assert cancelled.is_set()
    assert pending.done()
    assert "to be closed" not in [each.name for each in threading.enumerate()]
    thread.close()  # a second close does nothing


def test_a_result_whose_caller_was_interrupted_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it came before the interruption or after it."""
    given_back: list[int] = []
    with LoopThread("worker") as thread:
        for number, is_late in enumerate((False, True)):

            async def work(number: int = number, is_late: bool = is_late) -> int:
                try:
                    await asyncio.sleep(60 if is_late else 0)
                except asyncio.CancelledError:
                    return number  # as a coroutine does that was done but for its last step
                return number

            begin = thread.start

            def interrupted(coroutine: Any, is_late: bool = is_late, begin: Any = begin) -> Any:
                future = begin(coroutine)
                if not is_late:
                    future.result(10)
                future.result = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
                return future

            monkeypatch.setattr(thread, "start", interrupted)
            with pytest.raises(KeyboardInterrupt):
                thread.run(work(), given_back.append)
            monkeypatch.setattr(thread, "start", begin)
            thread.run(asyncio.sleep(0))
            thread.run(asyncio.sleep(0))
    assert given_back == [0, 1]


def test_a_stopped_loop_refuses_calls_instead_of_hanging() -> None:
    thread = LoopThread("stopped")
    waiting = thread.start(asyncio.sleep(60))
    thread.abandon()
    with pytest.raises(CancelledError):
        waiting.result(10)
    with pytest.raises(AlreadyClosedError, match="stopped"):
        thread.run(name_of_thread())


shared = SharedLoopThread("shared by this test")


def test_a_shared_thread_is_one_per_process() -> None:
    first = shared.current()
    assert shared.current() is first
    child = os.fork()
    if child == 0:
        try:
            own = shared.current()
            is_right = own is not first and own.run(name_of_thread()) == "shared by this test"
            os._exit(0 if is_right else 1)
        finally:
            os._exit(2)
    deadline = time.monotonic() + 60
    ended, status = os.waitpid(child, os.WNOHANG)
    while ended == 0:
        assert time.monotonic() < deadline, "the child hangs"
        time.sleep(0.01)
        ended, status = os.waitpid(child, os.WNOHANG)
    assert os.waitstatus_to_exitcode(status) == 0
    assert shared.current() is first
