"""ENOSPC and EIO at every write and sync, one at a time: no acknowledgement is lost, and a clean disk recovers."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from actors.bookie.bookie import Bookie
from actors.bookie.disk import RealDisk
from actors.bookie.index import IndexBatch, LocationIndex
from actors.errors import BookieStorageError, DiskPoisonedError
from actors.wire.entry import decode_entry
from actors.wire.messages import Flag, Op, Status
from tests.cluster.bookie_folders import quick_folder
from tests.cluster.bookie_peer import BookiePeer, serving, small_config
from tests.unit.bookie_disks import FaultyDisk

STEPS = 12
LEDGERS = (1, 2, 3)
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


async def work(run: Run, home: Path, disk: FaultyDisk) -> Bookie | None:
    """Adds, fences and checkpoints until the end or the failure, whichever is first."""
    bookie = Bookie(small_config(home, journal_file_bytes=16 << 10, entry_log_bytes=8 << 10), None, disk=disk)
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
                if await peer.status(Op.READ, fenced, 0, flags=Flag.FENCE) is Status.NO_LEDGER:
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


async def check(run: Run, home: Path) -> None:
    config = small_config(home, journal_file_bytes=16 << 10, entry_log_bytes=8 << 10)
    async with serving(config, disk=RealDisk()) as (_, peer):
        for ledger_id, entry_id in run.acknowledged:
            answer, body = await peer.call(Op.READ, ledger_id, entry_id)
            assert answer.status is Status.OK  # I1
            assert decode_entry(body).payload == payload(ledger_id, entry_id)
        for ledger_id in run.fenced:
            assert (await peer.add(ledger_id, 0, b"late"))[0].status is Status.FENCED  # I4
        await add_all(run, peer, 1000)
        assert (1, 1000) in run.acknowledged, "it serves again"


def operations(home: Path) -> int:
    disk = FaultyDisk(1 << 30)
    asyncio.run(work(Run(), home, disk))
    return (1 << 30) - disk.countdown


def fail_each(number: int, every: int) -> list[str]:
    """Play the run again and again, each time with another operation failing; returns which failed.

    Raises:
        AssertionError: something acknowledged was lost; a note says after which failure.
    """
    failed: list[str] = []
    with quick_folder() as folder:
        total = operations(folder / "count")
        for countdown in range(1, total + 1, every):
            home = folder / str(countdown)
            run, disk = Run(), FaultyDisk(countdown, number)
            asyncio.run(work(run, home, disk))
            failed.append(disk.failed)
            try:
                asyncio.run(check(run, home))
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


def test_after_a_failed_sync_nothing_is_acknowledged(tmp_path: Path) -> None:  # D6
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_failed_index_batch_is_tried_again_and_no_mark_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed flush, adds after it, a good checkpoint, a crash: the entries of the failed one are there."""
    commit = LocationIndex.commit
    failures = [True, True, False]

    def sometimes(index: LocationIndex, batch: IndexBatch) -> None:
        if failures and failures.pop(0):
            raise BookieStorageError("injected")
        commit(index, batch)

    async def scenario() -> None:
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
                    assert await peer.status(Op.READ, ledger_id, entry_id) is Status.OK  # I1
            logs = sum(path.stat().st_size for path in (tmp_path / "data").glob("*.log"))
            assert logs < 6 * 3 * 3 * 2000, "failed flushes do not pile up on the disk"

    asyncio.run(scenario())


def test_an_index_that_fails_is_a_storage_error_and_no_absence(tmp_path: Path) -> None:  # I6
    class Broken:
        def iter(self) -> None:
            raise Exception("IO error: injected")  # rocksdict raises bare ones

        def close(self) -> None:
            raise Exception("IO error: injected")

    async def scenario() -> None:
        async with serving(small_config(tmp_path, read_cache_bytes=0)) as (bookie, peer):
            run = Run()
            await add_all(run, peer, 0)
            await bookie.checkpoint()
            assert bookie._opened is not None
            index = bookie._opened.storage.directories[0].index
            sound, index._db = index._db, Broken()
            for op in (Op.READ, Op.READ_BATCH, Op.LIST_ENTRIES):
                answer, _ = await peer.call(op, 1, 0)
                assert answer.status is Status.STORAGE_ERROR
                assert "IO error: injected" in answer.text
            answer, body = await peer.call(Op.READ_LAC, 1, 0)
            assert (answer.status, len(body)) == (Status.OK, 0), "what it knows without the entry"
            assert await peer.status(Op.READ, 1, 5) is Status.STORAGE_ERROR, "whether it is there cannot be known"
            assert bookie.statistics()["disk_reads_failed"] == 5
            await add_all(run, peer, 1)
            assert (1, 1) in run.acknowledged, "adds need the journal only"
            index._db = sound
            assert await peer.status(Op.READ, 1, 0) is Status.OK

    asyncio.run(scenario())
