"""The calls of ``ray.util.queue.Queue`` on a topic, and what only a durable queue does."""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import multiprocessing
import pickle
import queue as standard
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    InvalidConfigError,
    ProtocolError,
    RunningLoopError,
    TopicNotFoundError,
)
from heliograph.client.sync.handle import threads
from heliograph.queue import Empty, Full, Queue


@pytest.fixture
def make(client: heliograph.Client) -> Iterator[Callable[..., Queue]]:
    """Return what makes queues that are shut down after the test."""
    made: list[Queue] = []

    def make(maxsize: int = 0, **options: Any) -> Queue:
        made.append(Queue(maxsize, client=client, **options))
        return made[-1]

    yield make
    for each in made:
        each.shutdown()


def test_items_come_in_the_order_of_their_puts(make: Callable[..., Queue]) -> None:
    queue = make()
    items = [0, "text", None, {"a": [1.5]}, b"", ValueError]
    for item in items:
        queue.put(item)
    assert [queue.get() for _ in items] == items


def test_the_size_counts_what_waits(make: Callable[..., Queue]) -> None:
    queue = make()
    assert (queue.size(), queue.qsize(), len(queue), queue.empty(), queue.full()) == (0, 0, 0, True, False)
    for number in range(1, 6):
        queue.put(number)
        assert queue.qsize() == number
    for number in range(4, -1, -1):
        queue.get()
        assert queue.qsize() == number


def test_an_empty_queue(make: Callable[..., Queue]) -> None:
    queue = make()
    with pytest.raises(Empty):
        queue.get_nowait()
    with pytest.raises(Empty):
        queue.get(block=False)
    with pytest.raises(standard.Empty):
        queue.get(timeout=0.05)
    with pytest.raises(Empty), queue.lease(block=False):
        pass
    with pytest.raises(ValueError, match="non-negative"):
        queue.get(timeout=-1)
    queue.put(7)
    assert queue.get(timeout=60) == 7


def test_a_full_queue(make: Callable[..., Queue]) -> None:
    queue = make(1)
    queue.put_nowait("first")
    assert queue.full()
    with pytest.raises(Full):
        queue.put_nowait("second")
    with pytest.raises(standard.Full):
        queue.put("second", timeout=0.05)
    with pytest.raises(ValueError, match="non-negative"):
        queue.put("second", timeout=-1)
    putting = threading.Thread(target=queue.put, args=("second",))
    putting.start()
    assert queue.get() == "first"
    putting.join()
    assert queue.get() == "second"


def test_batches_are_all_or_nothing(make: Callable[..., Queue]) -> None:
    queue = make(5)
    queue.put_nowait_batch(iter([1, 2, 3]))
    with pytest.raises(Full):
        queue.put_nowait_batch([4, 5, 6])
    assert queue.qsize() == 3
    with pytest.raises(Empty):
        queue.get_nowait_batch(4)
    assert queue.get_nowait_batch(2) == [1, 2]
    assert queue.get_nowait_batch(0) == []
    queue.put_nowait_batch([])
    assert queue.get() == 3
    with pytest.raises(TypeError):
        queue.put_nowait_batch(1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        queue.get_nowait_batch("1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nonnegative"):
        queue.get_nowait_batch(-1)


def test_many_putters_and_getters_share_a_queue(make: Callable[..., Queue]) -> None:
    queue = make()
    got: list[int] = []
    getters = [threading.Thread(target=lambda: got.extend(queue.get() for _ in range(20))) for _ in range(4)]
    putters = [threading.Thread(target=_put_each, args=(queue, range(20 * n, 20 * n + 20))) for n in range(4)]
    for thread in getters + putters:
        thread.start()
    for thread in getters + putters:
        thread.join()
    assert sorted(got) == list(range(80))
    assert queue.empty()


def _put_each(queue: Queue, items: range) -> None:
    for item in items:
        queue.put(item)


def test_the_async_forms(make: Callable[..., Queue]) -> None:
    queue = make(2)

    async def use() -> list[Any]:
        await queue.put_async(1)
        await queue.put_async(2, timeout=60)
        with pytest.raises(Full):
            await queue.put_async(3, block=False)
        putting = asyncio.ensure_future(queue.put_async(3))
        got = [await queue.get_async(), await queue.get_async(timeout=60)]
        await putting
        async with queue.lease_async() as item:
            got.append(item)
        with pytest.raises(Empty):
            await queue.get_async(block=False)
        with pytest.raises(Empty):
            await queue.get_async(timeout=0.05)
        with pytest.raises(RunningLoopError, match="_async"):
            queue.get()
        return got

    assert asyncio.run(use()) == [1, 2, 3]


def test_a_get_that_is_cancelled_takes_no_item(make: Callable[..., Queue]) -> None:
    queue = make()

    async def use() -> Any:
        waiting = asyncio.ensure_future(queue.get_async())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await queue.put_async("kept")
        return await queue.get_async(timeout=60)

    assert asyncio.run(use()) == "kept"


def test_a_lease_that_fails_gives_the_item_back(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.put("item")

    def fail() -> None:
        with queue.lease() as item:
            assert (item, queue.qsize()) == ("item", 0)
            raise KeyError(item)

    with pytest.raises(KeyError):
        fail()
    with queue.lease(timeout=60) as item:
        assert item == "item"
    assert queue.empty()


def test_a_lease_whose_taker_is_cancelled_as_the_item_comes_gives_it_back(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.put("item")

    def wait_until_taken() -> None:
        while queue.qsize():
            threading.Event().wait(0.01)
        threads.current().run(asyncio.sleep(0.05))  # the taker's call has ended on the loop thread

    async def use() -> Any:
        lease = queue.lease_async()
        taking = asyncio.ensure_future(lease.__aenter__())
        await asyncio.sleep(0)
        other = threading.Thread(target=wait_until_taken)
        other.start()
        other.join()  # so that this event loop does not hear of the item
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        return await queue.get_async(timeout=60)

    assert asyncio.run(use()) == "item"


def test_threads_that_use_a_queue_first_at_one_moment_share_its_handles(
    client: heliograph.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = threading.Barrier(2)

    def connected() -> heliograph.Client:
        both.wait(60)
        return client

    monkeypatch.setattr("heliograph.client.access.own_client", connected)
    queue = Queue()
    made: list[object] = []
    users = [threading.Thread(target=lambda: made.append(queue._handles())) for _ in range(2)]
    for each in users:
        each.start()
    for each in users:
        each.join()
    assert made[0] is made[1]


def _hold(queue: Queue, begun: Any) -> None:
    with queue.lease():
        begun.set()
        threading.Event().wait()


def test_a_lease_ends_with_its_process(make: Callable[..., Queue]) -> None:
    queue = make()
    queue.put("item")
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    process = spawn.Process(target=_hold, args=(queue, begun))
    process.start()
    assert begun.wait(60)
    assert queue.empty()
    process.kill()
    process.join()
    assert queue.get(timeout=30) == "item"


def test_a_named_queue_outlives_everything(tmp_path: Path) -> None:
    with heliograph.local(tmp_path) as cluster, cluster.connect() as client:
        queue = Queue(name="work", client=client)
        queue.put_nowait_batch([1, 2, 3])
        assert queue.get() == 1
        queue.shutdown()
        with pytest.raises(AlreadyClosedError):
            queue.get()
        queue.shutdown()
    with heliograph.local(tmp_path) as cluster, cluster.connect() as client:
        queue = Queue(name="work", client=client)
        assert queue.get_nowait_batch(2) == [2, 3]


def test_shutdown_deletes_the_topic_of_a_queue_without_a_name(client: heliograph.Client) -> None:
    queue = Queue(client=client)
    queue.put(1)
    copy = pickle.loads(pickle.dumps(queue))
    assert copy.topic == queue.topic
    assert copy.get() == 1
    copy.shutdown(force=True)
    queue.shutdown(grace_period_s=1)
    with pytest.raises(TopicNotFoundError):
        client.admin.topic_stats(queue.topic)


def test_what_is_refused(make: Callable[..., Queue], client: heliograph.Client) -> None:
    queue = make(actor_options={"num_cpus": 1})
    with pytest.raises(BadRequestError, match="does not pickle"):
        queue.put(threading.Lock())
    with pytest.raises(InvalidConfigError, match="maxsize"):
        Queue("many", client=client)  # type: ignore[arg-type]
    with client.producer(queue.topic) as producer:
        producer.send(b"no pickle")
    with pytest.raises(ProtocolError, match="unpickled"):
        queue.get()
    assert queue.empty()


def test_the_errors_are_those_of_ray_where_that_is_loaded(
    make: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = types.ModuleType("ray.util.queue")
    theirs.Empty = type("Empty", (standard.Empty,), {})  # type: ignore[attr-defined]
    theirs.Full = type("Full", (standard.Full,), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray.util.queue", theirs)
    queue = make(1)
    with pytest.raises(theirs.Empty) as empty:
        queue.get_nowait()
    assert isinstance(empty.value, Empty)
    queue.put(1)
    with pytest.raises(theirs.Full) as full:
        queue.put_nowait(uuid.uuid4())
    assert isinstance(full.value, Full)


def test_it_has_every_public_method_of_rays_queue_with_its_arguments() -> None:
    found = importlib.util.find_spec("ray")
    if found is None or found.origin is None:
        pytest.skip("Ray is not installed")
    tree = ast.parse((Path(found.origin).parent / "util" / "queue.py").read_text())
    theirs = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Queue")
    methods = [node for node in theirs.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert len(methods) > 10
    for method in methods:
        ours = getattr(Queue, method.name).__code__
        names = [each.arg for each in method.args.args]
        assert list(ours.co_varnames[: len(names)]) == names, method.name
