"""Dead entry logs that journals use again: nothing of their old content comes back."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import JOURNAL_ADOPTED_FILES_MAX, BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal import scan
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.format import RECORD
from heliograph.actors.bookie.store.data_directory import LENGTH_BYTES, DataDirectory
from heliograph.actors.bookie.store.entry_log import log_path
from heliograph.actors.errors import BookieStorageError, EntryDamagedError, JournalCorruptError
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.store import MetadataStore
from tests.cluster.bookie.damage.test_crash_images import Recording, index_copied
from tests.cluster.bookie.damage.test_kept_logs import ENTRIES, SETTINGS, check, fill, kept_in, payload, storage_of
from tests.cluster.bookie.damage.test_single_write import check_cuts
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_metadata import make_ledger
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config
from tests.unit.bookie.disks import RecordingDisk

IMAGES_MAX = 6


def inodes(home: Path, pattern: str) -> set[int]:
    return {path.stat().st_ino for path in home.glob(pattern)}


def crashed(home: Path) -> Path:
    """Return a copy of what a crash now would leave, for a bookie without metadata."""
    target = home.parent / "crashed"
    for left in reversed(range(20)):
        try:
            shutil.copytree(home, target, ignore=shutil.ignore_patterns("LOCK", "cookie*"))
            break
        except shutil.Error:  # a file was renamed or deleted meanwhile: that is no picture of one moment
            if not left:
                raise
            shutil.rmtree(target)
    return target


async def with_dead_files(bookie: Bookie, peer: BookiePeer, store: MetadataStore) -> None:
    """Store ledger 1 in kept files, one batch an entry, and delete it."""
    for entry_id in range(ENTRIES):
        assert (await peer.add(1, entry_id, payload(1, entry_id)))[0].status is Status.OK
        if entry_id % 10 == 9:
            await bookie.checkpoint()
    await store.delete(paths.ledger(1))
    await bookie.collect_garbage()


async def open_store() -> MetadataStore:
    store = MemoryServer().open_session()
    for ledger_id in (1, 2):
        await make_ledger(store, ledger_id, ("b1", "b2"))
    return store


async def test_a_journal_writes_into_dead_files_again_and_serves_the_new_entries(tmp_path: Path) -> None:  # I1, I14
    store, config = await open_store(), small_config(tmp_path, **SETTINGS)
    async with serving(config, store) as (bookie, peer):
        await with_dead_files(bookie, peer, store)
        spares = inodes(tmp_path, "journal/*.spare")
        assert 3 <= len(spares) <= JOURNAL_ADOPTED_FILES_MAX
        assert not spares & inodes(tmp_path, "data/*.kept")
        await fill(bookie, peer, (2,))
        await check(peer, 2)
        used = inodes(tmp_path, "journal/*.journal") | inodes(tmp_path, "data/*.kept")
        assert len(spares & used) >= 3, "the journal went on in files that were logs"
        sizes = {path.stat().st_size for path in (tmp_path / "journal").glob("*.journal")}
        assert sizes == {config.journal_file_bytes}, "they have their full size again"
    async with serving(config, store) as (_, peer):
        await check(peer, 2)
        assert await peer.status(BookieOp.READ, 1, 0) is Status.NO_LEDGER


def ignoring_the_tag() -> Any:
    """Take records of any file for those of the one that is read."""
    read_record = scan._read_record

    def read(window: scan.ScanWindow, offset: int, tag: bytes) -> Any:
        if offset + RECORD.size <= window.size:
            tag = RECORD.unpack_from(window.view, window.at(offset, RECORD.size))[2]
        return read_record(window, offset, tag)

    return patch.object(scan, "_read_record", read)


@pytest.mark.parametrize("is_guarded", [True, False])
def test_a_crash_in_such_a_file_brings_no_old_entry_back(tmp_path: Path, is_guarded: bool) -> None:  # I1, I14
    """The records behind the new ones are sound, and as long as these: only their tag says that they are old."""
    home = tmp_path / "home"

    async def run() -> int:
        store = await open_store()
        async with serving(small_config(home, **SETTINGS), store) as (bookie, peer):
            await with_dead_files(bookie, peer, store)
            spares = inodes(home, "journal/*.spare")
            count = 0
            newest = home
            while newest.stat().st_ino not in spares or count % 12 > 8:
                assert (await peer.add(2, count, payload(2, count)))[0].status is Status.OK
                count += 1
                newest = max((home / "journal").glob("*.journal"))
            for _ in range(3):
                assert (await peer.add(2, count, payload(2, count)))[0].status is Status.OK
                count += 1
            crashed(home)
            return count

    async def look(count: int) -> None:
        async with serving(small_config(tmp_path / "crashed", **SETTINGS)) as (_, peer):
            await check(peer, 2, count)
            assert await peer.status(BookieOp.READ, 2, count) is Status.NO_ENTRY
            assert await peer.status(BookieOp.READ, 1, 0) is Status.NO_LEDGER

    count = asyncio.run(run())
    if is_guarded:
        asyncio.run(look(count))
        return
    with ignoring_the_tag(), pytest.raises(JournalCorruptError):  # old records pass for those of this file
        asyncio.run(look(count))


async def record(recording: Recording, config: BookieConfig) -> None:
    """Fill kept files, delete their ledger, and write others over them; only the latter have to survive a cut."""
    store = await open_store()
    async with serving(config, store, disk=recording.disk) as (bookie, peer):
        await with_dead_files(bookie, peer, store)
        for start in range(0, 2 * ENTRIES, 10):
            for entry_id in range(start, start + 10):
                await recording.add(peer, 2, entry_id, payload(2, entry_id))
            await bookie.checkpoint()
            if start == ENTRIES:
                await bookie.collect_garbage()


def cut_everywhere(images: int) -> None:
    with quick_folder() as folder:
        home = folder / "home"
        config = small_config(home, **SETTINGS)
        recording = Recording(RecordingDisk())
        with index_copied(recording, home, folder / "snapshots"):
            asyncio.run(record(recording, config))
        log = recording.disk.log
        adopted = next(n for n, step in enumerate(log) if step[0] == "rename" and step[1].suffix == ".kept")
        check_cuts(recording, config, home, adopted, images, random.Random(adopted))


@pytest.mark.parametrize("images", [IMAGES_MAX, pytest.param(60, marks=pytest.mark.full)])
def test_every_power_cut_keeps_what_was_written_over_dead_files(images: int) -> None:  # I1, I14
    cut_everywhere(images)


def test_the_adoption_of_files_that_rows_point_to_is_caught() -> None:
    caught = pytest.raises((AssertionError, EntryDamagedError, BookieStorageError))
    with patch.object(DataDirectory, "_live", lambda _: Counter()), caught:
        cut_everywhere(60)


@pytest.mark.parametrize("is_forged", [False, True])
async def test_a_read_that_meets_new_content_in_a_dead_file_looks_its_entry_up_again(  # I6, I19
    tmp_path: Path, is_forged: bool
) -> None:
    store = await open_store()
    async with serving(small_config(tmp_path, **SETTINGS), store) as (bookie, peer):
        await fill(bookie, peer, (1, 2))
        directory = storage_of(bookie).directories[0]
        run = next(run for run in directory.index.runs(2) if run.is_kept)
        directory.reader.read(run, run.first_entry_id, 1)  # it has the file open from now on
        path = log_path(directory.path, run.log_id)
        spare = path.with_name("spare")
        path.rename(spare)
        with spare.open("r+b") as file:
            file.write(os.urandom(spare.stat().st_size))
            if is_forged:  # by a client, whose entry has the ids of the one that is read
                file.seek(run.offset)
                size = run.sizes[0] - LENGTH_BYTES - ENTRY_HEADER_BYTES
                file.write(b"\1\0\0\0" + entry_bytes(2, run.first_entry_id, bytes(size)))
        with pytest.raises(FileNotFoundError):
            directory.reader.read(run, run.first_entry_id, 1)


def test_a_file_with_another_name_is_not_adopted_nor_are_more_than_the_bound(tmp_path: Path) -> None:  # I1, I15
    journal, data = tmp_path / "journal", tmp_path / "data"
    journal.mkdir()
    data.mkdir()
    files = JournalFiles(RealDisk(), journal, 64 << 10, 7)
    paths_ = [data / f"{number}" for number in range(JOURNAL_ADOPTED_FILES_MAX + 1)]
    for path in paths_:
        path.write_bytes(b"old")
    other = data / "other"
    other.hardlink_to(paths_[0])
    assert not files.adopt(paths_[0])
    other.unlink()
    assert [files.adopt(path) for path in paths_] == [True] * JOURNAL_ADOPTED_FILES_MAX + [False]
    assert [path.exists() for path in paths_] == [False] * JOURNAL_ADOPTED_FILES_MAX + [True]
    ready = files.make_ready()
    assert (ready.file_id, ready.file.size()) == (7, 64 << 10)
    ready.file.close()


async def test_where_no_file_is_adopted_dead_ones_go(tmp_path: Path) -> None:  # I14
    store = await open_store()
    with patch.object(JournalFiles, "adopt", lambda *_: False):
        async with serving(small_config(tmp_path, **SETTINGS), store) as (bookie, peer):
            await with_dead_files(bookie, peer, store)
            assert len(kept_in(tmp_path)) <= 2
            assert not inodes(tmp_path, "journal/*.spare")
