"""A bookie deletes what metadata dropped, and compacts what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from actors.bookie.disk import RealDisk
from actors.bookie.entry_log import log_ids
from actors.errors import BookieStorageError, DiskPoisonedError
from actors.wire.messages import Flag, Op, Status
from metadata import paths
from metadata.errors import ConnectionLossError
from metadata.memory import MemoryServer, MemoryStore
from tests.cluster.bookie_metadata import fill, make_ledger, stored_bytes
from tests.cluster.bookie_peer import serving, small_config
from tests.unit.bookie_disks import FaultyDisk


class TestGarbage:
    def test_ledgers_that_metadata_dropped_go_and_their_fences_stay(self, tmp_path: Path) -> None:  # I4, I14
        async def scenario() -> None:
            store = MemoryServer().open_session()
            for ledger_id in (1, 2):
                await make_ledger(store, ledger_id, ("b1", "b2"))
            async with serving(small_config(tmp_path), store) as (bookie, peer):
                for ledger_id in (1, 2):
                    for number in range(30):
                        await peer.add(ledger_id, number, bytes(1000))
                await peer.status(Op.READ_LAC, 1, flags=Flag.FENCE)
                await bookie.collect_garbage()
                assert bookie.statistics()["ledgers_deleted"] == 0
                await store.delete(paths.ledger(1))
                await bookie.collect_garbage()
                assert await peer.status(Op.READ, 1, 0) is Status.NO_LEDGER
                await bookie.checkpoint()  # its entries were in the write cache still
                assert await peer.status(Op.READ, 1, 0) is Status.NO_LEDGER
                assert await peer.status(Op.READ, 2, 0) is Status.OK
            async with serving(small_config(tmp_path), store) as (_, peer):
                for flags in (Flag.NONE, Flag.RECOVERY):
                    assert (await peer.add(1, 99, b"late", flags=flags))[0].status is Status.FENCED
                assert await peer.status(Op.READ, 1, 99, flags=Flag.FENCE) is Status.NO_LEDGER
                assert await peer.status(Op.READ, 2, 29) is Status.OK

        asyncio.run(scenario())

    @pytest.mark.parametrize("verb", ["children", "get"])
    def test_an_error_of_the_store_deletes_nothing(self, tmp_path: Path, verb: str) -> None:  # I14
        class Fails(MemoryStore):
            broken = False

            async def children(self, path: str, watcher: object = None) -> list[str]:
                if self.broken and verb == "children" and path.count("/") == 3:
                    raise ConnectionLossError("half way")
                return await super().children(path)

            async def get(self, path: str, watcher: object = None):  # type: ignore[no-untyped-def]
                if self.broken and verb == "get":
                    raise ConnectionLossError("at the direct read")
                return await super().get(path)

        async def scenario() -> None:
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
                    assert await peer.status(Op.READ, ledger_id, 0) is Status.OK
                store.broken = False

        asyncio.run(scenario())

    def test_a_ledger_made_during_the_listing_is_kept(self, tmp_path: Path) -> None:  # I14
        class Lists(MemoryStore):
            on_children: Callable[[], Awaitable[None]] | None = None

            async def children(self, path: str, watcher: object = None) -> list[str]:
                names = await super().children(path)
                if self.on_children is not None and path == paths.LEDGERS:
                    await self.on_children()
                return names

        async def scenario() -> None:
            server = MemoryServer()
            store = Lists(server, server.open_session().session_id)
            async with serving(small_config(tmp_path), store) as (bookie, peer):

                async def make_and_add() -> None:
                    store.on_children = None
                    await make_ledger(store, 300_000_000, ("b1", "b2"))
                    await peer.add(300_000_000, 0, b"x")

                store.on_children = make_and_add
                await bookie.collect_garbage()
                assert await peer.status(Op.READ, 300_000_000, 0) is Status.OK

        asyncio.run(scenario())

    def test_logs_without_anything_live_are_removed_and_sparse_ones_compacted(self, tmp_path: Path) -> None:
        async def scenario() -> None:
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
                    assert await peer.status(Op.READ, 2, number) is Status.OK
                await store.delete(paths.ledger(2))
                await bookie.collect_garbage()
                await bookie.collect_garbage()
            assert len(log_ids(RealDisk(), tmp_path / "data")) <= 2

        asyncio.run(scenario())

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
                    assert await peer.status(Op.READ, 2, number) is Status.OK
            return bool(disk.failed)

        failed = [asyncio.run(scenario(tmp_path / str(n), n)) for n in range(1, 8)]
        assert failed[0]
