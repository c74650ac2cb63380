"""The index of placements, against a plain dictionary, and its bytes."""

from __future__ import annotations

import random
import sys

from heliograph.actors.auditor.placements.index import LedgerPlacement, PlacementIndex, placement_of
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment

BOOKIES = [f"b{number}" for number in range(300)]  # numbers of two bytes, among them some with a zero byte


def placement(ledger_id: int, *held: str, is_closed: bool = True) -> LedgerPlacement:
    return LedgerPlacement(
        ledger_id, len(held[0].split()), 2, 2, is_closed, tuple(tuple(each.split()) for each in held)
    )


def test_only_segments_that_may_hold_entries_are_placed() -> None:
    segments = (Segment(0, ("a", "b")), Segment(10, ("a", "c")))
    closed = LedgerMetadata(1, 2, 2, 1, segments, LedgerState.CLOSED, 9)
    assert placement_of(closed).held == (("a", "b"),)
    assert placement_of(LedgerMetadata(1, 2, 2, 1, segments)).held == (("a", "b"), ("a", "c"))
    assert placement_of(LedgerMetadata(1, 2, 2, 1, segments[:1], LedgerState.CLOSED, -1)).held == ()


def test_random_changes_leave_what_a_dictionary_has() -> None:
    rng = random.Random(5)
    index, model, compared = PlacementIndex(), dict[int, LedgerPlacement](), set[int]()
    ids = [rng.randrange(50_000) for _ in range(300)] + [10**10 + 7]
    for _ in range(5_000):
        ledger_id, chance = rng.choice(ids), rng.random()
        if chance < 0.3:
            assert index.remove(ledger_id) == model.pop(ledger_id, None)
            compared.discard(ledger_id)
        elif chance < 0.4:
            index.note_compared(ledger_id)
            if ledger_id in model and model[ledger_id].is_closed:
                compared.add(ledger_id)
        else:
            size = rng.choice((2, 3, 5))
            held = [" ".join(rng.sample(BOOKIES, size)) for _ in range(rng.choice((1, 1, 1, 2)))]
            new = placement(ledger_id, *held, is_closed=rng.random() < 0.7)
            before = model.get(ledger_id)
            assert index.put(new) == before
            model[ledger_id] = new
            if before is not None and not (before.is_closed and new.is_closed):
                compared.discard(ledger_id)
    assert len(index) == len(model)
    assert all(index.get(ledger_id) == model.get(ledger_id) for ledger_id in ids)
    assert index.named == {name for each in model.values() for name in each.bookies}
    assert index.ids_from(0, 1 << 60) == sorted(model)
    assert index.ids_from(20_000, 30_000) == [each for each in sorted(model) if 20_000 <= each < 30_000]
    for wanted in ({"b0"}, {"b255", "b256"}, set(BOOKIES), {"unknown"}):
        found = [each for some in index.on(wanted) for each in some]
        assert sorted(found, key=lambda each: each.ledger_id) == [
            model[each] for each in sorted(model) if model[each].bookies & wanted
        ]
    for name in BOOKIES[:20]:
        on = [each for each in model.values() if name in each.bookies]
        tallied = list(index.tally(name))
        assert sum(count for count, _ in tallied) == len(on)
        assert sum(count for _, count in tallied) == sum(not each.is_closed for each in on)
    due = sorted(each for each in model if model[each].is_closed and each not in compared)
    for after in (-1, due[3], due[3] + 1, 25_000, 1 << 40):
        beyond = [each for each in due if each > after]
        assert [each.ledger_id for each in index.uncompared(after)] == beyond + [each for each in due if each <= after]
    index.begin_turn()
    assert len(list(index.uncompared(-1))) == sum(each.is_closed for each in model.values())
    for ledger_id in ids:
        index.remove(ledger_id)
    assert len(index) == 0
    assert index.named == set()


def test_a_search_stops_after_each_table_also_where_it_finds_nothing() -> None:
    index = PlacementIndex()
    for directory in range(50):
        index.put(placement(directory * 10_000, "b1 b2"))
    index.put(placement(499_999, "b3 b2"))
    found = list(index.on({"b3"}))
    assert len(found) == 50
    assert [each.ledger_id for some in found for each in some] == [499_999]


def test_a_ledger_takes_few_bytes_however_many_there_are() -> None:
    rng = random.Random(1)

    def bytes_of(count: int) -> float:
        index = PlacementIndex()
        for ledger_id in range(count):
            index.put(placement(ledger_id, " ".join(rng.sample(BOOKIES, 3))))
        tables = [table for tables in index._directories.values() for table in tables.values()]
        held = sum(sys.getsizeof(table.lows) + sys.getsizeof(table.names) + sys.getsizeof(table) for table in tables)
        return (held + sys.getsizeof(index._directories) + sys.getsizeof(index._order)) / count

    assert bytes_of(1_000) < 20
    assert bytes_of(25_000) < 20
