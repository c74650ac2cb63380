"""Batches that the event loop commits: the rule, and a journal that follows it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from typing_extensions import override

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.format import Kind
from heliograph.actors.bookie.journal.journal import Journal, JournalItem, JournalPorts
from heliograph.actors.bookie.journal.loop_commits import (
    LIGHT_BATCHES_LEAST,
    LOOP_BYTES_MAX,
    LOOP_RECORDS_MAX,
    LoopCommits,
)
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from tests.unit.bookie.disks import FaultyDisk
from tests.waits import until

ANY_SYNC = 3_600.0  # the bound of the sync in tests that no slow machine may decide
NEVER = 1 << 40
DEADLINE_SECONDS = 60


def measured(sync_seconds_max: float = ANY_SYNC) -> LoopCommits:
    rule = LoopCommits(sync_seconds_max)
    for _ in range(LIGHT_BATCHES_LEAST):
        rule.note(1, 4096, 0.0)
    return rule


class TestRule:
    def test_the_first_batches_measure_the_disk(self) -> None:
        rule = LoopCommits(0.005)
        for _ in range(LIGHT_BATCHES_LEAST):
            assert not rule.permits(1, 4096)
            rule.note(1, 4096, 0.001)
        assert rule.permits(1, 4096)

    def test_syncs_that_are_slow_on_average_return_the_journal_to_its_thread_at_once(self) -> None:
        rule = measured(0.005)
        for _ in range(40):
            rule.note(1, 4096, 0.0049)
        assert rule.permits(1, 4096)
        rule.note(1, 4096, 0.006)
        for _ in range(LIGHT_BATCHES_LEAST):
            assert not rule.permits(1, 4096)
            rule.note(1, 4096, 0.0)
        assert rule.permits(1, 4096)

    def test_one_slow_sync_among_short_ones_changes_nothing(self) -> None:
        rule = measured(0.005)
        for _ in range(20):
            rule.note(1, 4096, 0.030)
            assert rule.permits(1, 4096)
            for _ in range(20):
                rule.note(1, 4096, 0.0001)

    def test_one_stall_is_not_remembered_for_long(self) -> None:
        rule = measured(0.005)
        rule.note(1, 4096, 0.004)
        rule.note(1, 4096, 3_600.0)
        assert not rule.permits(1, 4096)
        for _ in range(2 * LIGHT_BATCHES_LEAST):
            rule.note(1, 4096, 0.0001)
        assert rule.permits(1, 4096)

    def test_a_busy_journal_stays_on_its_thread(self) -> None:
        for records, size in ((LOOP_RECORDS_MAX + 1, 4096), (1, LOOP_BYTES_MAX + 1)):
            rule = measured()
            assert not rule.permits(records, size)
            rule.note(records, size, 0.0)
            assert not rule.permits(1, 4096)

    def test_the_bound_0_is_always_the_thread(self) -> None:
        rule = LoopCommits(0)
        for _ in range(2 * LIGHT_BATCHES_LEAST):
            rule.note(1, 4096, 0.0001)
        assert not rule.permits(1, 4096)


@dataclass
class Told:
    """A waiter that notes what it was told, and on which thread."""

    tokens: list[Any] = field(default_factory=list)
    threads: set[str] = field(default_factory=set)

    def __hash__(self) -> int:
        return id(self)

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        assert error is None
        self.tokens += tokens
        self.threads.add(threading.current_thread().name)


@dataclass
class Bench:
    """A journal on an event loop."""

    journal: Journal
    failures: list[BaseException]

    def add(self, told: Told, token: int, size: int = 100) -> None:
        items: list[JournalItem] = [(Kind.ENTRY, bytes(size), told, token)]
        self.journal.append(items, size)


@asynccontextmanager
async def journal_of(
    home: Path,
    disk: RealDisk,
    rule: LoopCommits,
    *,
    may_wait: Callable[[], bool] = lambda: True,
    file_bytes: int = 1 << 20,
    seal_seconds: float = 3_600.0,
) -> AsyncIterator[Bench]:
    """A started journal whose first batch is durable, and not counted among those of the loop."""
    loop = asyncio.get_running_loop()
    failures: list[BaseException] = []

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    ports = JournalPorts(post, failures.append, loop.call_soon)
    files = JournalFiles(disk, home, file_bytes, 1)
    journal = Journal(files, file_bytes, 1, seal_seconds, rule, may_wait, ports)
    journal.start()
    bench = Bench(journal, failures)
    try:
        first = Told()
        bench.add(first, 0)
        await until(lambda: bool(first.tokens))
        await until(lambda: journal._idle)
        journal.statistics.loop_syncs = 0
        yield bench
    finally:
        await asyncio.to_thread(journal.stop)


def has_heard(told: Told, token: int) -> bool:
    return token in told.tokens


async def test_light_batches_need_no_thread_and_one_turn_shares_a_sync(tmp_path: Path) -> None:
    async with journal_of(tmp_path, RealDisk(), measured()) as bench:
        before, one, other = bench.journal.statistics.syncs, Told(), Told()
        bench.add(one, 1)
        bench.add(other, 2)
        assert not one.tokens, "nothing is confirmed before its sync"  # I1
        await asyncio.sleep(0)
        assert (one.tokens, other.tokens) == ([1], [2])
        assert one.threads == {threading.main_thread().name}
        assert bench.journal.statistics.syncs == before + 1
        assert bench.journal.statistics.loop_syncs == 1


async def test_waiters_are_told_right_after_the_sync_and_the_rest_is_noted_then(tmp_path: Path) -> None:
    async with journal_of(tmp_path, RealDisk(), measured()) as bench:
        journal, seen = bench.journal, list[tuple[int, bool]]()

        @dataclass(eq=False)
        class Watcher(Told):
            @override
            def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
                super().on_durable(tokens, error)
                seen.append((journal.statistics.syncs, durable.done()))

        before = journal.statistics.syncs
        bench.add(Watcher(), 1)
        durable = journal.caught_up()
        await asyncio.sleep(0)
        assert seen == [(before, False)]
        assert journal.statistics.syncs == before + 1
        assert durable.done()  # the thread, which seals, may take the next batch before the event loop does


async def test_a_failed_sync_on_the_event_loop_confirms_nothing_and_ends_the_journal(tmp_path: Path) -> None:  # I1
    disk, told = FaultyDisk(NEVER), Told()
    async with journal_of(tmp_path, disk, measured()) as bench:
        before = len(disk.seen)
        disk.countdown = 2  # the write succeeds
        bench.add(told, 1)
        await asyncio.sleep(0)
        assert disk.failed.startswith("sync")
        assert [type(failure) for failure in bench.failures] == [DiskPoisonedError]
        bench.add(told, 2)
        await until(lambda: not bench.journal._thread.is_alive())
        assert not told.tokens
        assert len(disk.seen) == before + 2, "nothing was written after the failed sync"


async def test_the_event_loop_does_not_wait_for_the_disk_while_reads_do(tmp_path: Path) -> None:
    told = Told()
    async with journal_of(tmp_path, RealDisk(), measured(), may_wait=lambda: False) as bench:
        bench.add(told, 1)
        await until(lambda: told.tokens == [1])
        assert bench.journal.statistics.loop_syncs == 0


async def test_a_batch_that_grows_within_its_turn_goes_to_the_thread(tmp_path: Path) -> None:
    for sizes in ([100] * (LOOP_RECORDS_MAX + 1), [100, LOOP_BYTES_MAX]):
        told = Told()
        async with journal_of(tmp_path, RealDisk(), measured()) as bench:
            for token, size in enumerate(sizes, 1):
                bench.add(told, token, size=size)
            await until(partial(has_heard, told, len(sizes)))
            assert bench.journal.statistics.loop_syncs == 0


async def test_the_thread_changes_files_and_no_record_is_lost_in_between(tmp_path: Path) -> None:
    told = Told()
    async with journal_of(tmp_path, RealDisk(), measured(), file_bytes=32 << 10) as bench:
        for token in range(40):
            bench.add(told, token, size=3_000)
            await until(partial(has_heard, told, token))
        assert told.tokens == list(range(40))
        statistics = bench.journal.statistics
        assert statistics.rotations >= 4
        assert 0 < statistics.loop_syncs < statistics.syncs


async def test_the_thread_seals_what_the_event_loop_committed(tmp_path: Path) -> None:
    told = Told()
    async with journal_of(tmp_path, RealDisk(), measured(), seal_seconds=0.01) as bench:
        await until(lambda: bench.journal.is_sealed and bench.journal._idle)
        bench.add(told, 1)
        await asyncio.sleep(0)
        assert told.tokens == [1]
        assert bench.journal.statistics.loop_syncs == 1
        await until(lambda: bench.journal.is_sealed)
        assert not bench.failures
