"""Chains in pieces: they hold what a plain list would, their cost does not grow with them, and no crash tears one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.record import decode, snapshot_steps
from heliograph.actors.broker.cursor.recovery import _Replay
from heliograph.actors.broker.managed_ledger.chain import LedgerChain, NotLoadedError
from heliograph.actors.broker.managed_ledger.trimming import trim_batch
from heliograph.actors.broker.records import topic_chain
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_chain import (
    SHARED_LEDGERS_MAX,
    ledger_count,
    ledgers_after,
    ledgers_among,
    stored_bytes,
)
from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.chain_records import ChainPiece, PieceRef
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import BrokerRegistration, LedgerInfo, Policies, TopicRecord
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import Operation
from tests.examples import examples

pytestmark = pytest.mark.slow

PATH = "/topics/public/default/orders"


def info_of(ledger_id: int) -> LedgerInfo:
    return LedgerInfo(ledger_id, 1 + ledger_id % 3, 100 + ledger_id % 7, 1_000_000 + ledger_id)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of a few ledgers, so that few ledgers make several levels."""
    shrink(monkeypatch)


def shrink(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(topic_chain, "PIECE_LEDGERS", 3)
    patch.setattr(topic_chain, "PIECE_REFS", 2)
    patch.setattr(topic_chain, "TAIL_LEDGERS_MAX", 6)


async def owned_record(server: MemoryServer, ledgers: Iterable[LedgerInfo] = ()) -> OwnedTopicRecord:
    store = server.open_session()
    if await store.exists(PATH) is None:
        await store.create(PATH, codec.encode(TopicRecord("orders", tuple(ledgers)), has_limit=False), parents=True)
    return OwnedTopicRecord(store, PATH, await read(store, PATH, TopicRecord))


async def all_ledgers(owned: OwnedTopicRecord, after: int = -1) -> list[LedgerInfo]:
    return [info async for info in ledgers_after(owned.record, after, owned.piece)]


async def trim(owned: OwnedTopicRecord, count: int) -> int:
    head = await owned.head()
    count = min(count, len(head) if owned.record.pieces else len(head) - 1)
    await owned.drop_head(owned.record, head, count)
    return count


class Crash(Exception):
    """The broker's process ends."""


class Failing(MemoryStore):
    """A session whose writes are lost, before they take effect or after, or end the process in the same ways."""

    plan: ClassVar[list[str]] = []

    async def multi(self, operations: Any) -> Any:
        how = self.plan.pop(0) if self.plan else ""
        if how.startswith("before"):
            raise Crash if how.endswith("crash") else ConnectionLossError
        done = await super().multi(operations)
        if how.startswith("after"):
            raise Crash if how.endswith("crash") else ConnectionLossError
        return done


FAULTS = ("", "", "before", "after", "before crash", "after crash")
STEPS = st.lists(
    st.tuples(st.sampled_from(("append", "append", "trim", "find")), st.integers(1, 9), st.sampled_from(FAULTS)),
    max_size=40,
)


@settings(deadline=None, max_examples=examples(150))
@given(STEPS)
async def test_a_chain_in_pieces_is_the_list_that_it_stands_for(
    steps: list[tuple[str, int, str]],
) -> None:  # I9, I12, I23
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        server = MemoryServer()
        owned = await owned_record(server)
        owned._store.__class__ = Failing
        model: list[LedgerInfo] = []
        next_id = 10
        for what, count, fault in steps:
            Failing.plan = [fault] if fault else []
            wanted = list(model)
            try:
                if what == "append":
                    new = [info_of(next_id + 2 * number) for number in range(count)]
                    next_id += 2 * count
                    wanted += new
                    await owned.replace(replace(owned.record, ledgers=(*owned.record.ledgers, *new)))
                elif what == "trim" and len(model) > 1:
                    wanted = wanted[await trim(owned, count) :]
                else:
                    after = next_id - 3 * count
                    expected = [one for one in model if one.ledger_id > after]
                    expected[:0] = [one for one in model if one.ledger_id <= after][-1:]
                    assert await all_ledgers(owned, after) == expected
                    asked = range(after, after + 9)
                    found = await ledgers_among(asked, owned.record, owned.piece)
                    assert found == {one.ledger_id for one in model}.intersection(asked)
                model = wanted
            except Crash:
                Failing.plan = []
                owned = await owned_record(server)
                owned._store.__class__ = Failing
                now = await all_ledgers(owned)
                if what == "trim":  # all of it or nothing
                    assert now in (model, model[len(model) - len(now) :])
                else:
                    assert now in (model, wanted)
                model = now
            Failing.plan = []
            assert await all_ledgers(owned) == model
            assert ledger_count(owned.record) == len(model)
            assert stored_bytes(owned.record) == sum(one.size for one in model)
            children = await owned._store.children(PATH)
            named = await named_pieces(owned)
            assert {f"{PATH}/{child}" for child in children} == named, "no piece is left over, and none is missing"


async def named_pieces(owned: OwnedTopicRecord) -> set[str]:
    named, refs = set[str](), list(owned.record.pieces)
    while refs:
        ref = refs.pop()
        named.add(paths.chain_piece(PATH, ref.number))
        refs += topic_chain.parts_of(ref, await owned.piece(ref.number)) if ref.level > 1 else ()
    return named


@settings(deadline=None, max_examples=examples(150))
@given(st.integers(1, 60), st.integers(0, 59), st.randoms(use_true_random=False))
async def test_positions_and_indexes_are_those_of_a_chain_in_memory(
    count: int, trimmed: int, chance: random.Random
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        owned = await owned_record(MemoryServer(), [info_of(10 + 2 * number) for number in range(count)])
        await owned.replace(owned.record)
        for opening in range(2):  # also what was trimmed before the topic was opened
            if opening:
                await trim(owned, min(trimmed, count - 1) // 2)
            chain, plain = LedgerChain(owned.record.pieces, owned.piece), LedgerChain()
            for info in await all_ledgers(owned):
                plain.append(info.ledger_id, info.entries)
            for info in owned.record.ledgers:
                chain.append(info.ledger_id, info.entries)
            assert (chain.first, chain.end) == (plain.first, plain.end) == (0, plain.end)
            assert chain.position_before(chain.first) == plain.position_before(plain.first)
            for run in chain.older:
                assert chain.position_at(run.first) == plain.position_at(run.first)
            position = plain.position_at(chance.randrange(plain.end))
            if chain.older and position > Position(chain.older[0].ref.first_id, 0):
                if position.ledger_id <= chain.older[-1].ref.last_id:
                    assert chain.find(position) is None
                    with pytest.raises(NotLoadedError):
                        chain.at_or_after(position)
                assert chain.after_or_before(position) <= plain.after(position)
            await asyncio.gather(chain.load(position), chain.load(position))
            before = plain.at_or_after(position)
            for index in range(before, plain.end):
                assert chain.position_at(index) == plain.position_at(index)
                assert chain.find(plain.position_at(index)) == index
                assert chain.position_before(index) == plain.position_before(index)
            assert list(chain.spans(before, 99)) == list(plain.spans(before, 99))
            head = await owned.head()
            chain.follow(owned.record.pieces)
            gone = head[: chance.randrange(len(head))]
            if gone:
                await owned.drop_head(owned.record, head, len(gone))
                for one in (chain, plain):
                    one.drop_before(head[len(gone)].ledger_id, len(gone), sum(info.entries for info in gone))
            await chain.load_index(chain.first)
            assert not chain.older
            assert (chain.first, chain.ledger_ids) == (plain.first, plain.ledger_ids)


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(0, 1 << 62)] * 4), min_size=1, max_size=20),
    st.lists(st.tuples(*[st.integers(0, 1 << 62)] * 8), max_size=5),
)
def test_a_piece_and_a_record_are_read_as_they_were_written(rows: list[Any], refs: list[Any]) -> None:
    pieces = tuple(PieceRef(*ref) for ref in refs)
    piece = ChainPiece(*(tuple(column) for column in zip(*rows, strict=True)))
    assert codec.decode(ChainPiece, codec.encode(piece)) == piece
    record = TopicRecord("t", tuple(LedgerInfo(*row) for row in rows), pieces=pieces, next_piece=len(pieces))
    value = codec.encode(record)
    assert codec.decode(TopicRecord, value) == record
    assert value.startswith(b"heliograph TopicRecord v%d " % (2 if pieces else 1))


async def test_a_record_of_an_earlier_release_is_folded_at_its_first_write() -> None:
    before = [info_of(10 + number) for number in range(11_000)]
    owned = await owned_record(MemoryServer(), before)
    await owned.check_room(owned.record)
    await owned.replace(replace(owned.record, ledgers=(*owned.record.ledgers, LedgerInfo(1 << 40))))
    assert len(owned.record.ledgers) <= topic_chain.TAIL_LEDGERS_MAX
    assert await all_ledgers(owned) == [*before, LedgerInfo(1 << 40)]


async def test_nothing_is_folded_while_a_broker_of_an_earlier_release_could_not_read_it() -> None:
    owned = await owned_record(MemoryServer(), [info_of(10 + number) for number in range(2_000)])
    store = owned._store
    older, newer = BrokerRegistration("b", "", ""), BrokerRegistration("c", "", "", reads_records=2)
    await store.create(paths.broker_available("b"), codec.encode(older), parents=True)
    await store.create(paths.broker_available("c"), codec.encode(newer), parents=True)
    await owned.replace(owned.record)
    assert not owned.record.pieces
    await store.delete(paths.broker_available("b"))
    await owned.replace(owned.record)
    assert owned.record.pieces


async def test_a_record_that_grows_too_large_is_folded_in_any_case() -> None:
    owned = await owned_record(MemoryServer(), [info_of(10 + one) for one in range(SHARED_LEDGERS_MAX + 1)])
    older = BrokerRegistration("b", "", "")
    await owned._store.create(paths.broker_available("b"), codec.encode(older), parents=True)
    await owned.replace(owned.record)
    assert owned.record.pieces


async def test_a_node_that_no_record_names_is_written_over(small: None) -> None:
    owned = await owned_record(MemoryServer(), [info_of(10 + number) for number in range(9)])
    await owned._store.create(paths.chain_piece(PATH, 0), b"of a backup")
    await owned.replace(owned.record)
    assert await all_ledgers(owned) == [info_of(10 + number) for number in range(9)]


async def test_operations_of_one_write(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece is created with the record that names it, and deleted with the one that does not (I9)."""
    owned = await owned_record(MemoryServer(), [info_of(10 + number) for number in range(9)])
    seen: list[list[str]] = []
    multi = owned._store.multi

    async def spy(operations: list[Operation]) -> Any:
        seen.append([type(one).__name__ for one in operations])
        return await multi(operations)

    monkeypatch.setattr(owned._store, "multi", spy)
    await owned.replace(owned.record)
    assert await trim(owned, 2) == 2
    assert await trim(owned, 9) == 1
    assert seen == [["Set", "Create"], ["Set"], ["Set", "Delete"]]


async def test_an_open_chain_follows_trimming_that_takes_a_piece_apart(small: None) -> None:
    policies = Policies(retention_seconds=0, retention_bytes=0)
    for gone in range(1, 50, 3):
        owned = await owned_record(MemoryServer(), [info_of(10 + number) for number in range(60)])
        await owned.replace(owned.record)
        chain = LedgerChain(owned.record.pieces, owned.piece)
        for info in owned.record.ledgers:
            chain.append(info.ledger_id, info.entries)
        asked = (owned, chain, (), partial(int, 10 + gone), 1 << 60, policies, lambda record: record)
        while await trim_batch(*asked, keeps_retained=True):
            pass
        await chain.load_index(chain.first)
        assert chain.ledger_ids == tuple(range(10 + gone, 70))


def in_steps(steps: Generator[None, None, list[bytes]]) -> list[bytes]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            parts: list[bytes] = end.value
            return parts


@pytest.mark.parametrize("mark", range(2, 120, 3))
async def test_a_snapshot_of_a_cursor_needs_no_older_ledgers_than_its_mark(small: None, mark: int) -> None:
    """I11: what is acknowledged is gathered from words of 64 entries, and those before the mark may not be there."""
    owned = await owned_record(MemoryServer(), [info_of(10 + number) for number in range(60)])
    await owned.replace(owned.record)
    chains = [LedgerChain(owned.record.pieces, owned.piece) for _ in range(2)]
    for chain in chains:
        for info in owned.record.ledgers:
            chain.append(info.ledger_id, info.entries)
    first = chains[0]
    cursor = Cursor(min(mark, first.end - 5))
    await first.load_index(cursor.mark)
    acknowledged = range(cursor.mark + 1, first.end, 2)
    for index in acknowledged:
        cursor.acknowledge(index)
    parts = in_steps(snapshot_steps(cursor, first, -1))
    replay = _Replay(restored := Cursor(chains[1].end), chains[1])
    for part in parts:
        await replay.apply(decode(part))
    assert restored.mark == cursor.mark
    assert [index for index in range(cursor.mark, first.end) if restored.is_acknowledged(index)] == [*acknowledged]


async def test_a_stale_record_is_not_written_over_what_a_cancelled_call_has_stored(small: None) -> None:
    """It would name a piece that is gone; the next owner reads what is stored instead (I23)."""
    server = MemoryServer()
    owned = await owned_record(server)
    for number in range(40):
        await owned.replace(replace(owned.record, ledgers=(*owned.record.ledgers, info_of(number))))
    assert owned.record.pieces
    head = await owned.head()
    trimming = asyncio.create_task(owned.drop_head(owned.record, head, len(head)))
    await asyncio.sleep(0)  # it is stored, and its answer is under way
    trimming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trimming
    with pytest.raises(ServiceNotReadyError):
        await owned.replace(replace(owned.record, properties={"closed": "1"}))
    again = await owned_record(server)
    assert next(info.ledger_id for info in await all_ledgers(again)) == len(head)
