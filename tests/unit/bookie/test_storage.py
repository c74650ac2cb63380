"""Entry logs, the index, marks: what is written is found, and damage is an error, never an absence."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk, RealFile
from heliograph.actors.bookie.journal.files import used_ids, used_path
from heliograph.actors.bookie.journal.journal import JournalPorts, JournalPosition
from heliograph.actors.bookie.recovery.opening import open_storage, start_journals
from heliograph.actors.bookie.store.checkpoint import Mark, decode_mark, encode_mark, newest_mark, write_mark
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import (
    EntryLogReader,
    EntryLogWriter,
    EntryRun,
    log_ids,
    log_path,
    read_map,
)
from heliograph.actors.bookie.store.index import ROWS_OF_RANGE, IndexBatch, LedgerRecord, LocationIndex
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.bookie.tools import inspect
from heliograph.actors.errors import BookieStorageError, EntryDamagedError, JournalCorruptError
from heliograph.actors.wire.entry import decode_entry, encode_entry
from heliograph.actors.wire.messages import Status
from tests.waits import block_until

SMALL_LOG_BYTES = 4096


def entry(ledger_id: int, entry_id: int, size: int = 20) -> bytes:
    payload = (b"%d:%d " % (ledger_id, entry_id) * size)[:size]
    return encode_entry(ledger_id, entry_id, entry_id - 1, 0, payload)


def entries(ledger_id: int, first: int, last: int) -> list[tuple[int, bytes]]:
    return [(n, entry(ledger_id, n)) for n in range(first, last + 1)]


@contextmanager
def data_directory(path: Path, log_bytes: int = SMALL_LOG_BYTES) -> Iterator[DataDirectory]:
    directory = DataDirectory(RealDisk(), path, log_bytes, 1 << 20)
    try:
        yield directory
    finally:
        directory.close()


def read_all(directory: DataDirectory, ledger_id: int, first: int = 0) -> list[int]:
    return [number for number, _ in directory.read(ledger_id, first, 1 << 40, 1 << 30)]


class TestEntryLogs:
    def test_logs_rotate_and_know_what_they_hold(self, tmp_path: Path) -> None:
        disk = RealDisk()
        writer = EntryLogWriter(disk, tmp_path, SMALL_LOG_BYTES, 1)
        for ledger_id in (1, 2):
            writer.append(ledger_id, entries(ledger_id, 0, 300))
        writer.close()
        ids = log_ids(disk, tmp_path)
        assert len(ids) > 2
        usage = [read_map(disk, tmp_path, log_id) for log_id in ids]
        assert sum(sum(log.values()) for log in usage if log is not None) == 2 * 301 * len(entry(1, 100)) + 2 * 301 * 4

    def test_a_record_is_checked_against_what_was_asked_for(self, tmp_path: Path) -> None:
        writer = EntryLogWriter(RealDisk(), tmp_path, 1 << 20, 1)
        (run,) = writer.append(1, entries(1, 5, 9))
        writer.close()
        reader = EntryLogReader(RealDisk(), tmp_path)
        assert [number for number, _ in reader.read(run, 6, 1 << 20)] == [6, 7, 8, 9]
        assert len(reader.read(run, 6, 1)) == 1
        moved = type(run)(run.ledger_id, run.first_entry_id + 1, run.log_id, run.offset, run.sizes)
        with pytest.raises(EntryDamagedError, match="expected entry 1:6, found 1:5"):
            reader.read(moved, 6, 1)


class TestIndex:
    def test_runs_are_found_by_any_of_their_entries(self, tmp_path: Path) -> None:
        with data_directory(tmp_path) as directory:
            directory.flush([(1, entries(1, 0, 700)), (2, entries(2, 5, 6))], [], 1)
            assert read_all(directory, 1) == list(range(701))
            assert read_all(directory, 1, 699) == [699, 700]
            assert read_all(directory, 2, 5) == [5, 6]
            assert directory.index.find(1, 701) == []
            assert directory.index.find(2, 4) == []

    def test_a_later_copy_does_not_hide_its_neighbours(self, tmp_path: Path) -> None:
        """Recovery adds entry 8 again, and 5 alone: the run 5 to 14 must still be found for the others."""
        with data_directory(tmp_path, 1 << 20) as directory:
            directory.flush([(1, entries(1, 5, 14))], [], 1)
            directory.flush([(1, entries(1, 8, 8))], [], 2)
            directory.flush([(1, entries(1, 5, 5))], [], 3)
            assert read_all(directory, 1, 5) == list(range(5, 15))
            assert [run.offset for run in directory.index.find(1, 8)] == sorted(
                (run.offset for run in directory.index.find(1, 8)), reverse=True
            )

    def test_an_entry_that_does_not_fit_is_not_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        read: list[int] = []
        read_into = RealFile.read_into

        def counting(file: RealFile, offset: int, memory: memoryview) -> int:
            read.append(len(memory))
            return read_into(file, offset, memory)

        with data_directory(tmp_path, 1 << 20) as directory:
            directory.flush([(1, [(number, entry(1, number, 30_000)) for number in range(8)])], [], 1)
            monkeypatch.setattr(RealFile, "read_into", counting)
            size = len(entry(1, 0, 30_000)) + 4
            assert [number for number, _ in directory.read(1, 2, 1 << 40, 3 * size + 1000)] == [2, 3, 4]
            assert read == [3 * size]

    def test_a_sound_copy_is_read_when_the_newest_is_damaged(self, tmp_path: Path) -> None:
        with data_directory(tmp_path, 1 << 20) as directory:
            directory.flush([(1, entries(1, 0, 3))], [], 1)
            directory.flush([(1, entries(1, 2, 2))], [], 2)
            newest = directory.index.find(1, 2)[0]
            flip(log_path(tmp_path, newest.log_id), newest.offset + 30)
            ((_, record),) = directory.read(1, 2, 2, 1)
            assert decode_entry(record[4:]).entry_id == 2

    def test_ledger_records_and_checkpoint_survive(self, tmp_path: Path) -> None:
        records = [
            LedgerRecord(1, True, False, False, 7, 8),
            LedgerRecord(2, False, True, False),
            LedgerRecord(1 << 40),
        ]
        with data_directory(tmp_path) as directory:
            directory.flush([], records, 42)
        with data_directory(tmp_path) as directory:
            assert list(directory.index.ledgers()) == records
            assert directory.index.checkpoint() == 42

    def test_a_deleted_ledger_leaves_its_fence_and_no_entry(self, tmp_path: Path) -> None:  # I4, I14
        with data_directory(tmp_path) as directory:
            directory.flush([(n, entries(n, 0, 300)) for n in (1, 2, 3)], [LedgerRecord(n) for n in (1, 2, 3)], 1)
            directory.delete_ledgers([2])
            assert read_all(directory, 2) == []
            assert read_all(directory, 1) == read_all(directory, 3) == list(range(301))
            assert list(directory.index.ledgers())[1] == LedgerRecord(2, is_fenced=True, is_deleted=True)

    def test_a_read_beside_its_removal_keeps_no_log(self, tmp_path: Path) -> None:
        class ReadsFirst(RealDisk):
            def raw_remove(self, path: Path) -> None:
                with pytest.raises(EntryDamagedError):
                    directory.reader.read(run, 1, 1)
                super().raw_remove(path)

        directory = DataDirectory(ReadsFirst(), tmp_path, SMALL_LOG_BYTES, 1 << 20)
        directory.flush([(1, entries(1, 0, 300))], [], 1)
        run = replace(next(directory.index.runs(1)), ledger_id=7)  # of a reader that looked it up a moment ago
        directory.delete_ledgers([1])
        assert directory.remove_log_if_dead(run.log_id)
        with pytest.raises(FileNotFoundError):
            directory.reader.read(run, 1, 1)
        directory.close()


class TestDamage:
    def test_no_flipped_bit_in_a_log_gives_wrong_bytes_or_an_absence(self, tmp_path: Path) -> None:  # I6
        with data_directory(tmp_path / "d", 1 << 20) as directory:
            directory.flush([(1, entries(1, 0, 50))], [], 1)
            path = log_path(tmp_path / "d", directory.writer.log_id)
            whole = path.read_bytes()
            records_end = 32 + sum(4 + len(data) for _, data in entries(1, 0, 50))
            assert 0 <= len(whole) - records_end < 4096, "zeros up to the end of the block"
            chance = random.Random(1)
            for _ in range(300):
                damaged = bytearray(whole)
                damaged[chance.randrange(32, records_end)] ^= 1 << chance.randrange(8)
                path.write_bytes(damaged)
                errors = 0
                for number, data in entries(1, 0, 50):
                    try:
                        ((_, record),) = directory.read(1, number, number, 1)
                    except (BookieStorageError, EntryDamagedError):
                        errors += 1
                    else:
                        assert record[4:] == data
                assert errors == 1

    @pytest.mark.parametrize("harm", ["truncate", "remove"])
    def test_a_cut_or_missing_log_is_an_error(self, tmp_path: Path, harm: str) -> None:  # I6
        with data_directory(tmp_path) as directory:
            directory.flush([(1, entries(1, 0, 50))], [], 1)
        path = log_path(tmp_path, 1)
        path.unlink() if harm == "remove" else path.write_bytes(path.read_bytes()[:500])
        with data_directory(tmp_path) as directory, pytest.raises((BookieStorageError, EntryDamagedError)):
            directory.read(1, 40, 40, 1)

    def test_a_damaged_index_is_refused_or_whole(self, tmp_path: Path) -> None:  # I6
        """Bits flipped anywhere in RocksDB's files: an error, or everything is still found; no entry goes missing."""
        home = tmp_path / "d"
        for number in range(4):
            with data_directory(home) as directory:
                directory.flush([(1, entries(1, 50 * number, 50 * number + 49))], [LedgerRecord(1)], number + 1)
        chance = random.Random(2)
        refused = 0
        for _ in range(16):
            copy = tmp_path / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(home, copy)
            files = [f for f in (copy / "index").iterdir() if f.suffix in {".sst", ".log"} or "MANIFEST" in f.name]
            victim = chance.choice([file for file in files if file.stat().st_size])
            flip(victim, chance.randrange(victim.stat().st_size))
            try:
                with data_directory(copy) as directory:
                    if directory.index.checkpoint() < 4:
                        refused += 1  # the start compares it with the mark
                        continue
                    assert read_all(directory, 1) == list(range(200))
            except BookieStorageError:
                refused += 1
        assert refused > 3

    @pytest.mark.parametrize("are_bytes_counted", [False, True])
    def test_a_ledger_with_a_damaged_index_can_be_deleted(self, tmp_path: Path, are_bytes_counted: bool) -> None:
        """Checkpoints delete ledgers: with one that cannot be deleted, the journal would grow and grow."""
        with data_directory(tmp_path) as directory:
            directory.flush([(1, entries(1, 0, 50))], [LedgerRecord(1)], 1)
            directory.index._db.flush()
        (path,) = (tmp_path / "index").glob("*.sst")
        flip(path, 20)
        with data_directory(tmp_path) as directory:
            if are_bytes_counted:
                directory._live_bytes = Counter({1: 1_000})
            with pytest.raises(BookieStorageError):
                directory.read(1, 0, 0, 1)
            directory.flush([], [], 2, deleted=[1])
            assert directory.index.checkpoint() == 2
            assert directory._live_bytes is None, "garbage collection has to count them again"


class TestMarks:
    MARK = Mark(9, (JournalPosition(3, 8192), JournalPosition(4, 0)))

    def test_the_newest_sound_mark_counts(self, tmp_path: Path) -> None:
        a, b = tmp_path / "a", tmp_path / "b"
        a.mkdir()
        b.mkdir()
        disk = RealDisk()
        assert newest_mark(disk, [a, b]) is None
        write_mark(disk, [a, b], self.MARK)
        newer = Mark(10, (JournalPosition(5, 0), JournalPosition(4, 4096)))
        write_mark(disk, [a], newer)
        assert newest_mark(disk, [a, b]) == newer
        flip(a / "mark", 20)
        assert newest_mark(disk, [a, b]) == self.MARK
        flip(b / "mark", 20)
        with pytest.raises(BookieStorageError, match="damaged"):
            newest_mark(disk, [a, b])

    def test_every_flipped_bit_is_seen(self) -> None:
        data = encode_mark(self.MARK)
        assert decode_mark(data, "mark") == self.MARK
        for bit in range(8 * len(data)):
            damaged = bytearray(data)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(BookieStorageError):
                decode_mark(bytes(damaged), "mark")


def flip(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0x40
    path.write_bytes(content)


def config(home: Path) -> BookieConfig:
    return BookieConfig("b1", (home / "journal",), (home / "data",), journal_file_bytes=32 << 10)


@contextmanager
def opened(home: Path) -> Iterator[BookieStorage]:
    """A storage whose journals release their waiters at once, on their own thread."""
    for name in ("journal", "data"):
        (home / name).mkdir(parents=True, exist_ok=True)
    failures: list[BaseException] = []
    found = open_storage(RealDisk(), config(home), [])
    start_journals(found.storage.disk, found, JournalPorts(lambda call: call(), failures.append))
    try:
        yield found.storage
    finally:
        found.storage.close()
    assert not failures


class Told:
    """Waits for records in a test without a loop."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def on_durable(self, tokens: list[int], error: BookieStorageError | None) -> None:
        assert error is None
        self.tokens += tokens


def add(storage: BookieStorage, told: Told, ledger_id: int, entry_id: int, size: int = 20) -> None:
    data = entry(ledger_id, entry_id, size)
    status = storage.add(ledger_id, entry_id, entry_id - 1, data, is_recovery=False)
    assert status is Status.OK
    storage.journal_of(ledger_id).append([(1, data, told, entry_id)], len(data))


def crash(home: Path, target: Path) -> Path:
    """What a killed process leaves."""
    shutil.copytree(home, target, ignore=shutil.ignore_patterns("LOCK", "*.draft"))
    return target


class TestReplay:
    async def test_a_checkpoint_with_an_empty_cache_keeps_fence_and_lac(self, tmp_path: Path) -> None:  # I4
        with opened(tmp_path / "a") as storage:
            loop = asyncio.get_running_loop()

            def post(call: Callable[[], None]) -> None:
                loop.call_soon_threadsafe(call)

            for journal in storage.journals:
                journal._ports = JournalPorts(post, journal._ports.on_failure)
            await storage.fence(5)
            await storage.write_lac(6, 11)
            assert storage.write_cache.entries == 0
            assert storage.has_changes
            storage.flush_now(moves_mark=True)
            copy = crash(tmp_path / "a", tmp_path / "b")
        shutil.rmtree(copy / "journal")  # all that was before the mark
        (copy / "journal").mkdir()
        with LocationIndexOf(copy) as index:
            assert list(index.ledgers()) == [LedgerRecord(5, is_fenced=True), LedgerRecord(6, last_add_confirmed=11)]

    def test_what_is_behind_the_mark_is_replayed_once(self, tmp_path: Path) -> None:
        told = Told()
        with opened(tmp_path / "a") as storage:
            for number in range(100):
                add(storage, told, 1, number, 1000)
                if number % 10 == 9:
                    wait_for(told, number + 1)
            assert len(used_ids(RealDisk(), tmp_path / "a" / "journal")) > 2, "several files"
            copy = crash(tmp_path / "a", tmp_path / "b")
        found = open_storage(RealDisk(), config(copy), [])
        assert found.summary.entries == 100
        assert found.storage.write_cache.entries == 100
        found.storage.close()

    def test_damage_in_a_journal_is_refused_by_name(self, tmp_path: Path) -> None:  # D6
        copy, path = self.crashed_with_batches(tmp_path)
        flip(path, 4096 + 60)
        with pytest.raises(JournalCorruptError, match=rf"{path.name}: damaged at offset 4096 "):
            open_storage(RealDisk(), config(copy), [])

    def test_a_missing_journal_is_refused_by_name(self, tmp_path: Path) -> None:
        copy, path = self.crashed_with_batches(tmp_path)
        path.unlink()
        with pytest.raises(JournalCorruptError, match="missing"):
            open_storage(RealDisk(), config(copy), [])

    def test_a_journal_that_does_not_go_on_is_refused(self, tmp_path: Path) -> None:
        copy, path = self.crashed_with_batches(tmp_path)
        content = bytearray(path.read_bytes())
        last = 4096 * (len(content) // 4096 - 4)
        content[last:] = bytes(len(content) - last)  # its last batches, though a later file proves them
        path.write_bytes(content)
        with pytest.raises(JournalCorruptError, match="the file before ended at"):
            open_storage(RealDisk(), config(copy), [])

    def test_an_index_behind_its_mark_is_refused(self, tmp_path: Path) -> None:  # I6
        told = Told()
        with opened(tmp_path / "a") as storage:
            early = crash(tmp_path / "a", tmp_path / "early")
            add(storage, told, 1, 0)
            wait_for(told, 1)
            storage.flush_now(moves_mark=True)
            copy = crash(tmp_path / "a", tmp_path / "b")
        shutil.rmtree(copy / "data" / "index")
        shutil.copytree(early / "data" / "index", copy / "data" / "index")
        with pytest.raises(BookieStorageError, match="ends at checkpoint 1, the mark is at 2"):
            open_storage(RealDisk(), config(copy), [])

    def crashed_with_batches(self, tmp_path: Path) -> tuple[Path, Path]:
        """A crashed bookie with several batches in several files; returns its folder and the first file."""
        told = Told()
        with opened(tmp_path / "a") as storage:
            for number in range(60):
                add(storage, told, 1, number, 1000)
                wait_for(told, number + 1)
            copy = crash(tmp_path / "a", tmp_path / "b")
        return copy, used_path(copy / "journal", used_ids(RealDisk(), copy / "journal")[0])


class LocationIndexOf:
    """The index of a bookie's folder, opened and closed."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def __enter__(self) -> LocationIndex:
        self._index = LocationIndex(self._home / "data" / "index", 1 << 20)
        return self._index

    def __exit__(self, *error: object) -> None:
        self._index.close()


def wait_for(told: Told, count: int) -> None:
    """The journal answers on its thread within moments."""

    block_until(lambda: len(told.tokens) >= count)
    assert told.tokens == sorted(told.tokens)


class TestInspection:
    def test_it_lists_reads_and_verifies_without_a_trace(self, tmp_path: Path) -> None:
        told = Told()
        with opened(tmp_path) as storage:
            for number in range(300):
                add(storage, told, 1, number)
            add(storage, told, 2, 7)
            wait_for(told, 0)
            storage.put_into_limbo(3, is_fenced=True)
            storage.flush_now(moves_mark=True)
        before = {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")}
        data, journals = [tmp_path / "data"], [tmp_path / "journal"]
        views = {view.ledger_id: view for view in inspect.list_ledgers(data)}
        assert views[1].spans == [[0, 299]]
        assert views[2].spans == [[7, 7]]
        assert views[3].is_limbo
        assert views[3].is_fenced
        assert [e.entry_id for e in inspect.read_entries(data, 1, 250, 280)] == list(range(250, 281))
        assert inspect.read_mark(data) is not None
        report = inspect.verify(data, journals)
        assert report.is_sound
        assert report.entries_checked == 301
        assert {p: (p.stat().st_size, p.stat().st_mtime_ns) for p in tmp_path.rglob("*")} == before
        flip(log_path(tmp_path / "data", 1), 200)
        assert len(inspect.verify(data, journals).damaged) == 1
        with pytest.raises(BookieStorageError, match="no data directory"):
            inspect.list_ledgers([tmp_path / "journal"])

    def test_a_damaged_journal_is_shown(self, tmp_path: Path) -> None:
        copy, path = TestReplay().crashed_with_batches(tmp_path)
        flip(path, 4096 + 60)
        damaged = [view for view in inspect.list_journals([copy / "journal"]) if view.damage]
        assert [view.path for view in damaged] == [str(path)]
        assert "offset 4096" in damaged[0].damage

    def test_logs_say_what_they_hold(self, tmp_path: Path) -> None:
        with data_directory(tmp_path) as directory:
            directory.flush([(1, entries(1, 0, 200))], [], 1)
        logs = inspect.list_logs(tmp_path)
        assert sum(log[1] for log in logs.values()) == sum(4 + len(data) for _, data in entries(1, 0, 200))


class Changes:
    """What a batch of RocksDB is told."""

    def __init__(self) -> None:
        self.deleted: list[bytes] = []
        self.ranges: list[bytes] = []

    def delete(self, key: bytes) -> None:
        self.deleted.append(key)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.ranges.append(begin)


def test_few_rows_of_a_ledger_are_deleted_without_a_range(tmp_path: Path) -> None:
    """RocksDB sorts all deleted ranges that it has in memory again for the read after each new one."""
    index = LocationIndex(tmp_path / "index", 1 << 20)
    rows = {1: 1, 2: ROWS_OF_RANGE - 1, 3: ROWS_OF_RANGE, 4: 2 * ROWS_OF_RANGE, 5: 3}
    index.commit(IndexBatch(runs=[EntryRun(each, row, 1, row, (8,)) for each in rows for row in range(rows[each])]))
    changes = Changes()
    for ledger_id in (1, 2, 9):
        index._delete_rows(changes, ledger_id)
    assert (len(changes.deleted), len(changes.ranges)) == (ROWS_OF_RANGE, 0)
    index._delete_rows(changes, 3)
    index._delete_rows(changes, 4)
    assert (len(changes.deleted), len(changes.ranges)) == (ROWS_OF_RANGE, 2)
    index.commit(IndexBatch(emptied_ledgers=[1, 2, 3, 4, 9]))
    assert [(run.ledger_id, run.first_entry_id) for run in index.all_runs()] == [(5, 0), (5, 1), (5, 2)]
    index.close()
