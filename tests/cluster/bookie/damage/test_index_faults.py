"""The index fails: RocksDB's own writes and reads, by injection at each of them and by the kernel's refusal.

No acknowledgement is lost, no absence is made up, no mark moves past what is not indexed, and the bookie goes on by
itself when the trouble is over.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.store import index as index_module
from heliograph.actors.bookie.store.checkpoint import newest_mark
from heliograph.actors.errors import BookieStorageError
from heliograph.actors.wire.messages import BookieOp, Status
from tests.cluster.bookie.damage.test_faults import Run, check, work
from tests.cluster.support.bookie_folders import quick_folder
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config
from tests.unit.bookie.disks import FaultyDisk

LEDGERS = 900  # rows enough that the index alone is above FILE_BYTES_MAX
FILE_BYTES_MAX = 32 << 10


class FaultyDb:
    """A RocksDB whose operations fail when a countdown says so.

    Each write counts twice: refused, and done but reported as failed. After a failure it refuses all, as RocksDB does.
    """

    def __init__(self, db: Any, countdown: FaultyDisk) -> None:
        self._db = db
        self._countdown = countdown
        self._is_broken = False

    def write(self, changes: Any, options: Any) -> None:
        if self._is_broken:
            raise Exception("IO error: Writer has previous error.")
        self._fail("index write")
        self._db.write(changes, options)
        self._fail("index reply")

    def iter(self) -> Any:
        self._fail("index read")
        return self._db.iter()

    def get(self, key: bytes) -> Any:
        self._fail("index read")
        return self._db.get(key)

    def close(self) -> None:
        self._db.close()

    def _fail(self, verb: str) -> None:
        try:
            self._countdown.count(verb)
        except OSError as error:
            self._is_broken = "read" not in verb
            raise Exception(f"IO error: {error}") from error  # rocksdict raises bare ones


@contextmanager
def faulty(countdown: FaultyDisk) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        real = index_module._open
        patch.setattr(index_module, "_open", lambda *arguments: FaultyDb(real(*arguments), countdown))
        yield


def play(home: Path, index: FaultyDisk) -> Run:
    """The run of the disk's faults with a sound disk; ``index`` counts what the index does."""
    run = Run()
    with faulty(index):
        asyncio.run(work(run, home, FaultyDisk(1 << 30)))
    return run


@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_one_failed_operation_of_the_index_loses_nothing(number: int) -> None:  # I1, I4
    with quick_folder() as folder:
        index = FaultyDisk(1 << 30, number)
        play(folder / "count", index)
        assert len(index.seen) > 12
        assert set(index.seen) == {"index read", "index write", "index reply"}
        for place in range(1, len(index.seen) + 1):
            home = folder / str(place)
            index = FaultyDisk(place, number)
            run = play(home, index)
            assert index.failed
            try:
                asyncio.run(check(run, home))
            except AssertionError as error:
                error.add_note(f"operation {place} failed: {index.failed}, {errno.errorcode[number]}")
                raise
            shutil.rmtree(home)


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """The kernel refuses to let any file of this process grow beyond: EFBIG, as real as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def add_to_each(peer: BookiePeer, entry_id: int) -> None:
    answers = await asyncio.gather(*(peer.add(n, entry_id, b"x") for n in range(LEDGERS)))
    assert {answer.status for answer, _ in answers} == {Status.OK}


async def read_from_each(peer: BookiePeer, entry_id: int) -> set[Status]:
    answers = await asyncio.gather(*(peer.call(BookieOp.READ, n, entry_id) for n in range(LEDGERS)))
    return {answer.status for answer, _ in answers}


async def test_rocksdb_that_could_not_write_goes_on_when_it_can_again(tmp_path: Path) -> None:  # I1, I6
    config = small_config(tmp_path, entry_log_bytes=16 << 10, read_cache_bytes=0)
    directories = list(config.data_directories)
    async with serving(config) as (bookie, peer):
        await add_to_each(peer, 0)
        await bookie.checkpoint()
        before = newest_mark(RealDisk(), directories)
        await add_to_each(peer, 1)
        with no_file_larger_than(FILE_BYTES_MAX):
            for _ in range(2):
                with pytest.raises(BookieStorageError, match="index"):
                    await bookie.checkpoint()
            assert newest_mark(RealDisk(), directories) == before, "the mark does not pass what is not indexed"
            assert await read_from_each(peer, 1) == {Status.OK}
        await bookie.checkpoint()
        assert newest_mark(RealDisk(), directories) != before
        assert await read_from_each(peer, 0) == await read_from_each(peer, 1) == {Status.OK}
    async with serving(config) as (_, peer):
        assert await read_from_each(peer, 0) == await read_from_each(peer, 1) == {Status.OK}


async def test_a_crash_while_rocksdb_cannot_write_is_replayed(tmp_path: Path) -> None:  # I1
    config = small_config(tmp_path / "a", entry_log_bytes=16 << 10)
    async with serving(config) as (bookie, peer):
        await add_to_each(peer, 0)
        with no_file_larger_than(FILE_BYTES_MAX), pytest.raises(BookieStorageError, match="index"):
            await bookie.checkpoint()
        shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("LOCK", "*.draft"))
    for path in (tmp_path / "b").glob("*/cookie"):
        os.remove(path)  # it names the directories
    with no_file_larger_than(FILE_BYTES_MAX), pytest.raises(BookieStorageError):
        await Bookie(small_config(tmp_path / "b", entry_log_bytes=16 << 10), None).start()
    async with serving(small_config(tmp_path / "b", entry_log_bytes=16 << 10)) as (_, peer):
        assert await read_from_each(peer, 0) == {Status.OK}
