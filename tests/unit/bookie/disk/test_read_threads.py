"""The threads that read for a bookie: how many there are, what they tell the event loop, and how they end."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.bookie.disk.read_threads import ReadThreads
from heliograph.actors.bookie.server import reads as reads_module
from heliograph.actors.bookie.server.reads import EntryReads
from heliograph.actors.errors import BookieStorageError, BookieUnavailableError
from tests.waits import until

DEADLINE_SECONDS = 60.0


@pytest.fixture
def threads() -> Iterator[ReadThreads]:
    made = ReadThreads(2)
    yield made
    made.shutdown()


async def test_results_and_errors_reach_the_caller(threads: ReadThreads) -> None:
    def fail() -> None:
        raise BookieStorageError("the disk is gone")

    assert await threads.begin(threading.get_ident) != threading.get_ident(), "it ran on another thread"
    with pytest.raises(BookieStorageError, match="the disk is gone"):
        await threads.begin(fail)
    assert threads.running == 0


async def test_reads_one_after_the_other_share_a_thread(threads: ReadThreads) -> None:
    assert len({await threads.begin(threading.get_ident) for _ in range(100)}) == 1


async def test_no_more_threads_start_than_there_may_be(threads: ReadThreads) -> None:
    both_run = threading.Barrier(2)

    def meet() -> int:
        both_run.wait(DEADLINE_SECONDS)  # only two threads pass it
        return threading.get_ident()

    assert len(set(await asyncio.gather(*[threads.begin(meet) for _ in range(8)]))) == 2


async def test_a_thread_that_cannot_be_started_is_started_later(
    threads: ReadThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user or a container may have few threads left for a time."""
    start, may_end = threading.Thread.start, threading.Event()

    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    with pytest.raises(BookieUnavailableError, match="no thread"):
        threads.begin(threading.get_ident)
    monkeypatch.setattr(threading.Thread, "start", start)
    first = threads.begin(partial(may_end.wait, DEADLINE_SECONDS))
    monkeypatch.setattr(threading.Thread, "start", fail)
    second = threads.begin(threading.get_ident)
    may_end.set()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await first
        assert await second
    assert threads.running == 0


async def test_a_cancelled_read_runs_to_its_end_unless_it_has_not_begun(threads: ReadThreads) -> None:
    begun, may_end, called = threading.Barrier(3), threading.Event(), list[int]()

    def read(number: int) -> None:
        begun.wait(DEADLINE_SECONDS)
        may_end.wait(DEADLINE_SECONDS)
        called.append(number)

    futures = [threads.begin(partial(read, number)) for number in range(2)]
    futures.append(threads.begin(partial(called.append, 2)))
    await asyncio.to_thread(begun.wait, DEADLINE_SECONDS)
    for future in futures:
        future.cancel()
    may_end.set()
    assert await threads.begin(lambda: 5) == 5
    await until(lambda: not threads.running)
    assert sorted(called) == [0, 1]


async def test_cancelled_reads_count_until_the_disk_has_answered(
    threads: ReadThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that asks, leaves and comes again must not fill the memory while a disk stands still."""
    monkeypatch.setattr(reads_module, "DISK_READS_MAX", 3)
    config = SimpleNamespace(read_threads=2, read_ahead_bytes=0)
    storage: Any = SimpleNamespace(config=config, disk_reads=0, read_batch_disk=None)
    reads, may_end = EntryReads(storage, threads), threading.Event()
    asking = [asyncio.create_task(reads._on_thread(may_end.wait, DEADLINE_SECONDS)) for _ in range(3)]
    await until(lambda: threads.running == 3)
    for task in asking:
        task.cancel()
    await asyncio.gather(*asking, return_exceptions=True)
    with pytest.raises(BookieUnavailableError, match="already waiting"):
        await reads._on_thread(may_end.is_set)
    may_end.set()
    await until(lambda: not threads.running)
    assert await reads._on_thread(may_end.is_set)


async def test_a_waiting_thread_holds_nothing_of_its_last_read(threads: ReadThreads) -> None:
    class Buffer:
        pass

    buffer = Buffer()
    seen = weakref.ref(buffer)
    await threads.begin(lambda buffer=buffer: None)  # type: ignore[misc]
    del buffer
    await threads.begin(lambda: None)  # the thread has let the first one go before it takes the second
    gc.collect()
    assert seen() is None


async def test_what_was_begun_is_done_before_the_threads_end() -> None:
    threads, done = ReadThreads(1), []
    for number in range(5):
        threads.begin(lambda number=number: done.append(number))  # type: ignore[misc]
    threads.shutdown()
    assert done == [0, 1, 2, 3, 4]
    with pytest.raises(BookieUnavailableError):
        threads.begin(lambda: None)
    threads.shutdown()
