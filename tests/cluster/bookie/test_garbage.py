"""A bookie deletes what metadata dropped, and compacts what is left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.disk.disk import DiskFile, RealDisk
from heliograph.actors.bookie.store.entry_log import log_ids
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import BookieStorageError, CookieMismatchError, DiskPoisonedError
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.backup.restore import LEDGER_ID_JUMP
from heliograph.metadata.errors import ConnectionLossError, NoNodeError
from heliograph.metadata.model import LedgerState
from heliograph.metadata.operator_records import RestoredMark
from heliograph.metadata.recipes.restored_mark import accept
from heliograph.metadata.store import Stat
from tests.cluster.bookie.damage.test_index_faults import faulty
from tests.cluster.support.bookie_metadata import fill, make_ledger, registration, stored_bytes, until
from tests.cluster.support.bookie_peer import serving, small_config
from tests.unit.bookie.disks import FaultyDisk


def storage_of(bookie: Bookie) -> BookieStorage:
    assert bookie._opened is not None, "it was started"
    return bookie._opened.storage


def copy_directories(home: Path, target: Path) -> None:
    """What a crash now would leave, for a bookie without metadata."""
    shutil.copytree(home, target, ignore=shutil.ignore_patterns("LOCK", "cookie*"))


class TestGarbage:
    async def test_ledgers_that_metadata_dropped_go_and_their_fences_stay(self, tmp_path: Path) -> None:  # I4, I14
        store = MemoryServer().open_session()
        for ledger_id in (1, 2):
            await make_ledger(store, ledger_id, ("b1", "b2"))
        async with serving(small_config(tmp_path), store) as (bookie, peer):
            for ledger_id in (1, 2):
                for number in range(30):
                    await peer.add(ledger_id, number, bytes(1000))
            await peer.status(BookieOp.READ_LAC, 1, flags=Flag.FENCE)
            await bookie.collect_garbage()
            assert bookie.statistics()["ledgers_deleted"] == 0
            await store.delete(paths.ledger(1))
            await bookie.collect_garbage()
            assert await peer.status(BookieOp.READ, 1, 0) is Status.NO_LEDGER
            for flags in (Flag.NONE, Flag.RECOVERY):
                assert (await peer.add(1, 99, b"late", flags=flags))[0].status is Status.FENCED
            await bookie.checkpoint()  # its entries were in the write cache still
            assert await peer.status(BookieOp.READ, 1, 0) is Status.NO_LEDGER
            assert await peer.status(BookieOp.READ, 2, 0) is Status.OK
        async with serving(small_config(tmp_path), store) as (_, peer):
            for flags in (Flag.NONE, Flag.RECOVERY):
                assert (await peer.add(1, 99, b"late", flags=flags))[0].status is Status.FENCED
            assert await peer.status(BookieOp.READ, 1, 99, flags=Flag.FENCE) is Status.NO_LEDGER
            assert await peer.status(BookieOp.READ, 2, 29) is Status.OK

    async def test_nothing_goes_while_a_restored_backup_is_not_accepted(self, tmp_path: Path) -> None:  # I14
        store = MemoryServer().open_session()
        await make_ledger(store, 1, ("b1", "b2"))
        async with serving(small_config(tmp_path), store) as (bookie, peer):
            later = 2 + LEDGER_ID_JUMP
            await make_ledger(store, later, ("b1", "b2"))
            for ledger_id in (1, 2, later):  # the backup does not name the second
                await peer.add(ledger_id, 0, b"x")
            await store.create(paths.RESTORED, codec.encode(RestoredMark(1, 2)), parents=True)
            await bookie.collect_garbage()
            assert await peer.status(BookieOp.READ, 2, 0) is Status.OK
            assert bookie.statistics()["ledgers_deleted"] == 0
            assert bookie.statistics()["gc_rounds_without_deletion"] == 1
            assert await accept(store)
            await bookie.collect_garbage()
            assert await peer.status(BookieOp.READ, 2, 0) is Status.NO_LEDGER
            for ledger_id in (1, later):
                assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.OK

    @pytest.mark.parametrize("verb", ["exists", "children_from", "sync", "get"])
    async def test_an_error_of_the_store_deletes_nothing(self, tmp_path: Path, verb: str) -> None:  # I14
        class Fails(MemoryStore):
            broken = False

            async def exists(self, path: str, watcher: object = None) -> Stat | None:
                if self.broken and verb == "exists" and path.startswith(paths.LEDGERS):
                    raise ConnectionLossError("for a directory")
                return await super().exists(path)

            async def children_from(self, path: str, start: str = "", limit: int = 1) -> list[str]:
                if self.broken and verb == "children_from":
                    raise ConnectionLossError("half way")
                return await super().children_from(path, start, limit)

            async def sync(self, path: str = "/") -> None:
                if self.broken and verb == "sync":
                    raise ConnectionLossError("before the direct read")
                await super().sync(path)

            async def get(self, path: str, watcher: object = None):  # type: ignore[no-untyped-def]
                if self.broken and verb == "get":
                    raise ConnectionLossError("at the direct read")
                return await super().get(path)

        server = MemoryServer()
        store = Fails(server, server.open_session().session_id)
        await make_ledger(store, 1, ("b1", "b2"))
        await make_ledger(store, 200_000, ("b1", "b2"))
        async with serving(small_config(tmp_path), store) as (bookie, peer):
            for ledger_id in (1, 200_000, 7):
                await peer.add(ledger_id, 0, b"x")
            store.broken = True
            with pytest.raises(ConnectionLossError):
                await bookie.collect_garbage()
            for ledger_id in (1, 200_000, 7):
                assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.OK
            store.broken = False

    @pytest.mark.parametrize("verb", ["exists", "children_from", "get"])
    async def test_a_ledger_made_during_the_search_is_kept(self, tmp_path: Path, verb: str) -> None:  # I14
        class Lists(MemoryStore):
            on_read: Callable[[str], Awaitable[None]] | None = None

            async def exists(self, path: str, watcher: object = None) -> Stat | None:
                found = await super().exists(path)
                await self.after("exists" if path.startswith(paths.LEDGERS) else "")
                return found

            async def children_from(self, path: str, start: str = "", limit: int = 1) -> list[str]:
                names = await super().children_from(path, start, limit)
                await self.after("children_from")
                return names

            async def get(self, path: str, watcher: object = None):  # type: ignore[no-untyped-def]
                try:
                    return await super().get(path)
                finally:
                    await self.after("get" if path.startswith(paths.LEDGERS) else "")

            async def after(self, each: str) -> None:
                if self.on_read is not None:
                    await self.on_read(each)

        server = MemoryServer()
        store = Lists(server, server.open_session().session_id)
        await make_ledger(store, 1, ("b1", "b2"))
        made: list[str] = []
        async with serving(small_config(tmp_path), store) as (bookie, peer):

            async def make_and_add(each: str) -> None:
                if each == verb and not made:
                    made.append(each)
                    await make_ledger(store, 3, ("b1", "b2"))
                    await peer.add(3, 0, b"x")

            for ledger_id in (1, 2):
                await peer.add(ledger_id, 0, b"x")
            store.on_read = make_and_add
            for _ in range(2):
                await bookie.collect_garbage()
            assert made == [verb]
            assert await peer.status(BookieOp.READ, 3, 0) is Status.OK
            assert await peer.status(BookieOp.READ, 2, 0) is Status.NO_LEDGER

    async def test_a_ledger_that_a_server_of_the_store_does_not_know_yet_is_kept(self, tmp_path: Path) -> None:  # I14
        class LagsBehind(MemoryStore):
            is_behind = True

            async def exists(self, path: str, watcher: object = None) -> Stat | None:
                return None if self.is_behind and path.startswith(paths.LEDGERS) else await super().exists(path)

            async def get(self, path: str, watcher: object = None):  # type: ignore[no-untyped-def]
                if self.is_behind and path.startswith(paths.LEDGERS):
                    raise NoNodeError(path)
                return await super().get(path)

            async def sync(self, path: str = "/") -> None:
                self.is_behind = False

        server = MemoryServer()
        store = LagsBehind(server, server.open_session().session_id)
        await make_ledger(store, 1, ("b1", "b2"))
        async with serving(small_config(tmp_path), store) as (bookie, peer):
            await peer.add(1, 0, b"x")
            await bookie.collect_garbage()
            assert await peer.status(BookieOp.READ, 1, 0) is Status.OK

    async def test_logs_without_anything_live_are_removed_and_sparse_ones_compacted(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        for ledger_id in (1, 2):
            await make_ledger(store, ledger_id, ("b1", "b2"))
        config = small_config(tmp_path)
        async with serving(config, store) as (bookie, peer):
            await fill(bookie, peer, ledger_bytes={1: 400_000, 2: 30_000})
            before = stored_bytes(config)
            await store.delete(paths.ledger(1))
            await bookie.collect_garbage()
            statistics = bookie.statistics()
            assert statistics["logs_removed"] != 0
            assert statistics["logs_compacted"] != 0
            assert stored_bytes(config) < before / 4
            for number in range(30):
                assert await peer.status(BookieOp.READ, 2, number) is Status.OK
            await store.delete(paths.ledger(2))
            await bookie.collect_garbage()
            await bookie.collect_garbage()
        assert len(log_ids(RealDisk(), tmp_path / "data")) <= 2

    def test_a_crash_anywhere_in_compaction_keeps_every_live_entry(self, tmp_path: Path) -> None:  # I1
        async def scenario(home: Path, countdown: int) -> bool:
            store = MemoryServer().open_session()
            for ledger_id in (1, 2):
                await make_ledger(store, ledger_id, ("b1", "b2"))
            disk = FaultyDisk(1 << 30)
            async with serving(small_config(home), store, disk=disk) as (bookie, peer):
                await fill(bookie, peer, ledger_bytes={1: 200_000, 2: 30_000})
                await store.delete(paths.ledger(1))
                disk.countdown = countdown
                try:
                    await bookie.collect_garbage()
                except DiskPoisonedError as error:
                    bookie.fail(error)
                except BookieStorageError:
                    await bookie.collect_garbage()
            async with serving(small_config(home), store) as (_, peer):
                for number in range(30):
                    assert await peer.status(BookieOp.READ, 2, number) is Status.OK
            return bool(disk.failed)

        failed = [asyncio.run(scenario(tmp_path / str(n), n)) for n in range(1, 8)]
        assert failed[0]

    async def test_metadata_that_does_not_know_this_bookie_deletes_nothing(self, tmp_path: Path) -> None:  # I14
        server, emptied = MemoryServer(), MemoryServer()
        store = server.open_session()
        await make_ledger(store, 1, ("b1", "b2"))

        async def reopen() -> MemoryStore:
            return emptied.open_session()

        failures: list[BaseException] = []
        serves = serving(small_config(tmp_path), store, reopen=reopen, on_failure=failures.append)
        async with serves as (bookie, peer):
            assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
            server.expire_session(store.session_id)  # the store comes back without its disk
            observer = emptied.open_session()

            async def is_settled() -> bool:
                return bool(failures) or await registration(observer, paths.bookie_available("b1")) is not None

            await until(is_settled)
            if not failures:
                await bookie.collect_garbage()
            assert isinstance(bookie.failure, CookieMismatchError)
            assert await registration(observer, paths.bookie_available("b1")) is None
        async with serving(small_config(tmp_path), server.open_session()) as (_, peer):
            assert await peer.status(BookieOp.READ, 1, 0) is Status.OK

    @pytest.mark.parametrize("reads_before", [0, 1, 2], ids=["size", "map", "records"])
    @pytest.mark.parametrize("is_each_bad", [False, True])
    async def test_a_log_that_cannot_be_read_keeps_no_other_from_being_compacted(
        self, tmp_path: Path, is_each_bad: bool, reads_before: int
    ) -> None:
        class BadSector(RealDisk):
            bad: Sequence[str] = ()

            def __init__(self) -> None:
                super().__init__()
                self.opened: Counter[str] = Counter()

            def open(self, path: Path, *, create: bool = False, is_direct: bool = False) -> DiskFile:
                if path.name in self.bad:
                    self.opened[path.name] += 1
                    if self.opened[path.name] > reads_before:
                        raise BookieStorageError(f"cannot read {path}: {os.strerror(errno.EIO)}")
                return super().open(path, create=create, is_direct=is_direct)

        store, disk = MemoryServer().open_session(), BadSector()
        for ledger_id in (1, 2):
            await make_ledger(store, ledger_id, ("b1", "b2"))
        config = small_config(tmp_path)
        async with serving(config, store, disk=disk) as (bookie, peer):
            await fill(bookie, peer, ledger_bytes={1: 400_000, 2: 30_000})
            directory = storage_of(bookie).directories[0]
            sparse = [n for n in directory.old_logs() if directory.ledgers_in(n) == [1, 2]]
            assert len(sparse) > 1
            await store.delete(paths.ledger(1))
            bad = sparse if is_each_bad else sparse[:1]
            disk.bad = [f"{n:08x}.log" for n in bad]
            directory.reader.close()
            await bookie.collect_garbage()
            assert set(sparse).intersection(log_ids(disk, tmp_path / "data")) == set(bad)
            disk.bad = ()
            for number in range(30):
                assert await peer.status(BookieOp.READ, 2, number) is Status.OK  # I1

    @pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.CLOSED])
    async def test_a_record_that_cannot_be_read_keeps_no_other_ledger_from_being_collected(
        self, tmp_path: Path, state: LedgerState
    ) -> None:
        store = MemoryServer().open_session()
        for ledger_id in (1, 2, 3):
            await make_ledger(store, ledger_id, ("b1", "b2"), state=state)
        config = small_config(tmp_path)
        async with serving(config, store) as (bookie, peer):
            await fill(bookie, peer, ledger_bytes={1: 200_000, 2: 30_000, 3: 1_000})
            storage_of(bookie).put_into_limbo(2, is_fenced=False)
            before = stored_bytes(config)
            await store.set(paths.ledger(2), b"from a newer version")
            await store.delete(paths.ledger(1))
            await bookie.collect_garbage()
            assert stored_bytes(config) < before / 2
            assert await peer.status(BookieOp.READ, 2, 0) is Status.OK
            assert await peer.status(BookieOp.READ, 2, 99) is Status.UNKNOWN_LEDGER_STATE  # I6

    def test_a_deletion_that_failed_keeps_the_fence_and_is_made_up_for(self, tmp_path: Path) -> None:  # I4
        async def scenario(home: Path, countdown: int) -> bool:
            store = MemoryServer().open_session()
            for ledger_id in (1, 2):
                await make_ledger(store, ledger_id, ("b1", "b2"))
            index = FaultyDisk(1 << 30)
            with faulty(index):
                async with serving(small_config(home), store) as (bookie, peer):
                    for ledger_id in (1, 2):
                        await peer.add(ledger_id, 0, b"x")
                    await bookie.checkpoint()
                    await peer.status(BookieOp.READ_LAC, 1, flags=Flag.FENCE)
                    await store.delete(paths.ledger(1))
                    index.countdown = countdown
                    with contextlib.suppress(BookieStorageError):
                        await bookie.collect_garbage()
                    index.countdown = 1 << 30
                    if bool(index.failed):
                        await bookie.checkpoint()  # recycles the journals that hold the fence
                    assert await peer.status(BookieOp.READ, 1, 0) is Status.NO_LEDGER
                    copy_directories(home, home.with_suffix(".crashed"))
            async with serving(small_config(home.with_suffix(".crashed"))) as (bookie, peer):
                assert (await peer.add(1, 99, b"late"))[0].status is Status.FENCED
                assert list(storage_of(bookie).directories[0].index.runs(1)) == []
            return bool(index.failed)

        failed = [asyncio.run(scenario(tmp_path / str(n), n)) for n in range(1, 4)]
        assert failed[0]
