"""Entries that are written once: which stay in journal files, how they are read, and how such files go."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.store.checkpoint import KEPT_VERSION, PLAIN_VERSION, decode_mark
from heliograph.actors.bookie.store.entry_log import KEPT_ID_LEAST, log_ids, log_path, read_map
from heliograph.actors.bookie.store.index import LocationIndex
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.bookie.tools import copying, inspect
from heliograph.actors.bookie.tools.copying import LocalSource
from heliograph.actors.bookie.tools.offline import find_folders
from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from tests.cluster.support.bookie_metadata import make_ledger
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config

SETTINGS: dict[str, Any] = {
    "single_write_bytes": 2_000,
    "read_cache_bytes": 0,
    "compaction_headroom_bytes": 0,
    "journal_file_bytes": 64 << 10,
}
ENTRIES = 60  # of a ledger: five journal files
LARGE = 5_000


class TwoFileSystems(RealDisk):
    """The journal and the data are on different disks."""

    def raw_link(self, source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


def payload(ledger_id: int, entry_id: int, size: int = LARGE) -> bytes:
    return (b"%d:%d " % (ledger_id, entry_id) * size)[:size]


async def fill(bookie: Bookie, peer: BookiePeer, ledgers: tuple[int, ...], entries: range = range(ENTRIES)) -> None:
    for start in range(entries.start, entries.stop, 10):
        adds = [peer.add(ledger, n, payload(ledger, n)) for n in range(start, start + 10) for ledger in ledgers]
        assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}
        await bookie.checkpoint()


async def check(peer: BookiePeer, ledger_id: int, count: int = ENTRIES) -> None:
    """Read all entries, one by one and in batches."""
    for entry_id in range(count):
        answer, body = await peer.call(BookieOp.READ, ledger_id, entry_id)
        assert answer.status is Status.OK  # I1
        assert decode_entry(body).payload == payload(ledger_id, entry_id)
    entry_id = 0
    while entry_id < count:
        answer, body = await peer.call(
            BookieOp.READ_BATCH, ledger_id, entry_id, last_entry_id=count - 1, limit=64 << 10
        )
        assert answer.status is Status.OK
        while body:
            size = int.from_bytes(body[:4], "big")
            entry = decode_entry(body[4 : 4 + size])
            assert (entry.entry_id, bytes(entry.payload)) == (entry_id, payload(ledger_id, entry_id))
            body, entry_id = body[4 + size :], entry_id + 1


def storage_of(bookie: Bookie) -> BookieStorage:
    assert bookie._opened is not None
    return bookie._opened.storage


def figure(bookie: Bookie, name: str) -> int:
    return int(str(bookie.statistics()[name]))


def kept_in(home: Path) -> list[int]:
    return [log_id for log_id in log_ids(RealDisk(), home / "data") if log_id >= KEPT_ID_LEAST]


def mark_version(home: Path) -> int:
    return decode_mark((home / "data" / "mark").read_bytes(), "mark").version


async def test_large_entries_are_written_once_and_small_ones_beside_them_are_copied(tmp_path: Path) -> None:  # I1
    config = small_config(tmp_path, **SETTINGS)
    async with serving(config) as (bookie, peer):
        await fill(bookie, peer, (1, 2))
        for entry_id in range(20):
            assert (await peer.add(3, entry_id, payload(3, entry_id, 500)))[0].status is Status.OK
        await fill(bookie, peer, (1, 2), range(ENTRIES, ENTRIES + 10))
        assert figure(bookie, "bytes_kept") > 2 * ENTRIES * LARGE
        assert 20 * 500 <= figure(bookie, "bytes_flushed") < 20 * 700
        assert figure(bookie, "kept_logs") == len(kept_in(tmp_path)) > 5
        in_use = {path.name for path in (tmp_path / "journal").glob("*.journal")}
        assert len(in_use) < 5, "those that the mark has passed have one name"
        await check(peer, 1, ENTRIES + 10)
        await check(peer, 2)
    assert mark_version(tmp_path) == KEPT_VERSION
    async with serving(config) as (bookie, peer):
        await check(peer, 1, ENTRIES + 10)
        await check(peer, 2)
        _, body = await peer.call(BookieOp.READ, 3, 7)
        assert decode_entry(body).payload == payload(3, 7, 500)
        spares = [path.stat().st_nlink for path in (tmp_path / "journal").glob("*.spare")]
        assert set(spares) <= {1}, "no kept file is used again"


async def test_a_flush_of_mostly_small_entries_keeps_no_file(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path, **SETTINGS)) as (bookie, peer):
        for entry_id in range(100):
            adds = [peer.add(1, entry_id, payload(1, entry_id, 1_900))]
            if entry_id % 10 == 0:
                adds.append(peer.add(2, entry_id // 10, payload(2, entry_id // 10)))
            assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}
            if entry_id % 20 == 19:
                await bookie.checkpoint()
        assert bookie.statistics()["kept_logs"] == bookie.statistics()["bytes_kept"] == 0
        assert list((tmp_path / "journal").glob("*.spare")), "journal files are used again"
        await check(peer, 2, 10)
    assert mark_version(tmp_path) == PLAIN_VERSION


async def test_nothing_is_kept_where_the_journal_is_on_another_file_system(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path, **SETTINGS), disk=TwoFileSystems()) as (bookie, peer):
        await fill(bookie, peer, (1,))
        assert bookie.statistics()["kept_logs"] == bookie.statistics()["bytes_kept"] == 0
        assert figure(bookie, "bytes_flushed") > ENTRIES * LARGE
        assert sum(1 for _ in (tmp_path / "journal").iterdir()) < 10, "the journal's disk does not fill"
        await check(peer, 1)


async def test_each_journal_has_one_data_directory_that_keeps_its_files(tmp_path: Path) -> None:  # I1
    config = small_config(
        tmp_path,
        journal_directories=(tmp_path / "j0", tmp_path / "j1"),
        data_directories=(tmp_path / "d0", tmp_path / "d1", tmp_path / "d2"),
        **SETTINGS,
    )
    ledgers = tuple(range(1, 7))  # of which 1 and 6 are of a journal and its directory
    async with serving(config) as (bookie, peer):
        await fill(bookie, peer, ledgers)
        directories = storage_of(bookie).directories
        kept = {run.ledger_id for directory in directories for run in directory.index.all_runs() if run.is_kept}
        assert kept == {1, 6}
        assert not directories[2].kept
        for ledger_id in ledgers:
            await check(peer, ledger_id)
        bookie.fail(RuntimeError("as a crash"))
    async with serving(config) as (bookie, peer):
        await fill(bookie, peer, (7,))
        for ledger_id in ledgers:
            await check(peer, ledger_id)


async def test_a_scrub_reads_kept_files(tmp_path: Path) -> None:  # I6
    async with serving(small_config(tmp_path, scrub_bytes_per_second=1 << 30, **SETTINGS)) as (bookie, peer):
        await fill(bookie, peer, (1,))
        assert await bookie.scrub() == 0
        assert figure(bookie, "scrub_entries") == ENTRIES
        path = log_path(tmp_path / "data", kept_in(tmp_path)[0])
        with path.open("r+b") as file:
            file.seek(10_000)
            file.write(b"damage")
        await bookie.scrub()
        assert figure(bookie, "scrub_damaged_entries") == 1


async def test_entries_that_the_journal_did_not_place_in_time_are_copied(tmp_path: Path) -> None:  # I1
    async with serving(small_config(tmp_path, **SETTINGS)) as (bookie, peer):
        with patch.object(type(storage_of(bookie).journals[0]), "take_notes", lambda _: []):
            await fill(bookie, peer, (1,))
        assert bookie.statistics()["bytes_kept"] == 0
        await check(peer, 1)
        # An entry that is added again before its flush: the copy in the cache counts.
        for _ in range(2):
            assert (await peer.add(1, ENTRIES, payload(1, ENTRIES)))[0].status is Status.OK
        await bookie.checkpoint()
        await check(peer, 1, ENTRIES + 1)


async def test_a_kept_file_goes_when_it_is_dead_and_not_before(tmp_path: Path) -> None:  # I14
    store = MemoryServer().open_session()
    for ledger_id in (1, 2):
        await make_ledger(store, ledger_id, ("b1", "b2"))
    async with serving(small_config(tmp_path, **SETTINGS), store) as (bookie, peer):
        await fill(bookie, peer, (1,))
        await store.delete(paths.ledger(1))
        await bookie.collect_garbage()
        left = kept_in(tmp_path)
        assert 1 <= len(left) <= 2, "the journal goes on in these"
        await fill(bookie, peer, (2,))
        await check(peer, 2)
        await bookie.collect_garbage()
        await check(peer, 2)
        assert not set(left) & set(kept_in(tmp_path)) - storage_of(bookie).directories[0].kept.in_use


async def test_compaction_finds_the_ledgers_of_a_kept_file_in_its_map(tmp_path: Path) -> None:  # I1
    store = MemoryServer().open_session()
    for ledger_id in (1, 2):
        await make_ledger(store, ledger_id, ("b1", "b2"))
    async with serving(small_config(tmp_path, **SETTINGS), store) as (bookie, peer):
        await fill(bookie, peer, (1, 2))
        await fill(bookie, peer, (3,))
        await store.delete(paths.ledger(1))
        directory = storage_of(bookie).directories[0]
        released = [log_id for log_id in kept_in(tmp_path) if log_id not in directory.kept.in_use]
        maps = [read_map(RealDisk(), tmp_path / "data", log_id) for log_id in released]
        assert len(maps) > 4
        assert {1, 2} <= {ledger_id for usage in maps for ledger_id in usage or ()}
        directory.old_logs()  # counts live bytes from the whole index, once
        with patch.object(LocationIndex, "all_runs", side_effect=AssertionError("the maps say it")):
            await bookie.collect_garbage()
        assert bookie.statistics()["logs_compacted"]
        assert len(kept_in(tmp_path)) < len(released)
        await check(peer, 2)


async def test_without_the_setting_kept_files_are_rewritten_and_the_mark_says_so(tmp_path: Path) -> None:
    async with serving(small_config(tmp_path, **SETTINGS)) as (bookie, peer):
        await fill(bookie, peer, (1, 2))
    assert mark_version(tmp_path) == KEPT_VERSION
    off = {**SETTINGS, "single_write_bytes": 0}
    async with serving(small_config(tmp_path, **off)) as (bookie, peer):
        assert bookie.statistics()["kept_logs"] != 0
        await bookie.collect_garbage()
        assert bookie.statistics()["kept_logs"] == 0
        assert kept_in(tmp_path) == []
        await check(peer, 1)
        await fill(bookie, peer, (3,))
        assert bookie.statistics()["bytes_kept"] == 0
    assert mark_version(tmp_path) == PLAIN_VERSION


async def test_tools_read_kept_files_with_and_without_a_map(tmp_path: Path) -> None:  # I6
    async with serving(small_config(tmp_path, **SETTINGS)) as (bookie, peer):
        await fill(bookie, peer, (1, 2))
    folders = find_folders([tmp_path])
    report = inspect.verify(folders.data, folders.journals)
    assert report.is_sound
    assert report.entries_checked == 2 * ENTRIES
    found = list(inspect.read_entries(folders.data, 2, 0, ENTRIES))
    assert [bytes(entry.payload) for entry in found] == [payload(2, n) for n in range(ENTRIES)]
    usage = inspect.list_logs(tmp_path / "data")
    assert sum(usage[log_id].get(1, 0) for log_id in kept_in(tmp_path)) > ENTRIES * LARGE
    maps = [read_map(RealDisk(), tmp_path / "data", log_id) for log_id in kept_in(tmp_path)]
    assert None in maps, "the journal ended in it"
    assert any(maps)
    path = log_path(tmp_path / "data", kept_in(tmp_path)[0])
    content = bytearray(path.read_bytes())
    content[10_000] ^= 0x40
    path.write_bytes(content)
    damaged = inspect.verify(folders.data, folders.journals).damaged
    assert len(damaged) == 1
    assert path.name in damaged[0]


async def test_a_copy_of_the_directories_serves_what_kept_files_hold(tmp_path: Path) -> None:  # I1
    home, target = tmp_path / "old", tmp_path / "new"
    config = small_config(home, **SETTINGS)
    async with serving(config) as (bookie, peer):
        await fill(bookie, peer, (1,))
        directories = [home / "journal", home / "data"]
        ahead = LocalSource(directories).finished()
        in_use = {log_path(home / "data", n).name for n in storage_of(bookie).directories[0].kept.in_use}
        names = {file.path for files in ahead for file in files}
        assert in_use
        assert not in_use & names, "the journal still writes to them"
        assert sum(name.endswith(".kept") for name in names) > 2
        bookie.fail(RuntimeError("as a crash"))
    copying.copy(LocalSource(directories), [target / "journal", target / "data"])
    moved = small_config(target, **SETTINGS)
    for _ in range(2):  # names that a copy took apart
        async with serving(moved) as (bookie, peer):
            await check(peer, 1)
            await fill(bookie, peer, (2,))
    async with serving(moved) as (bookie, peer):
        await check(peer, 1)
        await check(peer, 2)
