"""What clients do not take is bounded over all connections (I15): the connection that was full first is closed."""

from __future__ import annotations

import asyncio
import random

from heliograph.base.guard.listener import UNSENT_LIMIT_LEAST, UnsentBudget

MIB = 1 << 20


class Writer(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.limit = self.waiting = 0
        self.is_dropped = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.limit = high or 0

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.is_dropped = True


def note(budget: UnsentBudget, writer: Writer, size: int) -> None:
    writer.waiting = size
    budget.note(writer, is_full=size > 0)


def joined(budget: UnsentBudget, count: int) -> list[Writer]:
    writers = [Writer() for _ in range(count)]
    for writer in writers:
        budget.join(writer)
    return writers


def test_the_limits_of_all_connections_fit_half_of_the_budget_however_many_there_are() -> None:
    budget = UnsentBudget(4 * MIB, 256 * MIB)
    writers = joined(budget, 32)
    assert {writer.limit for writer in writers} == {4 * MIB}
    writers += joined(budget, 1_000)
    assert sum(writer.limit for writer in writers) <= 128 * MIB
    writers += joined(budget, 9_000)
    assert {writer.limit for writer in writers} == {UNSENT_LIMIT_LEAST}
    for writer in writers[10:]:
        budget.leave(writer)
    assert {writer.limit for writer in writers[:10]} == {4 * MIB}


def test_the_connection_that_was_full_first_is_closed_when_the_budget_is_exceeded() -> None:
    budget = UnsentBudget(4, 10)
    first, second, third = joined(budget, 3)
    note(budget, first, 4)
    note(budget, second, 4)
    note(budget, first, 6)
    assert (budget.bytes, first.is_dropped) == (10, False)
    note(budget, third, 4)
    assert (budget.bytes, budget.dropped) == (8, 1)
    assert [writer.is_dropped for writer in (first, second, third)] == [True, False, False]


def test_a_connection_that_was_read_again_is_not_the_first_any_more() -> None:
    budget = UnsentBudget(4, 10)
    first, second = joined(budget, 2)
    note(budget, first, 5)
    note(budget, second, 5)
    note(budget, first, 0)
    note(budget, first, 6)
    assert (first.is_dropped, second.is_dropped) == (False, True)


def test_what_is_counted_is_what_the_full_connections_hold_and_never_above_the_budget() -> None:
    rng = random.Random(7)
    budget = UnsentBudget(4, 1_000)
    writers: list[Writer] = []
    held: dict[Writer, int] = {}
    for _ in range(5_000):
        if rng.random() < 0.2 or not writers:
            writers += joined(budget, 1)
        writer = rng.choice(writers)
        if rng.random() < 0.1:
            budget.leave(writer)
            writers.remove(writer)
            held.pop(writer, None)
            continue
        size = rng.choice([0, 50, 300])
        note(budget, writer, size)
        held[writer] = size
        for dropped in [each for each in writers if each.is_dropped]:
            writers.remove(dropped)
            del held[dropped]
        assert budget.bytes == sum(held.values()) <= 1_000
    assert budget.dropped > 0
