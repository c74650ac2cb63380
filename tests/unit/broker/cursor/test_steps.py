"""Recovery and snapshots of a cursor, counted: the work grows with what is restored, and comes in small steps (I24)."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from typing import Any

import pytest

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.log import CursorPlace
from heliograph.actors.broker.cursor.recovery import create_cursor, recover_cursor
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.metadata.model import Policies
from tests.unit.broker.world import World

pytestmark = pytest.mark.slow

MILLION = 1_000_000
BATCH = 0b0110  # messages of a partly acknowledged entry that are not acknowledged
ROW_TOUCHES_MAX = 8  # of the groups of partly acknowledged entries, for one restored row


class CountingGroups(dict[int, Any]):
    """The groups of an ``EntryNumbers``. Counts every look at a group, also while all of them are listed."""

    touches = 0

    def get(self, key: int, default: Any = None) -> Any:
        self.touches += 1
        return super().get(key, default)

    def setdefault(self, key: int, default: Any = None) -> Any:
        self.touches += 1
        return super().setdefault(key, default)

    def pop(self, key: int, *default: Any) -> Any:
        self.touches += 1
        return super().pop(key, *default)

    def __iter__(self) -> Iterator[int]:
        self.touches += len(self)
        return super().__iter__()


def counted(cursor: Cursor) -> CountingGroups:
    groups = CountingGroups()
    cursor._partial._groups = groups
    return groups


def chain_of(entries: int) -> LedgerChain:
    chain = LedgerChain()
    chain.append(7, entries)
    return chain


def run_out(steps: Generator[None, None, list[bytes]]) -> tuple[list[bytes], int]:
    """Return the parts of a snapshot, and how many steps it took."""
    count = 1
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value, count
        count += 1


def snapshot_of(holes: int, partial: int, stride: int = 2) -> list[bytes]:
    """Return a snapshot with entries acknowledged and partly acknowledged in turns, at every ``stride``-th entry."""
    cursor = Cursor(0)
    for number in range(max(holes, partial)):
        if number < holes:
            cursor.acknowledge(2 * stride * number + stride)
        if number < partial:
            cursor.acknowledge_messages(2 * stride * number + 1, BATCH)
    chain = chain_of(2 * stride * max(holes, partial) + 2)
    parts, steps = run_out(cursor_record.snapshot_steps(cursor, chain, -1))
    rows = sum(len(one.acknowledged) + len(one.partial) for one in map(cursor_record.decode, parts))
    assert steps >= rows // (2 * cursor_record.PART_ITEMS_MAX), "a step has a bounded number of rows"  # I24
    return parts


@pytest.mark.parametrize(
    ("holes", "partial", "stride"),
    [(0, MILLION, 1), (MILLION, 0, 2), (50_000, 50_000, 2), (20_000, 20_000, 700)],
    ids=["batches", "holes", "both", "far apart"],
)
def test_restoring_costs_each_row_once_and_comes_in_steps(holes: int, partial: int, stride: int) -> None:
    """Half a day of one core at K = 1,000,000 when every row looked at all partly acknowledged entries."""
    parts = snapshot_of(holes, partial, stride)
    cursor, chain = Cursor(0), chain_of(1 << 40)
    groups = counted(cursor)
    total = 0
    for part in parts:
        record = cursor_record.decode(part)
        before = groups.touches
        for rows in cursor_record.apply_record(record, cursor, chain):
            total += rows
            assert rows < cursor_record.STEP_ROWS_MAX + 20  # I24
            assert groups.touches - before <= ROW_TOUCHES_MAX * rows
            before = groups.touches
    assert cursor.acknowledged_above_mark == holes
    assert len(list(cursor.partial_items())) == partial
    assert total <= 2 * (holes + partial) + len(parts)


def test_a_cumulative_acknowledgement_looks_at_what_it_passes() -> None:
    cursor = Cursor(0)
    groups = counted(cursor)
    for index in range(1, MILLION):
        cursor.acknowledge_messages(index, BATCH)
    groups.touches = 0
    for index in range(10_000):
        cursor.skip_to(index + 1)
    assert groups.touches <= ROW_TOUCHES_MAX * 10_000
    groups.touches = 0
    cursor.skip_to(MILLION - 1)
    assert groups.touches <= 2 * MILLION // 1024
    assert list(cursor.partial_items()) == [(MILLION - 1, BATCH)]


@pytest.mark.parametrize("run", [1, 2, 3, 1024, 5_000])
def test_runs_of_deltas_remove_what_they_acknowledge(run: int) -> None:
    """A run of any length is restored in pieces, and takes its own partly acknowledged entries only."""
    chain, cursor = chain_of(100_000), Cursor(0)
    source = Cursor(0)
    for index in range(1, 20_000):
        cursor.restore_partial(index, BATCH)
    for index in range(100, 100 + run):
        source.acknowledge(index)
    delta = source.take_delta()
    assert delta is not None
    for _ in cursor_record.apply_record(
        cursor_record.decode(cursor_record.encode_delta(delta, chain, 0)), cursor, chain
    ):
        pass
    left = set(dict(cursor.partial_items()))
    assert left == set(range(1, 100)) | set(range(100 + run, 20_000))
    assert cursor._partial.count == len(left)


async def test_a_takeover_and_a_roll_let_the_loop_turn() -> None:
    """Another task runs between any two steps: while the new owner reads, and while it writes its first snapshot."""
    place = CursorPlace("orders", "billing", "/cursor", Policies)
    entries = 60_000
    world = World()
    store = await world.session()
    chain = chain_of(2 * entries)
    log = await create_cursor(place, 0, chain, store, world.ledgers, {})
    for index in range(1, 2 * entries, 2):
        log.cursor.acknowledge_messages(index, BATCH)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.get_running_loop().create_task(turn())
    await log.persist()
    assert turns >= entries // cursor_record.PART_ITEMS_MAX
    turns = 0
    again = await recover_cursor(place, chain, world.server.open_session(), world.ledgers)
    assert turns >= entries // cursor_record.STEP_ROWS_MAX
    assert dict(again.cursor.partial_items()) == dict(log.cursor.partial_items())
    turning.cancel()


async def test_many_changes_at_once_are_a_snapshot_not_one_large_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is acknowledged while a write is in flight has no bound: one record of it could exceed an entry."""
    place = CursorPlace("orders", "billing", "/cursor", Policies)
    world = World()
    chain = chain_of(200_000)
    log = await create_cursor(place, 0, chain, await world.session(), world.ledgers, {})
    log.cursor.acknowledge(1)
    await log.persist()
    encoded: list[int] = []
    encode = cursor_record.encode_delta

    def noted(delta: Any, *args: Any) -> bytes:
        encoded.append(len(delta.acknowledged))
        return encode(delta, *args)

    monkeypatch.setattr(cursor_record, "encode_delta", noted)
    for index in range(3, 200_000, 2):
        log.cursor.acknowledge(index)
    await log.persist()
    assert encoded == []
    again = await recover_cursor(place, chain, world.server.open_session(), world.ledgers)
    assert again.cursor.acknowledged_above_mark == 100_000
