"""Payloads that are copied as they arrive: the batch has the same bytes, whenever they are, and no record is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.bookie.config import JOURNAL_BATCH_BYTES_MAX
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.draft import PLACED_BYTES_MAX, BatchDraft
from heliograph.actors.bookie.journal.files import JournalFiles, used_ids, used_path
from heliograph.actors.bookie.journal.format import (
    Kind,
    batch_bytes,
    encode_batch,
)
from heliograph.actors.bookie.journal.journal import Journal, JournalItem, JournalPorts
from heliograph.actors.bookie.journal.loop_commits import LIGHT_BATCHES_LEAST, LoopCommits
from heliograph.actors.bookie.journal.scan import scan_bytes
from heliograph.actors.errors import BookieStorageError
from heliograph.actors.wire.entry import encode_entry
from tests.examples import examples
from tests.waits import until

Records = list[tuple[int, bytes]]
TAG = b"\xff" * 8
DEADLINE_SECONDS = 60


def entry(number: int, size: int) -> bytes:
    return encode_entry(1, number, number - 1, number, bytes([number % 251]) * size)


def encoded(records: Records, sequence: int = 30) -> tuple[bytes, int]:
    data = bytearray(batch_bytes(records))
    _, next_sequence = encode_batch(data, 0, records, TAG, sequence, 2)
    return bytes(data), next_sequence


sizes = st.integers(0, 300) | st.integers(30_000, 500_000)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.lists(sizes, max_size=4), st.booleans()), max_size=6))
def test_a_batch_has_the_same_bytes_whenever_its_payloads_are_copied(
    turns: list[tuple[list[int], bool]],
) -> None:
    draft = BatchDraft()
    for number in range(2):  # the second batch finds the bytes of the first
        queue: Records = []
        for added, is_placed in turns:
            queue += [(Kind.ENTRY, entry(number + len(queue) + place, size)) for place, size in enumerate(added)]
            if is_placed:
                draft.place(queue)
        data, next_sequence = draft.encode(queue, batch_bytes(queue), TAG, 30, 2)
        assert (bytes(data), next_sequence) == encoded(queue)


def test_a_batch_is_written_from_whole_blocks_of_aligned_memory() -> None:
    draft, queue = BatchDraft(), [(Kind.ENTRY, entry(1, 100_000))]
    for _ in range(2):
        draft.place(queue)
        data, _ = draft.encode(queue, batch_bytes(queue), TAG, 30, 2)
        whole = data.obj
        assert len(data) % BLOCK_BYTES == 0
        assert bytes(memoryview(whole)[: len(data)]) == bytes(data)


def test_a_draft_copies_little_at_once_and_one_batch_at_most() -> None:
    size = 256 << 10
    draft, queue = BatchDraft(), [(Kind.ENTRY, entry(number, size)) for number in range(40)]
    counts = []
    for _ in range(8):
        draft.place(queue)
        counts.append(draft.records)
    assert counts[0] == PLACED_BYTES_MAX // size
    assert counts[-1] == counts[-2] == JOURNAL_BATCH_BYTES_MAX // size


class GatedDisk(RealDisk):
    """A disk whose durable writes wait until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.writes = 0

    def raw_write_durably(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
        self.writes += 1
        assert self.gate.wait(DEADLINE_SECONDS)
        return super().raw_write_durably(fd, path, data, offset)


class Told:
    """A waiter that notes what it was told."""

    def __init__(self) -> None:
        self.durable: list[int] = []
        self.refused: list[int] = []

    def on_durable(self, tokens: list[int], error: BookieStorageError | None) -> None:
        (self.durable if error is None else self.refused).extend(tokens)


async def until_heard(told: Told, count: int) -> None:
    await until(lambda: len(told.durable) + len(told.refused) >= count)


def stored(home: Path) -> list[bytes]:
    """Return the payloads in the files of a journal, in order."""
    found = []
    for file_id in used_ids(RealDisk(), home):
        _, batches = scan_bytes(used_path(home, file_id).read_bytes(), file_id, "test.journal")
        found += [bytes(record.payload) for batch in batches for record in batch.records]
    return found


async def test_what_arrives_during_a_sync_is_in_the_next_batches_as_it_came(tmp_path: Path) -> None:
    """More than a batch, large and small, over several files; some of it queued before its turn to be copied."""
    loop, disk, told, failures = asyncio.get_running_loop(), GatedDisk(), Told(), list[BaseException]()
    ports = JournalPorts(lambda call: void(loop.call_soon_threadsafe(call)), failures.append)
    files = JournalFiles(disk, tmp_path, 6 << 20, 1)
    journal = Journal(files, 6 << 20, 1, 3_600.0, LoopCommits(0), lambda: True, ports)
    journal.start()
    payloads: list[bytes] = []
    try:
        for turn in range(3):
            disk.gate.clear()
            for number in range(25):
                added = [entry(len(payloads) + place, size) for place, size in enumerate((100, 200_000 + turn))]
                tokens = range(len(payloads), len(payloads) + 2)
                items: list[JournalItem] = [
                    (Kind.ENTRY, payload, told, token) for payload, token in zip(added, tokens, strict=True)
                ]
                payloads += added
                if number % 7 == 6:  # small ones by themselves are not copied before their turn
                    journal.append(items[:1], len(added[0]))
                    journal.append(items[1:], len(added[1]))
                else:
                    journal.append(items, sum(map(len, added)))
            disk.gate.set()
            await until_heard(told, len(payloads))
    finally:
        disk.gate.set()
        await asyncio.to_thread(journal.stop)
    assert not failures
    assert told.durable == list(range(len(payloads)))
    assert journal.statistics.rotations >= 2
    assert stored(tmp_path) == payloads


def void(_: object) -> None:
    pass


class FullDisk(GatedDisk):
    """A disk on which there is no room for another file, once it is full."""

    is_full = False

    def raw_open(self, path: Path, create: bool) -> int:
        if create and self.is_full:
            raise OSError(28, "no space")
        return super().raw_open(path, create)


def test_a_batch_that_is_refused_leaves_nothing_in_the_next_one(tmp_path: Path) -> None:
    sizes = (400_000, 900_000, 300_000)  # the second one needs another file; the third one fits the first file
    assert refused(tmp_path, sizes, LoopCommits(0)) == [1]
    assert stored(tmp_path) == [entry(0, 400_000), entry(2, 300_000)]


def test_a_batch_that_is_refused_leaves_nothing_in_one_that_the_event_loop_commits(tmp_path: Path) -> None:
    small = (100,) * (2 * LIGHT_BATCHES_LEAST)
    assert refused(tmp_path, (*small, 1_020_000, 100), LoopCommits(1_000)) == [len(small)]
    assert stored(tmp_path) == [entry(token, 100) for token in (*range(len(small)), len(small) + 1)]


def refused(home: Path, sizes: Sequence[int], loop_commits: LoopCommits) -> list[int]:
    """Append entries one after the other to a journal that gets no second file; return which were refused."""

    async def scenario() -> Told:
        loop, disk, told, failures = asyncio.get_running_loop(), FullDisk(), Told(), list[BaseException]()
        disk.gate.set()
        ports = JournalPorts(lambda call: void(loop.call_soon_threadsafe(call)), failures.append, loop.call_soon)
        file_bytes = 1 << 20
        files = JournalFiles(disk, home, file_bytes, 1)
        journal = Journal(files, file_bytes, 1, 3_600.0, loop_commits, lambda: True, ports)
        journal.start()
        disk.is_full = True
        try:
            for token, size in enumerate(sizes):
                payload = entry(token, size)
                journal.append([(Kind.ENTRY, payload, told, token)], len(payload))
                await until_heard(told, token + 1)
        finally:
            await asyncio.to_thread(journal.stop)
        assert not failures
        assert told.durable == [token for token in range(len(sizes)) if token not in told.refused]
        return told

    return asyncio.run(scenario()).refused
