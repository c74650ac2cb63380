"""The cursor compared with a naive model, and its records compared with the state that they encode."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.index_set import CHUNK_BITS, IndexSet
from heliograph.actors.broker.cursor.return_counts import NO_COUNTS, Counts, least_refused
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.records.message_count import NOTHING_COUNTED
from heliograph.actors.broker.records.position import Position
from heliograph.actors.errors import EntryDamagedError
from tests.examples import examples

ENTRIES = 3_000
BATCH = 4  # messages of each entry in the model


def chain_of(*counts: int) -> LedgerChain:
    chain = LedgerChain()
    for number, count in enumerate(counts):
        chain.append(100 + 7 * number, count)
    return chain


def encode_snapshot(cursor: Cursor, chain: LedgerChain, base: int) -> list[bytes]:
    """Return the parts of a snapshot, made without a change in between."""
    return run_out(cursor_record.snapshot_steps(cursor, chain, base))


def run_out(steps: Generator[None, None, list[bytes]]) -> list[bytes]:
    while True:
        try:
            next(steps)
        except StopIteration as done:
            parts: list[bytes] = done.value
            return parts


def apply(data: bytes, cursor: Cursor, chain: LedgerChain) -> None:
    for rows in cursor_record.apply_record(cursor_record.decode(data), cursor, chain):
        assert rows < cursor_record.STEP_ROWS_MAX + 2 + CHUNK_BITS // 64


def state_of(cursor: Cursor, end: int) -> tuple[list[int], dict[int, int]]:
    unacknowledged = [index for index in range(end) if not cursor.is_acknowledged(index)]
    return unacknowledged, dict(cursor.partial_items())


class CursorAgainstModel(RuleBasedStateMachine):
    """The model holds the unacknowledged messages of each entry; the log holds the records of a cursor ledger."""

    indexes = st.one_of(st.integers(0, 40), st.integers(0, ENTRIES - 1))

    def __init__(self) -> None:
        super().__init__()
        self.chain = chain_of(10, 0, 1_500, 490, 1_000)
        self.cursor = Cursor(0)
        self.model = dict.fromkeys(range(ENTRIES), (1 << BATCH) - 1)
        # How often each unacknowledged entry, and its messages, were given back, and were lost with a consumer.
        self.returns: tuple[dict[int, Counts], dict[int, Counts]] = ({}, {})
        self.log: list[bytes] = encode_snapshot(self.cursor, self.chain, -1)
        self.steps: Generator[None, None, list[bytes]] | None = None
        self.confirmed: dict[int, int] = {}  # what was acknowledged when the steps began
        self.has_sought = False

    @rule(index=indexes)
    def acknowledge(self, index: int) -> None:
        before = self.model[index]
        assert self.cursor.acknowledge(index) == (before != 0)
        self.model[index] = 0

    @rule(first=indexes, count=st.integers(1, 200))
    def acknowledge_every_other(self, first: int, count: int) -> None:
        for index in range(first, min(first + 2 * count, ENTRIES), 2):
            self.cursor.acknowledge(index)
            self.model[index] = 0

    @rule(index=indexes, bits=st.integers(0, (1 << BATCH) - 1))
    def acknowledge_messages(self, index: int, bits: int) -> None:
        before = self.model[index]
        self.model[index] = before & bits
        assert self.cursor.acknowledge_messages(index, bits) == (before != 0 and self.model[index] == 0)

    @rule(index=indexes)
    def acknowledge_up_to(self, index: int) -> None:
        self.cursor.skip_to(index + 1)
        self.model.update(dict.fromkeys(range(index + 1), 0))

    def count(self, index: int, is_crash: bool, bits: int = 0) -> None:
        count = self.cursor.count_crash if is_crash else self.cursor.count_redelivery
        count(index, bits)

    @rule(first=indexes, count=st.integers(1, 30), is_crash=st.booleans())
    def give_back(self, first: int, count: int, is_crash: bool) -> None:
        for index in range(first, min(first + count, ENTRIES)):
            self.count(index, is_crash)
            if self.model[index]:
                entry, messages = self.returns[is_crash].get(index, NO_COUNTS)
                self.returns[is_crash][index] = Counts(entry + 1, messages)

    @rule(index=indexes, bits=st.integers(1, (1 << BATCH) - 1), times=st.sampled_from([1, 300]), is_crash=st.booleans())
    def refuse(self, index: int, bits: int, times: int, is_crash: bool) -> None:
        for _ in range(times):
            self.count(index, is_crash, bits)
        if self.model[index]:
            entry, refusals = self.returns[is_crash].get(index, NO_COUNTS)
            counts = bytearray(refusals.to_bytes(BATCH, "little"))
            for message in range(BATCH):
                if bits >> message & 1:
                    counts[message] = min(counts[message] + times, 255)
            self.returns[is_crash][index] = Counts(entry, int.from_bytes(counts, "little"))

    @rule(mark=st.integers(0, ENTRIES))
    def seek(self, mark: int) -> None:
        self.cursor.reset(mark)
        for returns in self.returns:
            returns.clear()
        self.has_sought = True
        self.model = {index: 0 if index < mark else (1 << BATCH) - 1 for index in range(ENTRIES)}

    @rule()
    def begin_snapshot(self) -> None:
        """A large snapshot is made in steps, between which the cursor changes."""
        self.steps = None
        self.write_delta()
        self.cursor.take_delta()
        self.steps = cursor_record.snapshot_steps(self.cursor, self.chain, 0)
        self.confirmed, self.has_sought = dict(self.model), False

    @precondition(lambda self: self.steps is not None)
    @rule(count=st.integers(1, 60))
    def continue_snapshot(self, count: int) -> None:
        assert self.steps is not None
        try:
            for _ in range(count):
                next(self.steps)
        except StopIteration as done:
            self.log, self.steps = done.value, None
            alone = recovered(self.log, self.chain)
            for index, bits in self.confirmed.items() if not self.has_sought else ():
                left = 0 if alone.is_acknowledged(index) else alone.unacknowledged_bits(index)
                assert ((1 << BATCH) - 1 if left is None else left) & ~bits == 0, "a confirmed one is in it"  # I11
            self.write_delta()

    @rule()
    def write_delta(self) -> None:
        if self.steps is not None:
            return  # the log has one write in flight
        delta = self.cursor.take_delta()
        if delta is not None:
            self.log.append(cursor_record.encode_delta(delta, self.chain, 0))

    @rule()
    def write_snapshot(self) -> None:
        self.steps = None
        self.cursor.take_delta()
        self.log = encode_snapshot(self.cursor, self.chain, 0)

    @rule()
    def recover(self) -> None:
        """I11: recovery restores what was written, whatever the mixture of snapshots and deltas."""
        if self.steps is not None:
            self.continue_snapshot(1_000)
        self.write_delta()
        self.cursor = recovered(self.log, self.chain)

    @invariant()
    def agrees_with_model(self) -> None:
        open_entries = [index for index, bits in self.model.items() if bits]
        assert self.cursor.backlog(ENTRIES) == len(open_entries)
        first = min(open_entries, default=ENTRIES)
        assert self.cursor.mark == first  # I11: the mark stops at the first unacknowledged entry
        assert self.cursor.next_unacknowledged(0) == first

    def teardown(self) -> None:
        expected = {index: bits for index, bits in self.model.items() if bits}
        unacknowledged, partial = state_of(self.cursor, ENTRIES)
        assert unacknowledged == list(expected)
        assert {index: partial.get(index, (1 << BATCH) - 1) for index in unacknowledged} == expected
        assert all(index in expected for index in partial)
        for counts, returns in zip((self.cursor.refused, self.cursor.crashed), self.returns, strict=True):
            kept = {index: count for index, count in returns.items() if index in expected}
            assert dict(counts.items()) == kept
            for index in range(ENTRIES):
                assert counts.of(index) == kept.get(index, NO_COUNTS)


@pytest.fixture(scope="class")
def small_steps() -> Iterator[None]:
    """The model is small, so steps are too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cursor_record, "STEP_ROWS_MAX", 3)
        patch.setattr(cursor_record, "PART_ITEMS_MAX", 8)
        yield


CursorAgainstModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)
TestCursorAgainstModel = pytest.mark.usefixtures("small_steps")(CursorAgainstModel.TestCase)


def recovered(log: list[bytes], chain: LedgerChain) -> Cursor:
    cursor = Cursor(0)
    for data in log:
        apply(data, cursor, chain)
    return cursor


@pytest.mark.slow
def test_a_million_holes_cost_an_acknowledgement_nothing_extra() -> None:
    count = 2_000_000
    chain = chain_of(count)
    cursor = Cursor(0)
    for index in range(1, count, 2):
        cursor.acknowledge(index)
    cursor.take_delta()
    assert cursor.acknowledged_above_mark == count // 2
    cursor.acknowledge(1_000_000)
    delta = cursor.take_delta()
    assert delta is not None
    assert len(cursor_record.encode_delta(delta, chain, 0)) < 100
    parts = encode_snapshot(cursor, chain, 0)
    assert sum(map(len, parts)) < 600_000
    again = recovered(parts, chain)
    assert again.backlog(count) == cursor.backlog(count) == count // 2 - 1


def test_a_large_snapshot_comes_in_parts() -> None:
    count = 3_000 * 1024
    chain = chain_of(count)
    cursor = Cursor(0)
    for index in range(1, count, 1024):
        cursor.acknowledge(index)
    parts = encode_snapshot(cursor, chain, 5)
    assert len(parts) == 2
    decoded = [cursor_record.decode(part) for part in parts]
    assert [part.completes_snapshot for part in decoded] == [False, True]
    assert recovered(parts, chain).acknowledged_above_mark == 3_000


@pytest.mark.parametrize("batches", [0, 1, 14, 15, 16, cursor_record.PART_ITEMS_MAX, cursor_record.PART_ITEMS_MAX + 1])
def test_a_snapshot_has_the_acknowledged_messages_beside_any_number_of_batches(batches: int) -> None:
    chain, cursor = chain_of(2 * batches + 2), Cursor(0)
    chain.count = NOTHING_COUNTED
    cursor.restore_messages(0)
    for index in range(1, 2 * batches, 2):
        cursor.acknowledge_messages(index, 0b110, 3)
    again = recovered(encode_snapshot(cursor, chain, -1), chain)
    assert again.acknowledged_messages == batches
    assert dict(again.partial_items()) == dict.fromkeys(range(1, 2 * batches, 2), 0b110)


def test_parts_of_a_snapshot_fit_an_entry_however_large_batches_are() -> None:
    """A part larger than any entry could never be stored, nor could any acknowledgement of the subscription."""
    chain, cursor = LedgerChain(), Cursor(0)
    chain.append(1, 400)
    bits = (1 << 200_000) - 2
    for index in range(1, 400):
        cursor.acknowledge_messages(index, bits)
    parts = encode_snapshot(cursor, chain, -1)
    assert max(map(len, parts)) < 2 << 20
    again = Cursor(0)
    for part in parts:
        apply(part, again, chain)
    assert dict(again.partial_items()) == dict(cursor.partial_items())


def test_a_release_that_knows_no_redelivery_counts_passes_over_them() -> None:
    """An older broker that takes a cursor over in a rolling upgrade looks up the ledger of an item, and finds none."""
    chain, cursor = chain_of(10, 10), Cursor(0)
    cursor.acknowledge_messages(3, 0b101)
    cursor.count_redelivery(4)
    cursor.count_redelivery(12)
    cursor.count_redelivery(12, 0b101)
    cursor.count_redelivery(13, 0b10)
    cursor.count_crash(4)
    cursor.count_crash(13, 0b10)
    cursor.count_crash_alone(12)  # no crash was counted before
    cursor.count_crash_alone(13, 0b10)
    delta = cursor.take_delta()
    assert delta is not None
    for record in (*encode_snapshot(cursor, chain, -1), cursor_record.encode_delta(delta, chain, -1)):
        items = cursor_record.decode(record).partial
        assert [chain.find(Position(ledger_id, entry_id)) for ledger_id, entry_id, _ in items] == [3] + [None] * 7
        earlier = [max(ledger_id, ~ledger_id) for ledger_id, _, _ in items]  # where the release before this one looks
        assert sum(chain.find(Position(at, 0)) is not None for at in earlier) == 3
        found = recovered([record], chain)
        assert dict(found.refused.items()) == {4: (1, 0), 12: (1, 0x010001), 13: (0, 0x0100)}
        assert dict(found.crashed.items()) == {4: (1, 0), 13: (0, 0x0100)}
        assert dict(found.crashed_alone.items()) == {13: (0, 0x0100)}


def test_only_so_many_redelivery_counts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are kept go on, so that each of them becomes a dead letter and makes room."""
    monkeypatch.setattr("heliograph.actors.broker.cursor.return_counts.REDELIVERED_MAX", 2)
    cursor = Cursor(0)
    for index in (0, 1, 2, 0, 1, 2):
        cursor.count_redelivery(index)
    assert dict(cursor.refused.items()) == {0: (2, 0), 1: (2, 0)}
    cursor.acknowledge(0)
    cursor.count_redelivery(2)
    assert dict(cursor.refused.items()) == {1: (2, 0), 2: (1, 0)}


def test_fewer_entries_have_counts_of_their_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.actors.broker.cursor.return_counts.REFUSED_MAX", 2)
    cursor = Cursor(0)
    for index in (0, 1, 2, 0):
        cursor.count_redelivery(index, 1)
    assert [cursor.refused.of(index).messages for index in range(3)] == [2, 1, 0]
    cursor.acknowledge(0)
    cursor.count_redelivery(2, 1)
    assert cursor.refused.of(2).messages == 1


def test_trimmed_ledgers_count_as_acknowledged() -> None:
    chain = chain_of(10, 10)
    cursor = Cursor(0)
    cursor.acknowledge(3)
    cursor.acknowledge(12)
    record = encode_snapshot(cursor, chain, -1)
    chain.drop_before(107, 1, 10)
    again = recovered(record, chain)
    assert again.mark == 10
    assert not again.is_acknowledged(11)
    assert again.is_acknowledged(12)


@pytest.mark.parametrize("place", [0, 5, 9, 25])
def test_damage_is_noticed(place: int) -> None:
    data = bytearray(encode_snapshot(Cursor(3), chain_of(5), -1)[0])
    data[place] ^= 1
    with pytest.raises(EntryDamagedError):
        cursor_record.decode(bytes(data))
    with pytest.raises(EntryDamagedError):
        cursor_record.decode(bytes(data[:20]))


def after_missing(naive: set[int], index: int, count: int) -> int:
    """Return the index after the first ``count`` integers at or above ``index`` that are not in the set."""
    for place in range(index, 6_000):
        if not count:
            return place
        count -= place not in naive
        index = place + 1
    return index + count


def test_index_set_against_a_set() -> None:
    chance = random.Random(7)
    ours, naive = IndexSet(), set[int]()
    for step in range(20_000):
        index = chance.randrange(5_000)
        match chance.randrange(5):
            case 0 | 1:
                assert ours.add(index) == (index not in naive)
                naive.add(index)
            case 2:
                ours.remove(index)
                naive.discard(index)
            case 3:
                stop = ours.pop_run(index)
                assert all(place in naive for place in range(index, stop))
                assert stop not in naive
                naive -= set(range(index, stop))
            case _:
                bits = chance.getrandbits(chance.randrange(1, 40))
                ours.add_bits(index, bits)
                naive |= {index + place for place in range(40) if bits >> place & 1}
        assert ours.count == len(naive)
        if step % 50 == 0:
            assert ours.run_count == sum(index - 1 not in naive for index in naive)
    runs = [index for first, stop in ours.runs() for index in range(first, stop)]
    assert runs == sorted(naive)
    for index in range(0, 5_100, 37):
        missing = index
        while missing in naive:
            missing += 1
        assert ours.next_missing(index) == missing
        for count in (0, 1, 36, 900, 4_000, 1 << 62):
            assert ours.after_missing(index, count) == after_missing(naive, index, count)
    for stop in (700, 1_024, 2_500):
        ours.drop_range(0, stop)
        naive = {index for index in naive if index >= stop}
        assert ours.count == len(naive)
        assert ours.run_count == sum(index - 1 not in naive for index in naive)
    ours.clear()
    assert ours.run_count == 0


def test_chain_maps_positions_over_empty_and_trimmed_ledgers() -> None:
    chain = chain_of(3, 0, 2)  # ledgers 100, 107, 114
    assert [chain.position_at(index) for index in range(5)] == [
        Position(100, 0), Position(100, 1), Position(100, 2), Position(114, 0), Position(114, 1)
    ]  # fmt: skip
    assert chain.position_at(5) == Position(114, 2)
    assert chain.find(Position(107, 0)) is None
    assert chain.after(Position(107, -1)) == 3
    assert chain.after(Position(100, 99)) == 3
    assert chain.after(Position(500, 0)) == 5
    assert chain.position_before(3) == Position(100, 2)
    assert chain.position_before(0) == Position(100, -1)
    assert chain.confirm(2) == chain.position_at(5)
    chain.drop_before(107, 1, 3)
    assert chain.find(Position(100, 1)) is None
    assert chain.after(Position(100, 1)) == chain.first == 3
    assert chain.position_before(3) == Position(107, -1)
    with pytest.raises(AssertionError):  # I12
        chain.append(90)
    with pytest.raises(AssertionError):  # I2
        chain.confirm(0)


@pytest.mark.slow
def test_refusals_of_a_huge_batch_are_counted_in_little_time() -> None:
    """A batch may have a million messages; a loop over them would hold the event loop for minutes (I24)."""
    cursor, messages = Cursor(0), 1 << 20
    every = (1 << messages) - 1
    begun = time.process_time()
    cursor.count_redelivery(0, every >> 1)
    cursor.count_redelivery(0, 0b101)
    refusals = cursor.refused.of(0).messages
    found = least_refused(refusals, every), least_refused(refusals, every >> 1)
    assert time.process_time() - begun < 1
    assert found == ((1 << messages - 1, 0), ((every >> 1) & ~0b101, 1))
    for _ in range(300):
        cursor.count_redelivery(0, 0b10)
    assert least_refused(cursor.refused.of(0).messages, 0b10) == (0b10, 255)
