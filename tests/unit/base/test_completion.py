"""Work that runs to its end although its caller is cancelled, and tasks that are ended."""

from __future__ import annotations

import asyncio
import gc

import pytest

from heliograph.base.completion import Shared, all_ended, end_task, run_to_completion, shielded


def test_the_result_and_the_failure_reach_the_caller() -> None:
    async def succeed() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("no")

    assert asyncio.run(run_to_completion(succeed())) == 7
    with pytest.raises(ValueError, match="no"):
        asyncio.run(run_to_completion(fail()))


async def test_a_cancelled_caller_does_not_stop_the_work() -> None:
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
    await asyncio.wait_for(has_ended.wait(), 60)


async def test_a_task_is_cancelled_and_its_failure_is_told() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def fail() -> None:
        raise ValueError("no")

    await end_task(None)
    waiting = asyncio.create_task(forever())
    await end_task(waiting)
    assert waiting.cancelled()
    await end_task(waiting)
    failed = asyncio.create_task(fail())
    await asyncio.sleep(0)
    with pytest.raises(ValueError, match="no"):
        await end_task(failed)


async def test_a_caller_that_is_cancelled_while_it_ends_a_task_learns_it() -> None:
    may_end = asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()

    task = asyncio.create_task(slow_to_end())
    await asyncio.sleep(0)
    caller = asyncio.create_task(end_task(task))
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):  # suppressing the task's end must not swallow the caller's
        await caller
    may_end.set()
    await asyncio.wait([task])


async def test_a_failure_after_the_caller_was_cancelled_is_retrieved() -> None:
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))
    may_end = asyncio.Event()

    async def work() -> None:
        await may_end.wait()
        raise ValueError("no")

    for wait in (run_to_completion, shielded):
        may_end.clear()
        caller = asyncio.create_task(wait(work()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        may_end.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gc.collect()
    assert reported == []


async def test_an_error_of_some_work_is_raised_when_all_work_has_ended() -> None:
    ended = list[int]()

    async def work(number: int) -> int:
        if number in (1, 3):
            raise ValueError(str(number))
        for _ in range(3):
            await asyncio.sleep(0)
        ended.append(number)
        return number

    with pytest.raises(ValueError, match="1"):
        await all_ended(map(work, range(5)))
    assert ended == [0, 2, 4]
    assert await all_ended(map(work, (2, 0))) == [2, 0]
    assert await all_ended([]) == []


async def test_work_is_done_once_for_all_who_ask_meanwhile() -> None:
    shared, runs, may_end = Shared[str, int](), list[int](), asyncio.Event()

    async def work() -> int:
        runs.append(1)
        await may_end.wait()
        return len(runs)

    callers = [asyncio.create_task(shared.run("a", work)) for _ in range(3)]
    await asyncio.sleep(0)
    callers[0].cancel()  # the others still want it
    may_end.set()
    assert await asyncio.gather(*callers[1:]) == [1, 1]
    assert not shared.tasks
    assert await shared.run("a", work) == 2


async def test_shared_work_that_fails_fails_for_all() -> None:
    shared = Shared[str, None]()

    async def fail() -> None:
        raise ValueError("no")

    found = await asyncio.gather(*(shared.run("a", fail) for _ in range(2)), return_exceptions=True)
    assert [str(each) for each in found] == ["no", "no"]
