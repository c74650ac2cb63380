"""Limbo ends for a ledger when it is closed and all that should be on this bookie is there again."""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.bookie.store.index import merge_runs
from heliograph.actors.bookie.upkeep.limbo import LimboExit, _has_all, owed
from heliograph.actors.ledger.schedule import WriteSchedule
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment
from heliograph.metadata.recipes.repair_tasks import extend_task
from tests.cluster.support.bookie_peer import serving, small_config
from tests.patience import LONG_SECONDS

ENTRIES = 10
POLL_SECONDS = 0.01


async def make(store: MemoryStore, ledger_id: int, state: LedgerState) -> None:
    ledger = LedgerMetadata(ledger_id, 2, 2, 1, (Segment(0, ("b1", "b2")),), state=state, last_entry_id=ENTRIES - 1)
    await store.create(paths.ledger(ledger_id), codec.encode(ledger), parents=True)


async def in_state(store: MemoryStore, ledger_id: int, state: LedgerState) -> bytes:
    value, _ = await store.get(paths.ledger(ledger_id))
    return codec.encode(replace(codec.decode(LedgerMetadata, value), state=state))


async def until_marked(store: MemoryStore, ledger_id: int) -> None:
    async with asyncio.timeout(LONG_SECONDS):
        while await store.exists(paths.underreplicated(ledger_id)) is None:  # noqa: ASYNC110
            await asyncio.sleep(POLL_SECONDS)


async def add_and_lose(directory: Path, store: MemoryStore) -> None:
    """Have a bookie store an entry of ledger 1, and lose its disk."""
    async with serving(small_config(directory), store) as (_, peer):
        await peer.add(1, 0, b"x")
    lose_disk(directory)


def lose_disk(directory: Path) -> None:
    shutil.rmtree(directory / "journal")
    shutil.rmtree(directory / "data")


async def test_a_repaired_closed_ledger_leaves_limbo_and_no_other(tmp_path: Path) -> None:  # I6
    store = MemoryServer().open_session()
    for ledger_id, state in ((1, LedgerState.CLOSED), (2, LedgerState.OPEN), (3, LedgerState.CLOSED)):
        await make(store, ledger_id, state)
    async with serving(small_config(tmp_path), store) as (_, peer):
        for ledger_id in (1, 2, 3):
            for number in range(ENTRIES):
                await peer.add(ledger_id, number, b"x")
    lose_disk(tmp_path)
    async with serving(small_config(tmp_path, accept_storage_loss=True), store) as (bookie, peer):
        await bookie.collect_garbage()
        assert bookie.statistics()["ledgers_in_limbo"] == 3, "everything is missing"
        assert sorted(await store.children(paths.UNDERREPLICATED)) == [
            paths.underreplicated(n).rsplit("/", 1)[1] for n in (1, 3)
        ], "what is closed waits for nobody but a repair"
        await store.set(paths.ledger(2), await in_state(store, 2, LedgerState.CLOSED))
        await bookie.collect_garbage()
        assert len(await store.children(paths.UNDERREPLICATED)) == 3, "and the third once it was recovered"
        await store.set(paths.ledger(2), await in_state(store, 2, LedgerState.OPEN))
        for ledger_id, count in ((1, ENTRIES), (2, ENTRIES), (3, ENTRIES - 1)):  # a repair, not complete for 3
            for number in range(count):
                await peer.add(ledger_id, number, b"x", flags=Flag.RECOVERY)
        await bookie.collect_garbage()
        assert bookie.statistics()["limbo_cleared"] == 0, "the index does not have them yet"
        await bookie.checkpoint()
        await bookie.collect_garbage()
        assert bookie.statistics()["limbo_cleared"] == 1
    async with serving(small_config(tmp_path), store) as (_, peer):
        assert await peer.status(BookieOp.READ, 1, ENTRIES) is Status.NO_ENTRY
        assert await peer.status(BookieOp.READ, 2, ENTRIES) is Status.UNKNOWN_LEDGER_STATE
        assert await peer.status(BookieOp.READ, 3, ENTRIES - 1) is Status.UNKNOWN_LEDGER_STATE
        assert (await peer.add(2, ENTRIES, b"late"))[0].status is Status.FENCED  # I4


@given(
    st.integers(1, 4).flatmap(lambda e: st.tuples(st.just(e), st.integers(1, e), st.integers(0, e - 1))),
    st.sets(st.integers(0, 20)),
    st.integers(0, 10),
    st.integers(-1, 20),
)
def test_what_is_owed_is_what_the_schedule_says(
    shape: tuple[int, int, int], held: set[int], first: int, last: int
) -> None:
    ensemble, quorum, place = shape
    schedule = WriteSchedule(ensemble, quorum, 1)
    expected = all(n in held for n in range(first, last + 1) if place in schedule.positions(n))
    assert _has_all(merge_runs([(n, n) for n in held]), first, last, place, ensemble, quorum) is expected


async def test_an_open_ledger_that_nobody_goes_on_with_is_reported_for_recovery(tmp_path: Path) -> None:
    store = MemoryServer().open_session()
    await make(store, 1, LedgerState.OPEN)
    await add_and_lose(tmp_path, store)
    async with serving(small_config(tmp_path, accept_storage_loss=True), store) as (bookie, _):
        assert bookie._opened is not None
        with ThreadPoolExecutor(1) as thread:
            limbo = LimboExit(bookie._opened.storage, thread)
            grace_seconds = bookie._config.limbo_grace_ms / 1000
            for now in (0.0, grace_seconds - 1):  # its writer has time to find out
                assert await limbo.round(store, now) == 0
                assert await store.exists(paths.underreplicated(1)) is None
            assert await limbo.follow(store, grace_seconds) == 0
        value, _stat = await store.get(paths.underreplicated(1))
        task = codec.decode(UnderReplicatedLedger, value)
        assert (task.missing_bookies, task.is_abandoned) == (("b1",), True)


async def test_a_ledger_that_is_closed_later_is_marked_without_a_round_of_garbage_collection(tmp_path: Path) -> None:
    store = MemoryServer().open_session()
    await make(store, 1, LedgerState.OPEN)
    await add_and_lose(tmp_path, store)
    config = small_config(tmp_path, accept_storage_loss=True, limbo_interval_ms=1, limbo_grace_ms=3_600_000)
    async with serving(config, store) as (bookie, peer):
        await store.set(paths.ledger(1), await in_state(store, 1, LedgerState.CLOSED))
        await until_marked(store, 1)
        for number in range(ENTRIES):
            await peer.add(1, number, b"x", flags=Flag.RECOVERY)
        await bookie.checkpoint()
        await bookie.collect_garbage()
        assert bookie.statistics()["limbo_cleared"] == 1


async def test_a_task_for_another_bookie_is_extended(tmp_path: Path) -> None:
    store = MemoryServer().open_session()
    await make(store, 1, LedgerState.CLOSED)
    await add_and_lose(tmp_path, store)
    await extend_task(store, 1, ("b2",))
    async with serving(small_config(tmp_path, accept_storage_loss=True), store) as (bookie, _):
        await bookie.collect_garbage()
    value, _stat = await store.get(paths.underreplicated(1))
    assert codec.decode(UnderReplicatedLedger, value).missing_bookies == ("b1", "b2")


def test_each_segment_counts_up_to_the_last_entry() -> None:
    segments = (Segment(0, ("a", "b")), Segment(5, ("c", "b")), Segment(9, ("a", "c")))
    ledger = LedgerMetadata(1, 2, 2, 1, segments, state=LedgerState.CLOSED, last_entry_id=9)
    assert owed(ledger, "a") == [(0, 4, 0, 2, 2), (9, 9, 0, 2, 2)]
    assert owed(ledger, "b") == [(0, 4, 1, 2, 2), (5, 8, 1, 2, 2)]
    assert owed(ledger, "stranger") == []
    unclosed = replace(ledger, state=LedgerState.OPEN, last_entry_id=-1)
    assert owed(unclosed, "a") == [(0, 4, 0, 2, 2)], "the end of the last segment is not known"
