"""Work that runs to its end although its caller is cancelled."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.base.completion import run_to_completion


def test_the_result_and_the_failure_reach_the_caller() -> None:
    async def succeed() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("no")

    assert asyncio.run(run_to_completion(succeed())) == 7
    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_to_completion(fail()))


def test_a_cancelled_caller_does_not_stop_the_work() -> None:
    async def scenario() -> None:
        may_end, has_ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            await may_end.wait()
            has_ended.set()

        caller = asyncio.create_task(run_to_completion(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        may_end.set()
        await asyncio.wait_for(has_ended.wait(), 10)

    asyncio.run(scenario())
