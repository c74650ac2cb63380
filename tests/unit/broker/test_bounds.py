"""Bounds of a broker's memory (I15): entries published and not confirmed, and the tail cache."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.limits.publish_budget import PublishBudget, PublishShare
from heliograph.actors.broker.managed_ledger.tail_cache import ENTRY_OVERHEAD_BYTES, TailCache
from heliograph.actors.broker.records.position import Position
from tests.unit.broker.world import entry


def test_a_budget_wakes_waiters_once_half_is_free() -> None:
    budget = PublishBudget(100)
    one, other = PublishShare(budget), PublishShare(budget)
    woken: list[str] = []
    first, second = (lambda: woken.append("first")), (lambda: woken.append("second"))
    assert not one.hold(60, 60)
    assert not other.hold(40, 60)
    assert not budget.is_exhausted
    assert other.hold(1, 60)
    assert budget.is_exhausted
    assert (one.entries, one.bytes, other.entries, other.bytes) == (1, 60, 2, 41)
    budget.call_when_room(first)
    budget.call_when_room(second)
    budget.forget(second)
    other.settle(40)
    assert budget.is_exhausted
    assert woken == []
    assert one.hold(0, 1_000), "the budget is exhausted"
    one.settle(60)
    assert not budget.is_exhausted
    assert woken == ["first"]
    assert one.hold(61, 60), "more than one connection may have"
    one.settle(61)
    other.settle(1)
    assert budget.bytes == 0
    with pytest.raises(AssertionError):
        other.settle(1)


def test_the_cache_keeps_the_newest_within_its_bytes() -> None:
    cache = TailCache(10 * (ENTRY_OVERHEAD_BYTES + 100))
    for number in range(25):
        cache.put(Position(1, number), entry("x" * 100))
    assert len(cache) == 10
    assert cache.bytes <= cache.bytes_max
    assert cache.get(Position(1, 14)) is None
    assert cache.get(Position(1, 15)) is not None
    assert (cache.hits, cache.misses) == (1, 1)
    cache.put(Position(2, 0), entry("y" * cache.bytes_max))
    assert len(cache) == 0
    assert cache.bytes == 0
