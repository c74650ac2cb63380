"""Batches that wait for more large records: the rule, and a journal that follows it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from typing_extensions import override

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.format import Kind
from heliograph.actors.bookie.journal.gathering import (
    GATHERED_AVERAGE_LEAST,
    GATHERED_BYTES_MAX,
    PATIENT_BATCHES,
    Gathering,
)
from heliograph.actors.bookie.journal.journal import Journal, JournalItem, JournalPorts
from heliograph.actors.bookie.journal.loop_commits import LoopCommits
from heliograph.actors.errors import BookieStorageError

LARGE = 64 << 10
SECONDS = 3_600.0  # a wait that no slow machine ends
DEADLINE_SECONDS = 60


def gathering_of(wanted: int) -> Gathering:
    rule = Gathering(SECONDS)
    assert rule.wanted(1, LARGE, were_queued=True) == 2
    rule.note(2, 2 * LARGE, 2)
    for size in range(3, wanted):
        assert rule.wanted(1, LARGE, were_queued=False) == size
        rule.note(size, size * LARGE, size)
    return rule


class TestRule:
    def test_a_client_that_waits_for_each_add_never_waits_longer(self) -> None:
        rule = Gathering(SECONDS)
        for _ in range(100):
            wanted = rule.wanted(1, LARGE, were_queued=False)
            assert wanted <= 1
            rule.note(1, LARGE, wanted)

    def test_records_that_came_during_a_sync_begin_it_and_each_success_adds_one(self) -> None:
        rule = gathering_of(4)
        assert rule.wanted(1, LARGE, were_queued=False) == 4

    def test_after_a_wait_in_vain_the_number_that_came_is_kept_for_a_while(self) -> None:
        rule = gathering_of(4)
        assert rule.wanted(3, 3 * LARGE, were_queued=False) == 4
        rule.note(3, 3 * LARGE, 4)
        for _ in range(PATIENT_BATCHES):
            assert rule.wanted(1, LARGE, were_queued=True) == 3
            rule.note(3, 3 * LARGE, 3)
        assert rule.wanted(1, LARGE, were_queued=True) == 4

    def test_clients_that_wait_again_end_it(self) -> None:
        rule = gathering_of(3)
        rule.note(1, LARGE, rule.wanted(1, LARGE, were_queued=False))
        for _ in range(PATIENT_BATCHES):
            assert rule.wanted(1, LARGE, were_queued=True) <= 1
            rule.note(1, LARGE, 1)
        assert rule.wanted(1, LARGE, were_queued=False) <= 1
        assert rule.wanted(1, LARGE, were_queued=True) == 2

    def test_small_records_and_full_batches_do_not_wait(self) -> None:
        rule = gathering_of(4)
        assert rule.wanted(1, GATHERED_AVERAGE_LEAST - 1, were_queued=True) == 0
        assert rule.wanted(1, GATHERED_BYTES_MAX, were_queued=True) == 0
        assert rule.wanted(1, GATHERED_AVERAGE_LEAST, were_queued=True) == 4

    def test_a_batch_that_became_full_before_its_number_was_not_in_vain(self) -> None:
        rule = gathering_of(4)
        rule.note(2, GATHERED_BYTES_MAX, 4)
        assert rule.wanted(1, LARGE, were_queued=False) == 4

    def test_0_seconds_is_never(self) -> None:
        rule = Gathering(0.0)
        assert rule.wanted(1, LARGE, were_queued=True) == 0


class GatedDisk(RealDisk):
    """A disk whose journal writes wait until the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.writes = 0

    @override
    def raw_write_durably(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        self.writes += 1
        assert self.open_gate.wait(DEADLINE_SECONDS)
        return super().raw_write_durably(fd, path, data, offset)


class Told:
    """A waiter that notes what it was told."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        assert error is None
        self.batches.append(tokens)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - it asks the journal
            await asyncio.sleep(0.001)


def add(journal: Journal, told: Told, *tokens: int, size: int = LARGE) -> None:
    items: list[JournalItem] = [(int(Kind.LAC), bytes(size), told, token) for token in tokens]
    journal.append(items, size * len(items))


@asynccontextmanager
async def journal_of(home: Path, disk: RealDisk, seconds: float) -> AsyncIterator[Journal]:
    loop = asyncio.get_running_loop()
    failures: list[BaseException] = []

    def post(call: Callable[[], None]) -> None:
        loop.call_soon_threadsafe(call)

    ports = JournalPorts(post, failures.append)
    files = JournalFiles(disk, home, 4 << 20, 1)
    rule = Gathering(seconds)
    journal = Journal(files, 4 << 20, 1, SECONDS, LoopCommits(0.0), lambda: True, ports, gathering=rule)
    journal.start()
    try:
        yield journal
    finally:
        await asyncio.to_thread(journal.stop)
        assert not failures


async def overlap(journal: Journal, disk: GatedDisk, told: Told) -> None:
    """Have one record come while another is being written, and a third one be awaited then."""
    disk.open_gate.clear()
    before = disk.writes
    add(journal, told, 1)
    await until(lambda: disk.writes > before)
    add(journal, told, 2)
    disk.open_gate.set()
    await until(lambda: journal._awaited_records == 2)
    assert told.batches == [[1]] or not told.batches


def test_a_batch_waits_for_as_many_as_are_expected_and_confirms_them_after_one_sync(tmp_path: Path) -> None:  # I1
    async def scenario() -> None:
        disk, told = GatedDisk(), Told()
        async with journal_of(tmp_path, disk, SECONDS) as journal:
            await overlap(journal, disk, told)
            await until(lambda: told.batches == [[1]])
            add(journal, told, 3)
            await until(lambda: told.batches == [[1], [2, 3]])

    asyncio.run(scenario())


def test_a_full_batch_waits_no_longer(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, told = GatedDisk(), Told()
        async with journal_of(tmp_path, disk, SECONDS) as journal:
            await overlap(journal, disk, told)
            add(journal, told, 3)
            await until(lambda: len(told.batches) == 2)
            add(journal, told, 4)
            await until(lambda: journal._awaited_records == 3)
            add(journal, told, 5, size=GATHERED_BYTES_MAX)
            await until(lambda: told.batches == [[1], [2, 3], [4, 5]])

    asyncio.run(scenario())


def test_a_wait_in_vain_ends_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, told = GatedDisk(), Told()
        async with journal_of(tmp_path, disk, 0.001) as journal:
            disk.open_gate.clear()
            add(journal, told, 1)
            await until(lambda: disk.writes == 1)
            add(journal, told, 2)
            disk.open_gate.set()
            await until(lambda: told.batches == [[1], [2]])

    asyncio.run(scenario())


def test_a_journal_that_stops_writes_what_waits(tmp_path: Path) -> None:
    async def scenario() -> None:
        disk, told = GatedDisk(), Told()
        async with journal_of(tmp_path, disk, SECONDS) as journal:
            await overlap(journal, disk, told)
        await until(lambda: told.batches == [[1], [2]])

    asyncio.run(scenario())
