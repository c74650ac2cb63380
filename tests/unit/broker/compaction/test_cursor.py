"""Tests of the cursor of a subscription that reads the compacted form, across compactions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.compaction.chain import CompactedChain, Positions
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.record import apply_record, decode, encode_delta, snapshot_steps
from heliograph.actors.broker.managed_ledger.chain import Chain, LedgerChain
from heliograph.actors.broker.records.position import Position
from tests.unit.broker.cursor.test_cursor import run_out

SIZES = {1: 4, 3: 9, 7: 6}  # of the ledgers of the topic


def topic() -> LedgerChain:
    chain = LedgerChain()
    for ledger_id, entries in SIZES.items():
        chain.append(ledger_id, entries)
    return chain


def compacted(kept: list[Position], horizon: Position) -> CompactedChain:
    return CompactedChain(topic(), Positions(kept), horizon)


def acknowledged(cursor: Cursor, chain: Chain) -> set[Position]:
    indexes = range(chain.first, chain.end)
    return {chain.position_at(index) for index in indexes if cursor.is_acknowledged(index)}


def snapshot(cursor: Cursor, chain: Chain) -> list[bytes]:
    return run_out(snapshot_steps(cursor, chain, -1))


def restored(records: list[bytes], chain: Chain) -> Cursor:
    cursor = Cursor(chain.first)
    for data in records:
        for _ in apply_record(decode(data), cursor, chain):
            pass
    return cursor


def test_acknowledgements_in_a_row_stay_with_their_entries_after_a_compaction() -> None:  # I11
    before, after = topic(), compacted([Position(3, 0), Position(3, 1), Position(3, 3)], Position(3, 3))
    cursor = Cursor(before.at_or_after(Position(3, 0)))
    for entry_id in (1, 2, 3):
        cursor.acknowledge(before.at_or_after(Position(3, entry_id)))
    delta = cursor.take_delta()
    assert delta is not None, "there are acknowledgements"
    for records in (snapshot(cursor, before), [encode_delta(delta, before, -1)]):
        assert acknowledged(restored(records, after), after) == {Position(3, 1), Position(3, 3)}


everything = [Position(ledger_id, entry_id) for ledger_id, size in SIZES.items() for entry_id in range(size)]


@given(st.sets(st.sampled_from(everything)), st.sets(st.sampled_from(everything)), st.sampled_from(everything[:-1]))
def test_a_cursor_counts_by_another_form_of_its_topic(
    acks: set[Position], kept: set[Position], horizon: Position
) -> None:  # I11
    before = topic()
    after = compacted(sorted(one for one in kept if one <= horizon), horizon)
    cursor = Cursor(before.first)
    for position in acks:
        cursor.acknowledge(before.at_or_after(position))
    found = acknowledged(restored(snapshot(cursor, before), after), after)
    assert found == {position for position in acks if after.find(position) is not None}
