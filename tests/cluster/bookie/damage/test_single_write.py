"""Entries that are written once: every power cut keeps them, and each sabotage of their storage is caught."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.journal import Journal, JournalItem, JournalPorts
from heliograph.actors.bookie.recovery.opening import open_storage, start_journals
from heliograph.actors.bookie.store import kept_log
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.kept_log import KeptLogs
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieStorageError, EntryDamagedError
from tests.cluster.bookie.damage.test_crash_images import Recording, check, cut_points, index_copied
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config
from tests.unit.bookie.disks import Image, RecordingDisk
from tests.waits import until

SEED = 20_261_123
STEPS = 10
KEPT_BYTES = 600  # entries of this size and larger are written once
SIZES = (100, 500, 700, 3000, 9000)
IMAGES_MAX = 60
OTHER_LEDGER = 4_000  # entries that overwrite what is free again after a start
OTHER_ENTRIES = 40


NO_CHECKPOINT_BESIDE = threading.Event()


def config_for(home: Path, journals: int = 1, **changes: Any) -> BookieConfig:
    names = ["journal", *(f"journal{number}" for number in range(1, journals))]
    settings: dict[str, Any] = {
        "journal_directories": tuple(home / name for name in names),
        "journal_file_bytes": 32 << 10,
        "single_write_bytes": KEPT_BYTES,
        "read_cache_bytes": 0,
        **changes,
    }
    return small_config(home, **settings)


async def workload(recording: Recording, peer: BookiePeer, bookie: Bookie, chance: random.Random) -> None:
    """Adds of all sizes to several ledgers, some beside a checkpoint, and fences; many journal files."""
    next_entry = dict.fromkeys(range(1, 6), 0)
    for step in range(STEPS):
        adds = []
        for ledger_id in next_entry:
            for _ in range(chance.randrange(1, 4)):
                payload = recording.payload_of(chance, chance.choice(SIZES))
                adds.append(recording.add(peer, ledger_id, next_entry[ledger_id], payload))
                next_entry[ledger_id] += 1
        if step % 2:
            await asyncio.gather(*adds, checkpoint_beside(bookie))
        else:
            await asyncio.gather(*adds)
        if step in {3, 6}:
            await recording.fence(peer, 100 + step)
    await bookie.checkpoint()
    await recording.fence(peer, 77)


async def checkpoint_beside(bookie: Bookie) -> None:
    """Run a checkpoint that begins when adds were taken and are not durable yet."""
    assert bookie._opened is not None
    storage = bookie._opened.storage
    before = storage.entries_added
    NO_CHECKPOINT_BESIDE.clear()
    await until(lambda: storage.entries_added != before)
    await bookie.checkpoint()
    NO_CHECKPOINT_BESIDE.set()


def record(config: BookieConfig, home: Path, recording: Recording, snapshots: Path) -> None:
    """Run the workload; RocksDB's own files are copied after each of its synced batches."""
    NO_CHECKPOINT_BESIDE.set()

    async def run() -> int:
        async with serving(config, disk=recording.disk) as (bookie, peer):
            await workload(recording, peer, bookie, random.Random(SEED))
            return int(str(bookie.statistics()["bytes_kept"]))

    with index_copied(recording, home, snapshots):
        kept = asyncio.run(run())
    assert kept > 50_000, "most bytes were written once"


class Written:
    """Waits for records on the journal's own thread."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def on_durable(self, tokens: list[Any], error: BookieStorageError | None) -> None:
        assert error is None
        self.done.set()


def open_image(config: BookieConfig) -> BookieStorage:
    opened = open_storage(RealDisk(), config, [])
    start_journals(opened.storage.disk, opened, JournalPorts(lambda call: call(), _fail))
    return opened.storage


def _fail(error: BaseException) -> None:
    raise error


def write_more(storage: BookieStorage) -> None:
    """Go on as a bookie does after its start: journals take the files that are free, and another flush follows."""
    for ledger_id in range(OTHER_LEDGER, OTHER_LEDGER + len(storage.journals)):
        for entry_id in range(OTHER_ENTRIES):
            data = entry_bytes(ledger_id, entry_id, bytes(3000))
            storage.add(ledger_id, entry_id, entry_id - 1, data, is_recovery=False)
            written = Written()
            items: list[JournalItem] = [(1, data, written, None)]
            storage.journal_of(ledger_id).append(items, len(data))
            assert written.done.wait(60)
    storage.flush_now(moves_mark=True)
    storage.recycle_journals(storage._mark)  # type: ignore[arg-type]


def cut_everywhere(
    config: BookieConfig,
    home: Path,
    snapshots: Path,
    images: int,
    mode: str | None = None,
    *,
    payload_of: Callable[[random.Random, int], bytes] = random.Random.randbytes,
) -> Recording:
    recording = Recording(RecordingDisk(), payload_of=payload_of)
    record(config, home, recording, snapshots)
    served_from = next(n for n, step in enumerate(recording.disk.log) if step[0] == "index")
    check_cuts(recording, config, home, served_from, images, random.Random(SEED), mode)
    return recording


def check_cuts(
    recording: Recording,
    config: BookieConfig,
    home: Path,
    served_from: int,
    images: int,
    chance: random.Random,
    mode: str | None = None,
) -> None:
    """Cut the power at steps after ``served_from``, and check what a bookie that starts then has and goes on with."""
    log = recording.disk.log
    points = [n for n in cut_points(log) if n > served_from]
    for number, steps in enumerate(sorted(chance.sample(points, min(len(points), images)))):
        how = mode or ("torn", "lost", "kept", "lost")[number % 4]
        image = Image(log, steps, how, chance)
        image.write_to(home)
        assert image.index_snapshot is not None
        shutil.copytree(image.index_snapshot, home / "data" / "index")
        storage = open_image(config)
        try:
            check_all(storage, recording, steps)
            write_more(storage)
            check_all(storage, recording, steps)
        except BaseException as error:
            error.add_note(f"cut after step {steps} of {len(log)}, unsynced writes {how}")
            raise
        finally:
            storage.close()


def check_all(storage: BookieStorage, recording: Recording, steps: int) -> None:
    others = {
        (ledger_id, entry_id): bytes(3000)
        for ledger_id in range(OTHER_LEDGER, OTHER_LEDGER + len(storage.journals))
        for entry_id in range(OTHER_ENTRIES)
    }
    check(storage, replace(recording, sent={**recording.sent, **others}), steps)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("journals", [1, pytest.param(2, marks=pytest.mark.full)])
def test_every_cut_keeps_what_was_written_once(journals: int) -> None:  # I1, I4
    with quick_folder() as folder:
        home = folder / "home"
        cut_everywhere(config_for(home, journals), home, folder / "snapshots", IMAGES_MAX)


Sabotage = Callable[[], AbstractContextManager[None]]


@contextmanager
def index_before_the_sync() -> Iterator[None]:
    """Places are known before the batch is durable: rows point to what a power cut takes (I1)."""
    commit, note = Journal._commit, Journal._note_places

    def early(self: Journal, items: list[JournalItem], size: int, *, is_on_loop: bool) -> BookieStorageError | None:
        if self._offset + size <= self._file_bytes:  # else it goes to another file
            note(self, items)
        NO_CHECKPOINT_BESIDE.wait(60)
        return commit(self, items, size, is_on_loop=is_on_loop)

    def at_once(self: Journal) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        loop.call_later(0.001, future.set_result, None)
        return future

    with (
        patch.object(Journal, "_commit", early),
        patch.object(Journal, "_note_places", lambda *_: None),
        patch.object(Journal, "caught_up", at_once),
    ):
        yield


@contextmanager
def recycle_what_rows_point_to() -> Iterator[None]:
    """A kept journal file is used again (I1)."""
    recycle = JournalFiles.recycle_below

    def forgetful(self: JournalFiles, file_id: int, kept: Any = ()) -> int:
        with patch.object(RealDisk, "names_of", lambda *_: 1):
            return recycle(self, file_id)

    with patch.object(JournalFiles, "recycle_below", forgetful):
        yield


@contextmanager
def forget_a_ledger() -> Iterator[None]:
    """The flush leaves a ledger in the journal file and writes no rows for it (I1)."""
    flush: Any = DataDirectory.flush

    def forgetful(self: DataDirectory, *arguments: Any) -> int:
        *others, kept = arguments
        return int(flush(self, *others, [run for run in kept if run.ledger_id != 3]))

    with patch.object(DataDirectory, "flush", forgetful):
        yield


@contextmanager
def rows_with_wrong_offsets() -> Iterator[None]:
    """Rows name the place of the record's header instead of the entry's (I1)."""
    real = kept_log._run

    def wrong(ledger_id: int, row: Any) -> Any:
        run = real(ledger_id, row)
        return replace(run, offset=run.offset - 28)

    with patch.object(kept_log, "_run", wrong):
        yield


@contextmanager
def second_name_is_not_durable() -> Iterator[None]:
    """The index names a log whose name a power cut takes, and the mark passes its first name (I1)."""
    keep = KeptLogs.keep

    def hasty(self: KeptLogs, journal_file: Path) -> int | None:
        with patch.object(type(self._disk), "sync_directory", lambda *_: None):
            return keep(self, journal_file)

    with patch.object(KeptLogs, "keep", hasty):
        yield


@contextmanager
def cut_off_too_much() -> Iterator[None]:
    """A file that becomes a log loses its last batch (I1)."""
    release = KeptLogs.release

    def greedy(self: KeptLogs, journal_file: Path, end: int | None) -> None:
        release(self, journal_file, None if end is None else end - 8192)

    with patch.object(KeptLogs, "release", greedy):
        yield


@contextmanager
def mark_passes_unknown_places() -> Iterator[None]:
    """Entries whose place is not known are left out of the flush, instead of being copied (I1)."""
    real = BookieStorage._keep

    def hopeful(self: BookieStorage, half: Any, ledger_ids: Any, number: int) -> Any:
        kept = real(self, half, ledger_ids, number)
        for ledger_id in ledger_ids:
            entries = half.ledgers[ledger_id]
            for entry_id in [n for n, data in entries.items() if len(data) >= KEPT_BYTES and n % 7 == 6]:
                del entries[entry_id]
        return kept

    with patch.object(BookieStorage, "_keep", hopeful):
        yield


SHORT = ("forget a ledger", "rows with wrong offsets", "cut off too much", "recycle what rows point to")
SABOTAGES: dict[str, tuple[Sabotage, str | None]] = {
    "index before the sync": (index_before_the_sync, "lost"),
    "recycle what rows point to": (recycle_what_rows_point_to, None),
    "forget a ledger": (forget_a_ledger, None),
    "rows with wrong offsets": (rows_with_wrong_offsets, None),
    "second name is not durable": (second_name_is_not_durable, "lost"),
    "cut off too much": (cut_off_too_much, None),
    "mark passes unknown places": (mark_passes_unknown_places, None),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.full) for name in SABOTAGES]
)
def test_each_sabotage_is_caught(name: str) -> None:
    sabotage, mode = SABOTAGES[name]
    with quick_folder() as folder, sabotage():
        home = folder / "home"
        config = config_for(home, journal_loop_sync_us=0)
        with pytest.raises((AssertionError, EntryDamagedError, BookieStorageError)):
            cut_everywhere(config, home, folder / "snapshots", 10_000, mode)
