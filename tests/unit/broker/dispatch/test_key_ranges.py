"""Key ranges as consumers join and leave: what they own, what moves, and how much work that is."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.key_ring import FixedRanges, KeyRanges, KeyRing
from heliograph.actors.broker.dispatch.key_split import KeySplit
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE

MANY = 5_000
SAMPLE = 5  # every fifth is compared
STEPS_MAX = 2_000  # lines of Python for one consumer among MANY that joins or leaves


def consumer(number: int) -> ConsumerState:
    return ConsumerState(number, f"c{number}")


def owners(ranges: KeyRanges, step: int = 1) -> list[ConsumerState | None]:
    return [ranges.owner(key_hash) for key_hash in range(0, KEY_HASH_RANGE, step)]


def sampled(first: int, last: int) -> range:
    """Return the places in ``owners`` with the step ``SAMPLE`` of a range of hashes, both ends included."""
    return range(-(-first // SAMPLE), last // SAMPLE + 1)


def steps_of(work: Callable[[], Any]) -> int:
    """Return how many lines of Python a call executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("make", [KeyRing, KeySplit])
def test_what_moves_is_reported_and_nothing_else_changes(make: Callable[[], KeyRanges]) -> None:
    random_, ranges = random.Random(5), make()
    connected: list[ConsumerState] = []
    before = owners(ranges, SAMPLE)
    for number in range(60):
        is_leaving = len(connected) > 1 and random_.random() < 0.45
        if is_leaving:
            one = connected.pop(random_.randrange(len(connected)))
            moved = ranges.remove(one)
        else:
            one = consumer(number)
            connected.append(one)
            moved = ranges.add(one)
        after = owners(ranges, SAMPLE)
        changed = {at for at in range(len(after)) if before[at] is not after[at] and before[at] is not None}
        told = {at: loser for first, last, loser in moved for at in sampled(first, last) if loser is not None}
        assert changed == told.keys()
        assert all(before[at] is loser for at, loser in told.items())
        assert all((after[at] is one) != is_leaving for at in changed)
        for each in connected:
            held = {at for first, last in ranges.ranges(each) for at in sampled(first, last)}
            assert held == {at for at in range(len(after)) if after[at] is each}
        before = after
    rebuilt = make()
    if make is KeyRing:
        for one in sorted(connected, key=lambda one: -one.key):
            rebuilt.add(one)
        assert owners(rebuilt, SAMPLE) == before, "the order in which consumers joined does not matter"
    for one in connected:
        ranges.remove(one)
    assert set(owners(ranges)) == {None}


@pytest.mark.slow
@pytest.mark.parametrize("make", [KeyRing, KeySplit])
def test_among_thousands_joining_and_leaving_is_cheap_and_fair(make: Callable[[], KeyRanges]) -> None:
    ranges, connected = make(), [consumer(number) for number in range(MANY)]
    for one in connected:
        ranges.add(one)
    shares = dict.fromkeys(connected, 0)
    for owner in owners(ranges):
        assert owner is not None
        shares[owner] += 1
    assert min(shares.values()) > 0, "each has keys"
    assert max(shares.values()) < 5 * KEY_HASH_RANGE / MANY
    late = consumer(MANY)
    assert steps_of(lambda: ranges.add(late)) < STEPS_MAX
    assert steps_of(lambda: ranges.remove(late)) < STEPS_MAX


def test_fixed_ranges() -> None:
    ranges = FixedRanges()
    low, high, odd = consumer(1), consumer(2), consumer(3)
    low.key_ranges, high.key_ranges = ((0, 99), (200, 299)), ((100, 199),)
    ranges.add(low)
    ranges.add(high)
    expected = [low, low, high, high, low, low, None]
    assert [ranges.owner(at) for at in (50, 99, 100, 199, 200, 299, 300)] == expected
    for wrong in ((299, 300), (5, 4), (0, 65_536), (65_535, 65_536), (0, 400)):
        odd.key_ranges = (wrong,)
        with pytest.raises(ConsumerAssignError):
            ranges.add(odd)
    odd.key_ranges = ((400, 500), (500, 600))
    with pytest.raises(ConsumerAssignError):
        ranges.add(odd)
    assert ranges.ranges(low) == [(0, 99), (200, 299)]
    ranges.remove(high)
    odd.key_ranges = ((300, 65_535), (100, 199))
    ranges.add(odd)
    assert ranges.ranges(odd) == [(100, 199), (300, 65_535)]
    for one in (low, odd):
        ranges.remove(one)
    assert ranges._ends == [KEY_HASH_RANGE - 1]
    assert set(owners(ranges)) == {None}
