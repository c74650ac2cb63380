"""Entries of ledgers that metadata places elsewhere are removed, and nothing else is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment
from heliograph.metadata.store import Operation, Stat
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config

ENTRIES = 5
MOVED, OPEN, HERE = 1, 2, 3


async def place(store: MemoryStore, ledger_id: int, bookie: str, state: LedgerState = LedgerState.CLOSED) -> None:
    ledger = LedgerMetadata(ledger_id, 1, 1, 1, (Segment(0, (bookie,)),), state=state, last_entry_id=ENTRIES - 1)
    value = codec.encode(ledger)
    if await store.exists(paths.ledger(ledger_id)) is None:
        await store.create(paths.ledger(ledger_id), value, parents=True)
    else:
        await store.set(paths.ledger(ledger_id), value)


async def fill(store: MemoryStore, bookie: Bookie, peer: BookiePeer) -> None:
    for ledger_id, where, state in (
        (MOVED, "b2", LedgerState.CLOSED),
        (OPEN, "b2", LedgerState.OPEN),
        (HERE, "b1", LedgerState.CLOSED),
    ):
        await place(store, ledger_id, where, state)
        for number in range(ENTRIES):
            assert (await peer.add(ledger_id, number, b"x"))[0].status is Status.OK
    await bookie.checkpoint()


async def found(peer: BookiePeer, ledger_id: int) -> list[Status]:
    return [await peer.status(BookieOp.READ, ledger_id, number) for number in range(ENTRIES)]


async def test_a_closed_ledger_that_moved_away_goes_after_two_looks_and_says_unknown(tmp_path: Path) -> None:  # I6, I14
    config = small_config(tmp_path, surplus_interval_ms=1, read_cache_bytes=0)
    store = MemoryServer().open_session()
    async with serving(config, store) as (bookie, peer):
        await fill(store, bookie, peer)
        await bookie.collect_garbage()
        assert bookie.statistics()["ledgers_emptied"] == 0, "one look is not enough"
        await asyncio.sleep(0.01)
        await bookie.collect_garbage()
        assert bookie.statistics()["ledgers_emptied"] == 1
        assert set(await found(peer, MOVED)) == {Status.UNKNOWN_LEDGER_STATE}
        assert set(await found(peer, OPEN)) == set(await found(peer, HERE)) == {Status.OK}
        assert await store.exists(paths.underreplication_lock(MOVED)) is None
        await bookie.collect_garbage()
        assert bookie.statistics()["limbo_cleared"] == 0, "it had entries, so it never says no again"
    async with serving(config, store) as (bookie, peer):
        assert set(await found(peer, MOVED)) == {Status.UNKNOWN_LEDGER_STATE}
        assert (await peer.add(MOVED, 0, b"late"))[0].status is Status.FENCED  # I4
        assert (await peer.add(MOVED, 0, b"x", flags=Flag.RECOVERY))[0].status is Status.OK, "it may come back"
        assert await peer.status(BookieOp.READ, MOVED, 0) is Status.OK


async def test_what_a_repair_brings_is_kept(tmp_path: Path) -> None:  # I10
    """A lock that is held, entries that came since the first look, metadata that names this bookie again."""
    config = small_config(tmp_path, surplus_interval_ms=1)
    server = MemoryServer()
    store, worker = server.open_session(), server.open_session()
    async with serving(config, store) as (bookie, peer):

        async def look() -> None:
            await asyncio.sleep(0.01)
            await bookie.collect_garbage()
            assert bookie.statistics()["ledgers_emptied"] == 0

        await fill(store, bookie, peer)
        await look()
        lock = paths.underreplication_lock(MOVED)
        await worker.create(lock, ephemeral=True, parents=True)
        await look()
        await worker.delete(lock)
        await peer.add(MOVED, 0, b"x", flags=Flag.RECOVERY)
        await look()
        await bookie.checkpoint()
        await look()
        await place(store, MOVED, "b1")
        await look()
        assert set(await found(peer, MOVED)) == {Status.OK}


@pytest.mark.parametrize("brought", ["name", "entry"])
async def test_what_a_repair_brings_before_the_lock_is_taken_is_kept(tmp_path: Path, brought: str) -> None:  # I10, I14
    config = small_config(tmp_path, surplus_interval_ms=1)

    class Races(MemoryStore):
        repair: Callable[[], Awaitable[None]] | None = None

        async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
            repair, self.repair = self.repair, None
            if repair is not None and operations[0].path == paths.underreplication_lock(MOVED):
                await repair()
            return await super().multi(operations)

    server = MemoryServer()
    store = Races(server, server.open_session().session_id)
    worker = server.open_session()
    async with serving(config, store) as (bookie, peer):

        async def repair() -> None:
            if brought == "name":
                await place(worker, MOVED, "b1")
            else:
                assert (await peer.add(MOVED, 0, b"x", flags=Flag.RECOVERY))[0].status is Status.OK

        await fill(store, bookie, peer)
        await bookie.collect_garbage()
        await asyncio.sleep(0.01)
        store.repair = repair
        await bookie.collect_garbage()
        assert store.repair is None, "the lock was taken"
        assert bookie.statistics()["ledgers_emptied"] == 0
        assert set(await found(peer, MOVED)) == {Status.OK}
