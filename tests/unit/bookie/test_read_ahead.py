"""What a bookie reads before it is asked for, who goes first on its disk, and its second way into a socket."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from heliograph.actors.bookie.config import READ_AHEADS_MAX
from heliograph.actors.bookie.disk.io_priority import READ_BYTES, IoPriority
from heliograph.actors.bookie.disk.read_threads import ReadThreads
from heliograph.actors.bookie.server import read_ahead as read_ahead_module
from heliograph.actors.bookie.server.read_ahead import (
    FIRST_BYTES,
    GAP_ENTRIES_MAX,
    READERS_MAX,
    RangeReadAhead,
    SingleReadAhead,
    cut,
)
from heliograph.actors.bookie.server.response_writer import PIECES_MAX, ResponseWriter
from heliograph.actors.bookie.store.entry_log import Records
from heliograph.actors.bookie.store.payloads import ReadBuffer
from heliograph.actors.errors import EntryDamagedError
from tests.waits import until

RECORDS: list[Records] = [((2, 3), memoryview(b"aabbb")), ((4,), memoryview(b"cccc"))]
DEADLINE_SECONDS = 60.0


@pytest.mark.parametrize(
    ("count", "bytes_wanted", "expected", "taken"),
    [
        (9, 99, b"aabbbcccc", 3),
        (3, 9, b"aabbbcccc", 3),
        (2, 99, b"aabbb", 2),
        (9, 8, b"aabbb", 2),
        (9, 4, b"aa", 1),
        (1, 99, b"aa", 1),
        (9, 1, b"aa", 1),
    ],
)
def test_what_was_read_ahead_is_cut_to_what_is_wanted(
    count: int, bytes_wanted: int, expected: bytes, taken: int
) -> None:
    pieces, found = cut(RECORDS, count, bytes_wanted)
    assert (b"".join(pieces), found) == (expected, taken)


@asynccontextmanager
async def read_ahead(read: Any) -> AsyncIterator[RangeReadAhead]:
    threads = ReadThreads(2)
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            yield RangeReadAhead(read, threads)
    finally:
        threads.shutdown()


async def all_free(ahead: RangeReadAhead) -> None:
    await until(lambda: len(ahead._free) >= READ_AHEADS_MAX)


async def test_a_batch_is_read_once_and_its_memory_is_lent_until_it_is_released() -> None:
    asked: list[tuple[int, ...]] = []

    def read(ledger_id: int, first: int, last: int, bytes_wanted: int, buffer: ReadBuffer) -> list[Records]:
        asked.append((ledger_id, first, last, bytes_wanted))
        return RECORDS

    async with read_ahead(read) as ahead:
        assert await ahead.take((5, 7), 9, 99) is None, "nothing was read ahead"
        ahead.begin((5, 7), 20, 99)
        ahead.begin((5, 7), 20, 99)
        found = await ahead.take((5, 7), 8, 99)
        assert found is not None
        body, count = found
        assert (b"".join(body.pieces), count) == (b"aabbb", 2)
        assert len(ahead._free) == READ_AHEADS_MAX - 1
        body.release()
        assert len(ahead._free) == READ_AHEADS_MAX
        assert await ahead.take((5, 7), 8, 99) is None
        assert (asked, ahead.begun, ahead.hits) == ([(5, 7, 20, 99)], 1, 1)


async def test_read_ahead_is_bounded_and_what_nobody_asks_for_is_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # I15
    monkeypatch.setattr(read_ahead_module, "READ_AHEAD_SECONDS_MAX", 0.05)

    async with read_ahead(lambda *_: RECORDS) as ahead:
        for entry_id in range(READ_AHEADS_MAX + 3):
            ahead.begin((5, entry_id), 99, 99)
        assert ahead.begun == READ_AHEADS_MAX
        await all_free(ahead)
        assert await ahead.take((5, 0), 99, 99) is None


async def test_nothing_is_read_ahead_for_a_reader_that_has_asked_already() -> None:
    read: list[int] = []

    def reading(ledger_id: int, first: int, *_: object) -> list[Records]:
        read.append(first)
        return RECORDS

    async with read_ahead(reading) as ahead:
        with ahead.serving((1, 10)), ahead.serving((1, 10)):
            ahead.begin((1, 10), 19, 100)
        assert not ahead.begun
        ahead.begin((1, 10), 19, 100)
        assert await ahead.take((1, 10), 19, 100) is not None
        assert read == [10]


@pytest.mark.parametrize("is_damaged", [False, True], ids=["absent", "damaged"])
async def test_neither_absence_nor_damage_is_concluded_from_what_was_read_ahead(is_damaged: bool) -> None:  # I6
    def read(*_: Any) -> list[Records]:
        if is_damaged:
            raise EntryDamagedError("its checksum")
        return []

    async with read_ahead(read) as ahead:
        ahead.begin((5, 1), 99, 99)
        assert await ahead.take((5, 1), 99, 99) is None
        assert (ahead.hits, len(ahead._free)) == (0, READ_AHEADS_MAX)


async def test_a_reader_that_goes_away_leaves_the_memory_to_the_thread_until_it_is_done() -> None:
    goes = threading.Event()

    def read(*_: Any) -> list[Records]:
        goes.wait(DEADLINE_SECONDS)
        return RECORDS

    async with read_ahead(read) as ahead:
        ahead.begin((5, 1), 99, 99)
        taking = asyncio.ensure_future(ahead.take((5, 1), 99, 99))
        await asyncio.sleep(0)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert len(ahead._free) == READ_AHEADS_MAX - 1
        goes.set()
        await all_free(ahead)


async def test_a_batch_that_continues_one_or_begins_its_ledger_is_part_of_going_through_it() -> None:
    async with read_ahead(lambda *_: RECORDS) as ahead:
        assert ahead.continues((5, 0))
        assert not ahead.continues((5, 7))
        ahead.ended_at((5, 7))
        assert not ahead.continues((6, 7))
        assert ahead.continues((5, 7))
        assert not ahead.continues((5, 7)), "one reader goes on there once"


def test_large_reads_are_cut_beside_adds_and_wait_for_a_journal_that_writes() -> None:
    io_priority = IoPriority()
    assert io_priority.give_way() > 1 << 40, "alone on the disk"
    io_priority.writing |= {"journal-0", "journal-1"}
    assert io_priority.give_way() == READ_BYTES, "after a while it goes on all the same"
    for writer in ("journal-0", "journal-1"):
        io_priority.written(writer, time.monotonic())
    assert not io_priority.writing
    assert io_priority._readers == 0
    assert io_priority.give_way() == READ_BYTES, "another write may come soon"


async def test_the_second_way_into_a_socket_is_used_when_the_first_has_nothing_to_send() -> None:
    class Transport:
        unsent = 0

        def __init__(self, its: socket.socket) -> None:
            self._socket = its

        def get_write_buffer_size(self) -> int:
            return self.unsent

        def get_extra_info(self, name: str) -> socket.socket | None:
            return {"socket": self._socket, "ssl_object": None}[name]

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    transport, outlet = Transport(ours), ResponseWriter()
    as_transport = cast(asyncio.Transport, transport)
    with ThreadPoolExecutor(1) as thread, ours, theirs:
        transport.unsent = 1
        assert outlet.write(as_transport, thread, [b"x"]) is None, "it would overtake"
        transport.unsent = 0
        assert outlet.write(as_transport, thread, [b"x"] * (PIECES_MAX + 1)) is None
        writing = outlet.write(as_transport, thread, [b"head", memoryview(b"body")])
        assert writing is not None
        assert await writing == 8
        assert theirs.recv(100) == b"headbody"
        more = outlet.write(as_transport, thread, [bytes(64 << 20)])
        assert more is not None
        assert 0 < await more < 64 << 20, "what the kernel takes at once"
        full = outlet.write(as_transport, thread, [b"x"])
        assert full is not None
        outlet.close()  # while it is written: the handle goes afterwards
        assert await full == 0
        await asyncio.sleep(0)
        assert outlet._fd == -1
        assert outlet.write(as_transport, thread, [b"x"]) is None


def test_a_read_of_one_entry_fetches_more_only_for_a_reader_in_order() -> None:
    singles = SingleReadAhead(64 << 10)
    for entry_id in (500, 40, 900, 41 + GAP_ENTRIES_MAX, 899, 39):
        assert singles.wanted((1, entry_id)) == 0, "random reads"
        singles.fetched((1, entry_id), 0)
    sizes, entry_id = [], 2_000
    for _ in range(6):
        sizes.append(singles.wanted((1, entry_id)))
        singles.fetched((1, entry_id + sizes[-1] // 1_000), sizes[-1])
        entry_id += 1 + sizes[-1] // 1_000
    assert sizes == [0, FIRST_BYTES, 16 << 10, 64 << 10, 64 << 10, 64 << 10]
    assert singles.wanted((2, entry_id)) == 0, "another ledger"


def test_readers_of_one_ledger_do_not_disturb_each_other_and_are_bounded() -> None:
    singles = SingleReadAhead(64 << 10)
    for step in range(3):
        for reader in range(20):
            place = (1, 1_000 * reader + 3 * step)  # two of three entries are read elsewhere
            assert bool(singles.wanted(place)) is (step > 0)
            singles.fetched(place, FIRST_BYTES)
    for ledger_id in range(2 * READERS_MAX):
        singles.fetched((ledger_id, 7), 0)
    assert len(singles._ends) == READERS_MAX
