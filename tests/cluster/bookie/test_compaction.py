"""Compaction: when which logs are rewritten, what it must leave free, and that a full disk frees itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from tests.cluster.support.bookie_metadata import fill, make_ledger, stored_bytes
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config

SETTINGS: dict[str, Any] = {"entry_log_bytes": 64 << 10, "compaction_headroom_bytes": 0}


class SmallDisk(RealDisk):
    """Says how much is free."""

    free_bytes = 1 << 40

    def space(self, directory: Path) -> tuple[int, int]:
        return self.free_bytes, 1 << 41


async def half_dead(store: MemoryStore, bookie: Bookie, peer: BookiePeer, dead_bytes: int) -> None:
    """Logs that hold ledger 2, which lives (30 kB), and ledger 1, which is deleted."""
    for ledger_id in (1, 2):
        await make_ledger(store, ledger_id, ("b1", "b2"))
    await fill(bookie, peer, ledger_bytes={1: dead_bytes, 2: 30_000})
    await store.delete(paths.ledger(1))


async def check(peer: BookiePeer) -> None:
    for number in range(30):
        assert await peer.status(BookieOp.READ, 2, number) is Status.OK  # I1


async def test_major_takes_what_minor_leaves(tmp_path: Path) -> None:
    store = MemoryServer().open_session()
    config = small_config(tmp_path, major_compaction_live_share=0.0, minor_compaction_live_share=0.0, **SETTINGS)
    async with serving(config, store) as (bookie, peer):
        await half_dead(store, bookie, peer, 100_000)
        await bookie.collect_garbage()
        assert bookie.statistics()["logs_compacted"] == 0
    config = small_config(tmp_path, major_compaction_live_share=0.8, **SETTINGS)
    async with serving(config, store) as (bookie, peer):
        await bookie.collect_garbage()
        first = bookie.statistics()
        assert (first["major_compactions"], first["minor_compactions"]) == (1, 0)
        assert first["logs_compacted"] != 0
        await bookie.collect_garbage()
        assert bookie.statistics()["major_compactions"] == 1, "the next one is due in a day"
        await check(peer)


async def test_intervals_are_kept_unless_the_disk_is_nearly_full(tmp_path: Path) -> None:
    disk = SmallDisk()
    config = small_config(tmp_path, minor_compaction_interval_ms=1, **SETTINGS)
    async with serving(config, MemoryServer().open_session(), disk=disk) as (bookie, _):
        for _ in range(3):
            await bookie.collect_garbage()
            await asyncio.sleep(0.002)
        assert bookie.statistics()["major_compactions"] == 1
        assert bookie.statistics()["minor_compactions"] == 2
        bookie._space.is_read_only = True
        for _ in range(3):
            await bookie.collect_garbage()
        assert bookie.statistics()["major_compactions"] == 4


async def test_compaction_leaves_headroom_and_goes_on_when_there_is_room(tmp_path: Path) -> None:
    store, disk = MemoryServer().open_session(), SmallDisk()
    config = small_config(tmp_path, **{**SETTINGS, "compaction_headroom_bytes": 1 << 20})
    async with serving(config, store, disk=disk) as (bookie, peer):
        await half_dead(store, bookie, peer, 300_000)
        disk.free_bytes = 1 << 20
        bookie._space.is_read_only = True
        await bookie.collect_garbage()
        assert bookie.statistics()["logs_compacted"] == 0
        assert bookie.statistics()["logs_left_for_headroom"] != 0
        disk.free_bytes = (1 << 20) + 64_000  # a log's live bytes and the headroom
        before = stored_bytes(config)
        await bookie.collect_garbage()
        assert bookie.statistics()["logs_compacted"] != 0
        assert stored_bytes(config) < before
        await check(peer)
