"""Sizes of backlogs, compared with a count of every entry."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.managed_ledger.backlog_size import LedgerSize, backlog_bytes, mark_within

COUNTS = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 50)), min_size=1, max_size=6)


def ledgers_of(counts: list[tuple[int, int]]) -> tuple[list[LedgerSize], list[int]]:
    """Return ledgers, newest first, whose entries all have the same size, and the size of every entry."""
    ledgers: list[LedgerSize] = []
    entries: list[int] = []
    for count, size in counts:
        ledgers.append(LedgerSize(len(entries), count, count * size))
        entries += [size] * count
    return ledgers[::-1], entries


@given(COUNTS, st.integers(0, 120))
def test_a_backlog_is_the_sum_of_its_entries(counts: list[tuple[int, int]], mark: int) -> None:
    ledgers, entries = ledgers_of(counts)
    assert backlog_bytes(ledgers, mark) == sum(entries[mark:])


@given(COUNTS, st.integers(0, 3_000))
def test_the_mark_keeps_as_much_as_fits(counts: list[tuple[int, int]], bytes_max: int) -> None:
    ledgers, entries = ledgers_of(counts)
    mark = mark_within(ledgers, bytes_max)
    assert sum(entries[mark:]) <= bytes_max
    assert mark == 0 or sum(entries[mark - 1 :]) > bytes_max
