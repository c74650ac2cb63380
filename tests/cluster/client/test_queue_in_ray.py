"""``heliograph.queue`` in Ray, beside ``ray.util.queue``: the same program with either of them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.queue import Empty, Full
from ray.util.queue import Queue as RaysQueue

import heliograph
from heliograph.base.errors import BadRequestError
from heliograph.queue import Queue

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]
KINDS = ("ours", "rays")


@pytest.fixture(scope="module")
def makers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Callable[..., Any]]]:
    """Return what makes a queue of either kind, in a Ray and a cluster of the module's own."""
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    directory = Path(tmp_path_factory.mktemp("queue"))
    with heliograph.local(directory) as cluster, cluster.connect() as client:
        yield {"ours": lambda *size: Queue(*size, client=client), "rays": RaysQueue}
    ray.shutdown()


@ray.remote(num_cpus=0)
def put(queue: Any, items: list[int]) -> None:
    for item in items:
        queue.put(item)


@ray.remote(num_cpus=0)
def take(queue: Any, count: int) -> list[int]:
    return [queue.get(timeout=60) for _ in range(count)]


@ray.remote(num_cpus=0, max_retries=0)
def hold(queue: Any, noted: str) -> None:
    with queue.lease():
        Path(noted).write_text(str(os.getpid()))
        threading.Event().wait()


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_share_a_queue(makers: dict[str, Callable[..., Any]], kind: str) -> None:
    queue = makers[kind]()
    getting = [take.remote(queue, 20) for _ in range(2)]
    putting = [put.remote(queue, [10 * number + each for each in range(10)]) for number in range(4)]
    ray.get(putting)
    assert sorted(item for items in ray.get(getting) for item in items) == list(range(40))
    assert queue.empty()
    queue.shutdown()


@pytest.mark.parametrize("kind", KINDS)
def test_a_program_catches_the_errors_of_ray(makers: dict[str, Callable[..., Any]], kind: str) -> None:
    queue = makers[kind](1)
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(timeout=0.1)
    queue.put(lambda: 7)  # a function of the driver, by value
    with pytest.raises(Full):
        queue.put_nowait(1)
    with pytest.raises(Full):
        queue.put_nowait_batch([1])
    assert queue.get()() == 7
    queue.shutdown()


def test_a_reference_is_no_item(makers: dict[str, Callable[..., Any]]) -> None:
    queue = makers["ours"]()
    with pytest.raises(BadRequestError, match="reference to an object in Ray"):
        queue.put({"deep": [ray.put(1)]})
    queue.shutdown()


def test_a_killed_worker_gives_its_lease_back(makers: dict[str, Callable[..., Any]], tmp_path: Path) -> None:
    queue = makers["ours"]()
    queue.put("item")
    noted = tmp_path / "pid"
    holding = hold.remote(queue, str(noted))
    while not noted.exists() or not noted.read_text():
        ray.wait([holding], timeout=0.05)
    os.kill(int(noted.read_text()), signal.SIGKILL)
    assert queue.get(timeout=60) == "item"
    queue.shutdown()
