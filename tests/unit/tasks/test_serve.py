"""Ray Serve's adapter: what a deployment calls of it, without Serve."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult

import heliograph
from heliograph.errors import BadRequestError, InvalidConfigError
from heliograph.serve import AdapterConfig, BacklogAutoscalingPolicy, TaskProcessor
from tests.waits import block_until

SECONDS = 60.0
Processors = Callable[..., TaskProcessor]


@pytest.fixture
def processors(cluster: heliograph.LocalCluster, queue: str) -> Iterator[Processors]:
    """Return what makes a processor of the test's queue; the end of the test stops it."""
    made: list[TaskProcessor] = []

    def make(
        adapter: dict[str, Any] | None = None,
        name: str = queue,
        concurrency: int = 4,
        priorities: int = 1,
        **config: Any,
    ) -> TaskProcessor:
        options = {"backoff": (0.01, 0.05), "priorities": priorities}
        own = AdapterConfig(address=cluster.service_url, options=options, **adapter or {})
        given = TaskProcessorConfig(
            queue_name=name, adapter="heliograph.serve:TaskProcessor", adapter_config=own, **config
        )
        processor = TaskProcessor(given)
        processor.initialize(concurrency)
        made.append(processor)
        return processor

    yield make
    for each in made:
        each.stop_consumer()
        each.stop_consumer()


def ended(processor: TaskProcessor, id: str) -> TaskResult:
    deadline = time.monotonic() + SECONDS
    while (found := processor.get_task_status_sync(id)).status not in ("SUCCESS", "FAILURE", "REVOKED"):
        assert time.monotonic() < deadline, f"{id} is {found.status}"
        time.sleep(0.02)
    return found


def test_tasks_run_by_sync_and_async_handlers(processors: Processors) -> None:
    client, replica = processors(), processors()
    assert isinstance(replica, TaskProcessorAdapter)

    async def shout(word: str, *, times: int = 1) -> str:
        return word.upper() * times

    replica.register_task_handle(lambda id, key: [id, key], "pair")  # names that are options elsewhere
    replica.register_task_handle(shout)
    replica.start_consumer()
    first = client.enqueue_task_sync("shout", ["a"], {"times": 2}, id="one")
    assert (first.id, first.status, first.result) == ("one", "PENDING", None)
    again = client.enqueue_task_sync("shout", ["b"], id="one")  # the same id is the same task
    second = client.enqueue_task_sync("pair", kwargs={"id": 1, "key": 2})
    assert ended(client, first.id).result == "AA"
    assert ended(client, again.id).result == "AA"
    assert ended(client, second.id).result == [1, 2]
    assert client.get_task_status_sync("never").status == "PENDING"
    assert client.get_metrics_sync()["consumers"] == 1
    assert [list(each.values()) for each in client.health_check_sync()] == [[{"ok": "pong"}]]


async def test_the_async_calls_and_the_loop_of_the_replica(processors: Processors) -> None:
    client, replica = processors(), processors()
    loops: list[Any] = []
    began = asyncio.Event()

    async def where() -> None:
        loops.append(asyncio.get_running_loop())
        began.set()

    replica.register_task_handle(where)
    replica.start_consumer()
    result = await client.enqueue_task_async("where")
    async with asyncio.timeout(SECONDS):
        await began.wait()
    await asyncio.to_thread(ended, client, result.id)
    assert loops == [asyncio.get_running_loop()]
    assert (await client.get_metrics_async())["backlog"] == 0
    assert len(await client.health_check_async()) == 1
    await asyncio.to_thread(replica.stop_consumer)


def test_a_failed_task_comes_to_the_queue_for_failures(processors: Processors, queue: str) -> None:
    calls: list[list[Any]] = []
    replica = processors(max_retries=2, failed_task_queue_name=f"{queue}-failed")
    morgue = processors(name=f"{queue}-failed")

    def broken(number: int) -> None:
        calls.append([number])
        raise ValueError("no")

    buried: list[tuple[Any, ...]] = []
    morgue.register_task_handle(lambda *args: buried.append(args), "broken")
    replica.register_task_handle(broken)
    replica.start_consumer()
    morgue.start_consumer()
    result = replica.enqueue_task_sync("broken", [7], id="bad")
    found = ended(replica, result.id)
    assert (found.status, found.result, calls) == ("FAILURE", "ValueError: no", [[7]] * 3)
    assert ended(morgue, "bad").status == "SUCCESS"
    ((id, why, args, kwargs, traceback),) = buried
    assert (id, why, args, kwargs) == ("bad", "ValueError: no", "[7]", "{}")
    assert "in broken" in traceback


def test_a_task_without_a_handler_is_unprocessable(processors: Processors, queue: str) -> None:
    replica = processors(unprocessable_task_queue_name=f"{queue}-lost", failed_task_queue_name=f"{queue}-failed")
    lost = processors(name=f"{queue}-lost")
    told: list[tuple[Any, ...]] = []
    lost.register_task_handle(lambda *args: told.append(args), "unknown")
    replica.register_task_handle(lambda: None, "known")
    replica.start_consumer()
    lost.start_consumer()
    replica.enqueue_task_sync("unknown", id="x")
    assert ended(lost, "x").status == "SUCCESS"
    assert told[0][:2] == ("unknown", "x")
    assert "no worker of this queue knows the task" in told[0][3]


def test_a_task_that_waits_is_cancelled(processors: Processors) -> None:
    replica = processors()
    ran: list[int] = []
    replica.register_task_handle(lambda: ran.append(1), "late")
    result = replica.enqueue_task_sync("late")
    replica.cancel_task_sync(result.id)
    replica.start_consumer()
    assert ended(replica, result.id).status == "REVOKED"
    assert ended(replica, replica.enqueue_task_sync("late").id).status == "SUCCESS"
    assert ran == [1]


def test_bad_configurations_and_options_are_refused(processors: Processors, queue: str) -> None:
    for given in ({"brokers": "redis://"}, {"encoding": "yaml"}, 7):
        with pytest.raises(InvalidConfigError):
            TaskProcessor(TaskProcessorConfig(queue_name=queue, adapter_config=given))
    processor = processors()
    for options in ({"countdown": 3}, {"id": ""}, {"priority": 9}):
        with pytest.raises(BadRequestError) as refused:
            processor.enqueue_task_sync("any", **options)
        assert refused.value.field == next(iter(options))
    with pytest.raises(InvalidConfigError):
        BacklogAutoscalingPolicy(queue, poll_interval_s=0)


def test_a_deployment_of_no_replicas_is_woken_by_the_backlog(
    processors: Processors, cluster: heliograph.LocalCluster, queue: str
) -> None:
    policy = BacklogAutoscalingPolicy(queue, address=cluster.service_url, poll_interval_s=0.01, priorities=2)
    context = cast(
        Any, SimpleNamespace(total_num_requests=0, config=SimpleNamespace(get_target_ongoing_requests=lambda: 4))
    )

    def wanted(replicas: int) -> None:
        block_until(lambda: policy(context)[0] == replicas)

    assert policy(context) == (0, {"backlog": 0})
    processor = processors(concurrency=4, priorities=2)
    for number in range(9):
        processor.enqueue_task_sync("work", [number], priority=number % 2)
    wanted(3)
    assert processor.get_metrics_sync()["backlog"] == 9
    processor.register_task_handle(lambda number: number, "work")
    processor.start_consumer()
    wanted(0)
