"""``heliograph.queue`` beside ``ray.util.queue``: processes that put items one by one, and as many that take them.

Ray's queue is one actor, which holds items in memory. Ours is a cluster in one process of Ray, with one bookie: an item
is synced to the disk before ``put`` returns, and its acknowledgement before ``get`` does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.util.queue import Queue as RaysQueue

import heliograph
from heliograph.queue import Queue
from tests.bench.bench import Bench
from tests.bench.figure import Aim, Limit

PAIRS = (1, 2, 4)
ITEMS = 600  # of each producer in a round
WARM_UP = 20
ROUNDS = 3
ITEM_BYTES = 100


@ray.remote(num_cpus=0)
class Host:
    """A cluster in a process of its own."""

    def __init__(self, directory: str) -> None:
        self._cluster = heliograph.local(directory)

    def address(self) -> str:
        return self._cluster.service_url


@ray.remote(num_cpus=0)
class Worker:
    """A process that puts or takes items."""

    def use(self, queue: Any) -> None:
        self._queue = queue

    def put(self, count: int) -> None:
        for _ in range(count):
            self._queue.put(b"x" * ITEM_BYTES)

    def get(self, count: int) -> None:
        for _ in range(count):
            self._queue.get()


def report(bench: Bench) -> None:
    """Measure the rows."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    try:
        host = Host.remote(str(bench.directory / "queue"))  # type: ignore[attr-defined]
        workers = [Worker.remote() for _ in range(2 * max(PAIRS))]  # type: ignore[attr-defined]
        with heliograph.connect(ray.get(host.address.remote())) as client:
            makers: dict[str, Callable[[], Any]] = {"ours": lambda: Queue(client=client), "ray": RaysQueue}
            for pairs in PAIRS:
                _compare(bench, workers[: 2 * pairs], makers)
    finally:
        ray.shutdown()


def _compare(bench: Bench, workers: list[Any], makers: dict[str, Callable[[], Any]]) -> None:
    count, pairs = bench.count(ITEMS), len(workers) // 2
    runs: dict[str, list[tuple[float, float]]] = {"ours": [], "ray": []}
    for _ in range(ROUNDS):
        for name, make in makers.items():  # in turns, so that both have the same noise
            runs[name].append(_rates(make(), workers, count))
    for place, what in enumerate(("puts", "puts and gets at once")):
        ours, theirs = (statistics.median(run[place] for run in runs[name]) for name in ("ours", "ray"))
        aim = Aim(1.0, at_most=False, of_ratio=True) if pairs > 1 else None
        processes = f"{pairs} process{'es' if pairs > 1 else ''}" if place == 0 else f"{pairs} and {pairs} processes"
        bench.add("queue", f"{what}, {processes}", ours, "items/s", Limit(theirs, "ray.util.queue"), aim=aim)


def _rates(queue: Any, workers: list[Any], count: int) -> tuple[float, float]:
    """Return the items a second of puts alone, and of puts while as many processes get them."""
    pairs = len(workers) // 2
    putters, getters = workers[:pairs], workers[pairs:]
    ray.get([each.use.remote(queue) for each in workers])
    ray.get([each.put.remote(WARM_UP) for each in workers])
    ray.get([each.get.remote(WARM_UP) for each in workers])
    begun = time.perf_counter()
    ray.get([each.put.remote(count) for each in putters])
    put = pairs * count / (time.perf_counter() - begun)
    ray.get([each.get.remote(count) for each in getters])
    begun = time.perf_counter()
    ray.get([each.get.remote(count) for each in getters] + [each.put.remote(count) for each in putters])
    both = pairs * count / (time.perf_counter() - begun)
    assert queue.empty(), "every item was taken"
    queue.shutdown()
    return put, both
