"""Workers and loads: ``python -m tools.laboratory.beside.task_programs QUEUE worker|load ADDRESS [COUNT]``.

The module runs in the environment of the queue that it measures, so it imports nothing of the others. A task adds one
to a number. A load prints a line of JSON: tasks a second of ``COUNT`` that are submitted together, and the
milliseconds from the call to the result of tasks that are submitted one by one.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

SLOTS = 8  # tasks that a worker runs at a time
WINDOW = 100  # tasks that a load submits at a time
ALONE = 200  # tasks that are submitted one by one
WARM_UP = 50
SECONDS = 300.0  # for any result


def celery_app(url: str) -> Any:
    """Return the application of Celery; a task is acknowledged after its result is stored."""
    from celery import Celery

    app = Celery("load", broker=url, backend=url)
    app.conf.update(task_acks_late=True, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)

    def plus_one(number: int) -> int:
        return number + 1

    app.task(name="add")(plus_one)
    return app


def celery(role: str, url: str, count: int) -> None:
    app = celery_app(url)
    if role == "worker":
        app.worker_main(
            ["worker", "-P", "threads", "-c", str(SLOTS), "-l", "ERROR", "--without-gossip", "--without-mingle"]
        )
        return
    add = app.tasks["add"]

    def together(tasks: int) -> None:
        for each in [add.delay(number) for number in range(tasks)]:
            each.get(timeout=SECONDS, interval=0.001)

    def one() -> None:
        add.delay(1).get(timeout=SECONDS, interval=0.001)

    one()
    together(WARM_UP)
    begun = time.perf_counter()
    together(count)
    rate = count / (time.perf_counter() - begun)
    waits = []
    for _ in range(ALONE):
        begun = time.perf_counter()
        one()
        waits.append((time.perf_counter() - begun) * 1000)
    _say(rate, waits)


async def _load(submit: Callable[[int], Awaitable[Callable[[], Awaitable[Any]]]], count: int) -> None:
    """Run a load whose ``submit`` returns what waits for the result."""

    async def together(tasks: int) -> None:
        gate = asyncio.Semaphore(WINDOW)

        async def begin(number: int) -> Callable[[], Awaitable[Any]]:
            async with gate:
                return await submit(number)

        waits = await asyncio.gather(*(begin(number) for number in range(tasks)))
        for wait in waits:
            await wait()

    await together(WARM_UP)
    begun = time.perf_counter()
    await together(count)
    rate = count / (time.perf_counter() - begun)
    waits = []
    for _ in range(ALONE):
        begun = time.perf_counter()
        await (await submit(1))()
        waits.append((time.perf_counter() - begun) * 1000)
    _say(rate, waits)


def taskiq(role: str, url: str, count: int) -> None:
    from taskiq.receiver import Receiver
    from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

    broker = RedisStreamBroker(url).with_result_backend(RedisAsyncResultBackend(url))

    async def plus_one(number: int) -> int:
        return number + 1

    add = broker.register_task(plus_one, task_name="add")

    async def submit(number: int) -> Callable[[], Awaitable[Any]]:
        task = await add.kiq(number)
        return lambda: task.wait_result(check_interval=0.001, timeout=SECONDS)

    async def run() -> None:
        broker.is_worker_process = role == "worker"
        await broker.startup()
        if role == "worker":
            await Receiver(broker, max_async_tasks=SLOTS, run_startup=False).listen(asyncio.Event())
        else:
            await _load(submit, count)
            await broker.shutdown()

    asyncio.run(run())


def heliograph(role: str, url: str, count: int) -> None:
    from heliograph import connect, task

    with connect(url) as client:

        async def plus_one(number: int) -> int:
            return number + 1

        add: Any = task(queue="add", name="add", client=client, concurrency=SLOTS, encoding="json")(plus_one)

        async def submit(number: int) -> Callable[[], Awaitable[Any]]:
            job = await add.submit(number)
            return lambda: job.result(timeout=SECONDS)

        asyncio.run(add.work() if role == "worker" else _load(submit, count))


def _say(rate: float, waits: list[float]) -> None:
    waits.sort()
    print(json.dumps({"rate": rate, "p50_ms": waits[len(waits) // 2], "p99_ms": waits[len(waits) * 99 // 100]}))


if __name__ == "__main__":
    name, role, address, *rest = sys.argv[1:]
    {"celery": celery, "taskiq": taskiq, "heliograph": heliograph}[name](role, address, int(rest[0]) if rest else 0)
