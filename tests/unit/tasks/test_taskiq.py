"""The broker of taskiq, with taskiq's own receiver as its worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from taskiq import TaskiqDepends, TaskiqResult
from taskiq.depends.progress_tracker import ProgressTracker, TaskProgress, TaskState
from taskiq.exceptions import ResultGetError
from taskiq.receiver import Receiver

import heliograph
from heliograph import taskiq
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.errors import BadRequestError, ServiceNotReadyError
from heliograph.taskiq import HeliographBroker

SECONDS = 60.0


@pytest.fixture
async def broker(cluster: heliograph.LocalCluster, queue: str) -> AsyncIterator[HeliographBroker]:
    """Return a broker of the test's queue."""
    broker = HeliographBroker(queue, cluster.service_url, priorities=2)
    await broker.startup()
    yield broker
    await broker.shutdown()


@contextlib.asynccontextmanager
async def worker(broker: HeliographBroker) -> AsyncIterator[None]:
    """Run taskiq's own receiver within the block."""
    finish = asyncio.Event()
    with ThreadPoolExecutor(2) as threads:
        receiver = Receiver(broker, threads, max_async_tasks=4, max_prefetch=0)
        working = asyncio.ensure_future(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await working


async def test_a_task_has_the_result_of_its_function(broker: HeliographBroker) -> None:
    @broker.task
    async def shout(word: str, times: int = 1) -> str:
        return word.upper() * times

    @broker.task
    def large(size: int) -> bytes:
        return b"x" * size

    first = await shout.kiq("a", times=2)
    assert not await first.is_ready()
    with pytest.raises(ResultGetError):
        await broker.result_backend.get_result(first.task_id)
    async with worker(broker):
        assert (await first.wait_result(timeout=SECONDS)).return_value == "AA"
        second = await large.kiq(10_000)
        assert (await second.wait_result(timeout=SECONDS)).return_value == b"x" * 10_000
        urgent = await shout.kicker().with_labels(priority=1, key="k", delay=0.01).kiq("b")
        assert (await urgent.wait_result(timeout=SECONDS)).return_value == "B"
    with pytest.raises(Exception, match="Cannot send task") as refused:
        await shout.kicker().with_labels(priority=2).kiq("c")
    assert isinstance(refused.value.__cause__, BadRequestError)


async def test_a_task_that_failed_has_its_error(broker: HeliographBroker) -> None:
    @broker.task
    async def broken() -> None:
        raise ValueError("no")

    async with worker(broker):
        result = await (await broken.kiq()).wait_result(timeout=SECONDS)
    assert result.is_err
    assert repr(result.error) == repr(ValueError("no"))


async def test_progress_is_seen(broker: HeliographBroker) -> None:
    told, go = asyncio.Event(), asyncio.Event()

    @broker.task
    async def train(progress: ProgressTracker[int] = TaskiqDepends()) -> str:  # noqa: B008
        await progress.set_progress(TaskState.STARTED, 7)
        told.set()
        await go.wait()
        with pytest.raises(BadRequestError):
            await broker.result_backend.set_progress("any", TaskProgress(state="STARTED", meta="x" * 1_000))
        return "done"

    async with worker(broker):
        task = await train.kiq()
        assert await task.get_progress() is None
        await told.wait()
        progress = await task.get_progress()
        assert progress is not None
        assert (progress.state, progress.meta) == ("STARTED", 7)
        go.set()
        assert (await task.wait_result(timeout=SECONDS)).return_value == "done"


async def test_a_task_that_was_not_acknowledged_comes_again(
    broker: HeliographBroker, cluster: heliograph.LocalCluster, queue: str
) -> None:
    @broker.task(task_name="late")
    async def late() -> int:
        return 1

    task = await late.kiq()
    lost = HeliographBroker(queue, cluster.service_url)
    taking = lost.listen()
    assert (await anext(taking)).data
    await taking.aclose()
    await lost.shutdown()
    async with worker(broker):
        assert (await task.wait_result(timeout=SECONDS)).return_value == 1


async def test_a_task_with_a_result_is_not_run_again(
    broker: HeliographBroker, cluster: heliograph.LocalCluster, queue: str
) -> None:
    """Its worker was killed between the result and the acknowledgement."""
    ran: list[str] = []

    @broker.task(task_name="noted")
    async def noted(word: str) -> None:
        ran.append(word)

    task = await noted.kiq("first")
    lost = HeliographBroker(queue, cluster.service_url)
    taking = lost.listen()
    assert (await anext(taking)).data
    stored: TaskiqResult[Any] = TaskiqResult(is_err=False, return_value=1, execution_time=0.0)
    await lost.result_backend.set_result(task.task_id, stored)
    await taking.aclose()
    await lost.shutdown()
    async with worker(broker):
        await (await noted.kiq("second")).wait_result(timeout=SECONDS)
    assert ran == ["second"]
    assert (await task.wait_result(timeout=SECONDS)).return_value == 1


async def test_a_queue_that_cannot_be_read_for_a_while_is_read_again(
    broker: HeliographBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [ServiceNotReadyError("not now")]
    receive = AsyncConsumer.receive

    async def unready(consumer: AsyncConsumer[bytes], *arguments: float) -> Message:
        if failures:
            raise failures.pop()
        return await receive(consumer, *arguments)

    monkeypatch.setattr(AsyncConsumer, "receive", unready)
    monkeypatch.setattr("heliograph.taskiq.RESTART_SECONDS", 0.01)

    @broker.task
    async def one() -> int:
        return 1

    async with worker(broker):
        assert (await (await one.kiq()).wait_result(timeout=SECONDS)).return_value == 1
    assert not failures


async def test_a_task_whose_state_cannot_be_read_for_a_while_comes_again(
    broker: HeliographBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was delivered before, so its state is asked for, and no broker answers."""
    failures = [ServiceNotReadyError("not now")]
    has_ended = taskiq._has_ended

    async def unready(*arguments: Any) -> bool:
        if failures:
            raise failures.pop()
        return await has_ended(*arguments)

    monkeypatch.setattr(taskiq, "_has_ended", unready)
    monkeypatch.setattr(taskiq, "RESTART_SECONDS", 0.01)

    @broker.task
    async def one() -> int:
        return 1

    async with worker(broker):
        assert (await (await one.kiq()).wait_result(timeout=SECONDS)).return_value == 1
    assert not failures
