"""ENOSPC and EIO at every write and sync, one at a time: no acknowledgement is lost, and a clean disk recovers."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import READ_BATCH_BYTES_MAX, BookieConfig
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.entry_log import log_ids
from heliograph.actors.bookie.store.index import IndexBatch, LocationIndex
from heliograph.actors.bookie.store.payloads import PART_BYTES
from heliograph.actors.errors import BookieStorageError, DiskPoisonedError
from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_metadata import stored_bytes
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config
from tests.unit.bookie.disks import FaultyDisk

STEPS = 12
LEDGERS = (1, 2, 3)
WRITTEN_ONCE_BYTES = 1_000  # entries of this size stay in their journal file
EVERY = 2  # the others, and every one of them with each error: python -m tests.chaos.bookie_faults


class Run:
    """What the client was told."""

    def __init__(self) -> None:
        self.acknowledged: set[tuple[int, int]] = set()
        self.fenced: set[int] = set()


def payload(ledger_id: int, entry_id: int) -> bytes:
    return b"%d:%d " % (ledger_id, entry_id) * 300


async def add_all(run: Run, peer: BookiePeer, entry_id: int) -> None:
    answers = await asyncio.gather(*(peer.add(n, entry_id, payload(n, entry_id)) for n in LEDGERS))
    for ledger_id, (answer, _) in zip(LEDGERS, answers, strict=True):
        if answer.status is Status.OK:
            run.acknowledged.add((ledger_id, entry_id))


async def work(run: Run, home: Path, disk: FaultyDisk, single_write_bytes: int = 0) -> Bookie | None:
    """Adds, fences and checkpoints until the end or the failure, whichever is first."""
    bookie = Bookie(config_for(home, single_write_bytes), None, disk=disk)
    try:
        await bookie.start()
    except BookieStorageError:
        return None
    try:
        peer = await BookiePeer.connect(bookie.address)
        for entry_id in range(STEPS):
            await add_all(run, peer, entry_id)
            if entry_id % 4 == 1:
                fenced = 100 + entry_id
                if await peer.status(BookieOp.READ, fenced, 0, flags=Flag.FENCE) is Status.NO_LEDGER:
                    run.fenced.add(fenced)
            if entry_id % 3 == 2:
                try:
                    await bookie.checkpoint()
                except DiskPoisonedError as error:
                    bookie.fail(error)
                except BookieStorageError:
                    await bookie.checkpoint()  # the fault was one write: the same checkpoint goes through now
        peer.close()
    except (ConnectionError, DiskPoisonedError):
        assert bookie.failure is not None, "only a failed sync or journal ends the service"
        assert disk.failed
    finally:
        await bookie.stop()
    return bookie


def config_for(home: Path, single_write_bytes: int = 0) -> BookieConfig:
    return small_config(
        home, journal_file_bytes=16 << 10, entry_log_bytes=8 << 10, single_write_bytes=single_write_bytes
    )


async def check(run: Run, home: Path, single_write_bytes: int = 0) -> None:
    async with serving(config_for(home, single_write_bytes), disk=RealDisk()) as (_, peer):
        for ledger_id, entry_id in run.acknowledged:
            answer, body = await peer.call(BookieOp.READ, ledger_id, entry_id)
            assert answer.status is Status.OK  # I1
            assert decode_entry(body).payload == payload(ledger_id, entry_id)
        for ledger_id in run.fenced:
            assert (await peer.add(ledger_id, 0, b"late"))[0].status is Status.FENCED  # I4
        await add_all(run, peer, 1000)
        assert (1, 1000) in run.acknowledged, "it serves again"


def operations(home: Path, single_write_bytes: int) -> int:
    disk = FaultyDisk(1 << 30)
    asyncio.run(work(Run(), home, disk, single_write_bytes))
    return (1 << 30) - disk.countdown


def fail_each(number: int, every: int, single_write_bytes: int = 0, first: int = 1) -> list[str]:
    """Play the run again and again, each time with another operation failing; returns which failed.

    Raises:
        AssertionError: something acknowledged was lost; a note says after which failure.
    """
    failed: list[str] = []
    with quick_folder() as folder:
        total = operations(folder / "count", single_write_bytes)
        for countdown in range(first, total + 1, every):
            home = folder / str(countdown)
            run, disk = Run(), FaultyDisk(countdown, number)
            asyncio.run(work(run, home, disk, single_write_bytes))
            failed.append(disk.failed)
            try:
                asyncio.run(check(run, home, single_write_bytes))
            except AssertionError as error:
                error.add_note(f"operation {countdown} failed: {disk.failed}, {errno.errorcode[number]}")
                raise
            shutil.rmtree(home)
    return failed


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_one_failed_operation_loses_nothing(number: int) -> None:
    failed = fail_each(number, EVERY)
    assert len(failed) > 60 // EVERY
    assert {what.split(" ")[0] for what in failed} >= {"write", "sync", "create", "rename"}


@pytest.mark.timeout(600)
def test_one_failed_operation_loses_nothing_that_is_written_once() -> None:
    failed: set[str] = set()
    for first in range(1, 2 * EVERY + 1):  # there are few links, so a round may miss them
        failed |= {what.split(" ")[0] for what in fail_each(errno.EIO, 2 * EVERY, WRITTEN_ONCE_BYTES, first)}
        if "link" in failed:
            break
    assert "link" in failed


async def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path: Path) -> None:  # D6
    disk = FaultyDisk(1 << 30)
    told: list[BaseException] = []
    async with serving(small_config(tmp_path), disk=disk, on_failure=told.append) as (bookie, peer):
        assert (await peer.add(1, 0, b"safe"))[0].status is Status.OK
        disk.countdown = 2  # the sync of the next batch
        adds = [peer.add(1, n, b"lost") for n in range(1, 4)]
        outcomes = await asyncio.gather(*adds, return_exceptions=True)
        assert all(isinstance(outcome, ConnectionResetError) for outcome in outcomes)
        assert isinstance(bookie.failure, DiskPoisonedError)
        assert told == [bookie.failure]
        with pytest.raises(ConnectionError):
            await BookiePeer.connect(bookie.address)


async def test_a_failed_index_batch_is_tried_again_and_no_mark_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed flush, adds after it, a good checkpoint, a crash: the entries of the failed one are there."""
    commit = LocationIndex.commit
    failures = [True, True, False]

    def sometimes(index: LocationIndex, batch: IndexBatch) -> None:
        if failures and failures.pop(0):
            raise BookieStorageError("injected")
        commit(index, batch)

    async with serving(small_config(tmp_path)) as (bookie, peer):
        run = Run()
        await add_all(run, peer, 0)
        monkeypatch.setattr(LocationIndex, "commit", sometimes)
        for entry_id in (1, 2):
            with pytest.raises(BookieStorageError, match="injected"):
                await bookie.checkpoint()
            await add_all(run, peer, entry_id)
        await bookie.checkpoint()
        await bookie.checkpoint()
        for ledger_id in LEDGERS:
            for entry_id in range(3):
                assert await peer.status(BookieOp.READ, ledger_id, entry_id) is Status.OK  # I1
        logs = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.log"))
        assert logs < 6 * 3 * 3 * 2000, "failed flushes do not pile up on the disk"


async def test_an_index_that_fails_is_a_storage_error_and_no_absence(tmp_path: Path) -> None:  # I6
    class Broken:
        def iter(self) -> None:
            raise Exception("IO error: injected")  # rocksdict raises bare ones

        def close(self) -> None:
            raise Exception("IO error: injected")

    async with serving(small_config(tmp_path, read_cache_bytes=0)) as (bookie, peer):
        run = Run()
        await add_all(run, peer, 0)
        await bookie.checkpoint()
        assert bookie._opened is not None
        index = bookie._opened.storage.directories[0].index
        sound, index._db = index._db, Broken()
        for op in (BookieOp.READ, BookieOp.READ_BATCH, BookieOp.LIST_ENTRIES):
            answer, _ = await peer.call(op, 1, 0)
            assert answer.status is Status.STORAGE_ERROR
            assert "IO error: injected" in answer.text
        answer, body = await peer.call(BookieOp.READ_LAC, 1, 0)
        assert (answer.status, len(body)) == (Status.OK, 0), "what it knows without the entry"
        assert await peer.status(BookieOp.READ, 1, 5) is Status.STORAGE_ERROR, "whether it is there cannot be known"
        assert bookie.statistics()["disk_reads_failed"] == 5
        await add_all(run, peer, 1)
        assert (1, 1) in run.acknowledged, "adds need the journal only"
        index._db = sound
        assert await peer.status(BookieOp.READ, 1, 0) is Status.OK


class OutOfFiles(RealDisk):
    """Opens no journal file that is made ready: the process has all the files open that it may."""

    refusals = 0

    def raw_open(self, path: Path, create: bool) -> int:
        if self.refusals and path.suffix == ".journal" and not create:
            self.refusals -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().raw_open(path, create)


async def test_a_journal_file_that_could_not_be_opened_leaves_no_gap(tmp_path: Path) -> None:  # I1
    run, disk = Run(), OutOfFiles()
    config = small_config(tmp_path, journal_file_bytes=16 << 10, entry_log_bytes=8 << 10)
    async with serving(config, disk=disk) as (bookie, peer):
        disk.refusals = 2
        for entry_id in range(STEPS):
            await add_all(run, peer, entry_id)
        assert disk.refusals == 0
        assert 0 < len(run.acknowledged) < STEPS * len(LEDGERS)
        bookie.fail(BookieStorageError("the end, without a checkpoint"))
    await check(run, tmp_path)


async def test_a_list_names_nothing_that_the_journal_refused(tmp_path: Path) -> None:  # I10
    class NoRoom(RealDisk):
        is_full = False

        def raw_open(self, path: Path, create: bool) -> int:
            if self.is_full and path.suffix == ".draft":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().raw_open(path, create)

    async def listed(peer: BookiePeer) -> set[int]:
        answer, body = await peer.call(BookieOp.LIST_ENTRIES, 1)
        assert answer.status is Status.OK
        return {entry_id for first, last in msgpack.unpackb(body) for entry_id in range(first, last + 1)}

    disk = NoRoom()
    config = small_config(tmp_path, journal_file_bytes=16 << 10)
    async with serving(config, disk=disk) as (bookie, peer):
        disk.is_full = True
        entry_id = 0
        while (answer := (await peer.add(1, entry_id, bytes(3000)))[0]).status is Status.OK:
            entry_id += 1
        assert answer.status is Status.STORAGE_ERROR
        disk.is_full = False
        assert entry_id not in await listed(peer), "after a crash now it would not be there"
        await bookie.checkpoint()
        assert await listed(peer) == set(range(entry_id + 1)), "now it is"
        assert (await peer.add(1, entry_id + 1, bytes(3000)))[0].status is Status.OK
        assert await listed(peer) == set(range(entry_id + 2))


@pytest.mark.parametrize("part", ["index", "entry log"])
async def test_a_flush_that_fails_again_and_again_does_not_fill_the_disk(  # I1
    tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HalfWritten(RealDisk):
        is_failing = False

        def raw_write(self, fd: int, path: Path, data: bytes | memoryview, offset: int) -> int:
            if self.is_failing and part == "entry log" and path.suffix == ".log":
                super().raw_write(fd, path, data[: len(data) // 2], offset)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().raw_write(fd, path, data, offset)

    disk = HalfWritten()
    commit = LocationIndex.commit

    def may_fail(index: LocationIndex, batch: IndexBatch) -> None:
        if disk.is_failing and part == "index":
            raise BookieStorageError("the index cannot be written")
        commit(index, batch)

    monkeypatch.setattr(LocationIndex, "commit", may_fail)
    config = small_config(tmp_path, entry_log_bytes=4 << 20)
    async with serving(config, disk=disk) as (bookie, peer):
        for entry_id in range(20):
            assert (await peer.add(1, entry_id, payload(1, entry_id)))[0].status is Status.OK
        size = 20 * len(payload(1, 10))
        disk.is_failing = True
        for _ in range(20):
            with pytest.raises(BookieStorageError):
                await bookie.checkpoint()
        assert stored_bytes(config) < 3 * size
        await bookie.collect_garbage()  # which must not take a log whose rows are still to come
        disk.is_failing = False
        await bookie.checkpoint()
        assert stored_bytes(config) < 3 * size
    async with serving(small_config(tmp_path, read_cache_bytes=0)) as (_, peer):
        for entry_id in range(20):
            answer, body = await peer.call(BookieOp.READ, 1, entry_id)
            assert answer.status is Status.OK
            assert decode_entry(body).payload == payload(1, entry_id)


async def test_a_mark_waits_for_every_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # I1
    run, commit = Run(), LocationIndex.commit
    config = small_config(tmp_path, data_directories=(tmp_path / "d0", tmp_path / "d1", tmp_path / "d2"))

    def may_fail(index: LocationIndex, batch: IndexBatch) -> None:
        if index._directory.parent.name == broken:
            raise BookieStorageError("the index cannot be written")
        commit(index, batch)

    broken = ""
    monkeypatch.setattr(LocationIndex, "commit", may_fail)
    for part in range(3):
        async with serving(config) as (bookie, peer):
            await add_all(run, peer, part)
            broken = f"d{part}"
            with pytest.raises(BookieStorageError):
                await bookie.checkpoint()
            assert len(run.acknowledged) == len(LEDGERS) * (part + 1)
            bookie.fail(BookieStorageError("the end, without a checkpoint"))
            broken = ""
        async with serving(config) as (_, peer):
            for ledger_id, entry_id in run.acknowledged:
                assert await peer.status(BookieOp.READ, ledger_id, entry_id) is Status.OK


def test_a_disk_whose_sync_failed_takes_nothing_more(tmp_path: Path) -> None:  # D6
    disk = FaultyDisk(1 << 30)
    file = disk.open(tmp_path / "a", create=True)
    disk.countdown = 1
    with pytest.raises(DiskPoisonedError):
        file.sync()
    operations: list[Callable[[], object]] = [
        lambda: file.write_at(0, b"x"),
        file.sync,
        lambda: file.truncate(0),
        lambda: disk.open(tmp_path / "b", create=True),
        lambda: disk.rename(tmp_path / "a", tmp_path / "b"),
        lambda: disk.remove(tmp_path / "a"),
        lambda: disk.sync_directory(tmp_path),
    ]
    for operation in operations:
        with pytest.raises(DiskPoisonedError):
            operation()
    assert disk.names(tmp_path) == ["a"]
    file.close()


def test_what_is_flushed_and_not_indexed_yet_is_kept_and_loses_what_is_deleted(tmp_path: Path) -> None:  # I1, I14
    def entries(ledger_id: int) -> tuple[int, list[tuple[int, bytes]]]:
        return ledger_id, [(n, entry_bytes(ledger_id, n, payload(ledger_id, n))) for n in range(5)]

    directory = DataDirectory(RealDisk(), tmp_path, 8 << 10, 1 << 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocationIndex, "commit", lambda *_: (_ for _ in ()).throw(BookieStorageError("not now")))
        for _ in range(2):
            with pytest.raises(BookieStorageError):
                directory.flush([entries(n) for n in (1, 2, 3)], [], 7)
    logs = log_ids(RealDisk(), tmp_path)
    for log_id in logs:
        directory.remove_log_if_dead(log_id)
    assert log_ids(RealDisk(), tmp_path) == logs
    directory.flush([entries(n) for n in (1, 3)], [], 7, [2])
    assert [list(directory.index.runs(n)) == [] for n in (1, 2, 3)] == [False, True, False]
    directory.flush([entries(n) for n in (4,)], [], 8)
    for ledger_id in (1, 3, 4):
        assert [n for n, _ in directory.read(ledger_id, 0, 9, 1 << 20)] == [0, 1, 2, 3, 4]
    directory.close()


@contextmanager
def no_more_files() -> Iterator[None]:
    """The kernel refuses to open anything for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # of which all are open
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_bookie_that_may_open_no_file_more_lives_on(tmp_path: Path) -> None:
    async def add_until_refused(peer: BookiePeer, entry_id: int) -> int:
        while (await peer.add(1, entry_id, bytes(3000)))[0].status is Status.OK:
            entry_id += 1
        return entry_id

    async with serving(small_config(tmp_path, journal_file_bytes=16 << 10)) as (bookie, peer):
        for _ in range(4):  # with spare files, which are there to be renamed
            for entry_id in range(24):
                assert (await peer.add(2, entry_id, bytes(3000)))[0].status is Status.OK
            await bookie.checkpoint()
        assert list((tmp_path / "journal").glob("*.spare"))
        answer, body = await peer.call(BookieOp.READ_BATCH, 2, 0, last_entry_id=1)
        with no_more_files():
            answer, body = await peer.call(BookieOp.READ_BATCH, 2, 0, limit=READ_BATCH_BYTES_MAX)
            assert answer.status is Status.OK, "what is open goes on"
            assert len(body) > PART_BYTES
            entry_id = await add_until_refused(peer, 0)
        assert (await peer.add(1, entry_id, bytes(3000)))[0].status is Status.OK
        assert bookie.failure is None
        await bookie.checkpoint()
