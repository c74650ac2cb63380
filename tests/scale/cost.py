"""What one run of a job costs, in units that another machine can repeat and in processor time."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from heliograph.metadata.backends.embedded.server.service import Service

RUNS_COUNTED = 5


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one run.

    Attributes:
        cpu_ms: processor time of the process that has all parts.
        step_ms: the longest step of the event loop, in processor time.
        calls: requests to the metadata store.
        store_bytes: answers of the metadata store.
        steps: calls of Python functions on the event loop; only where they are counted, which takes long.
        more: values of a row that has others, by unit.
    """

    cpu_ms: float = 0.0
    step_ms: float = 0.0
    calls: int = 0
    store_bytes: int = 0
    steps: int = 0
    more: dict[str, float] = field(default_factory=dict)


class StoreCounter:
    """Counts the requests to an embedded store in this process, and the bytes of its answers."""

    def __init__(self, service: Service) -> None:
        self.calls = self.sent_bytes = 0
        handle, send = service.handle, service.committer.send

        def counted_handle(connection: Any, frame: list[Any]) -> None:
            self.calls += 1
            handle(connection, frame)

        def counted_send(sink: Any, zxid: int, frame: bytes) -> None:
            self.sent_bytes += len(frame)
            send(sink, zxid, frame)

        service.handle = counted_handle  # type: ignore[method-assign]
        service.committer.send = counted_send  # type: ignore[method-assign]


async def cost_of(job: Callable[[], Awaitable[object]], counter: StoreCounter, *, counts_steps: bool) -> Cost:
    """Run a job on the running loop: once for its cost, and once for its longest step.

    Args:
        job: may run any number of times, each at the same cost.
        counts_steps: count calls of functions instead of measuring the longest step, in the cheapest of some runs, so
            that periodic work of others does not count.
    """
    gc.collect()
    gc.disable()  # its pauses are a row of their own
    try:
        if counts_steps:
            runs = [await _run(job, counter, counts_steps=True) for _ in range(RUNS_COUNTED)]
            return Cost(
                0.0, 0.0, min(run.calls for run in runs), min(run.store_bytes for run in runs),
                min(run.steps for run in runs),
            )  # fmt: skip
        found = await _run(job, counter, counts_steps=False)
        return replace(found, step_ms=await _longest_step_of(job) * 1e3)
    finally:
        gc.enable()


async def _run(job: Callable[[], Awaitable[object]], counter: StoreCounter, *, counts_steps: bool) -> Cost:
    calls, sent, began = counter.calls, counter.sent_bytes, time.process_time()
    steps = await _steps_of(job) if counts_steps else 0
    if not counts_steps:
        await job()
    cpu = time.process_time() - began
    return Cost(cpu * 1e3, 0.0, counter.calls - calls, counter.sent_bytes - sent, steps)


async def _longest_step_of(job: Callable[[], Awaitable[object]]) -> float:
    """Return the processor seconds of the longest step. A watcher between all steps makes the loop spin meanwhile."""
    longest = 0.0
    is_over = False

    async def watch() -> None:
        nonlocal longest
        while not is_over:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    watching = asyncio.get_running_loop().create_task(watch())
    await asyncio.sleep(0)
    try:
        await job()
    finally:
        is_over = True
        await watching
    return longest


async def _steps_of(job: Callable[[], Awaitable[object]]) -> int:
    """Return how many functions were called on this thread: a measure of work that no clock disturbs."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    assert threading.current_thread() is not threading.main_thread(), "a debugger or coverage may have the main thread"
    sys.setprofile(count)
    try:
        await job()
    finally:
        sys.setprofile(None)
    return steps
