"""Assignment and shedding of bundles: they do not move back and forth, nor many at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.balance.load_balancer import (
    LoadBalancer,
    Move,
    is_stuck,
    is_too_large,
    is_worth_writing,
    load_of,
)
from heliograph.actors.broker.config import BalanceLimits, SplitLimits
from heliograph.metadata.model import BrokerLoad, BundleLoad

LIMITS = BalanceLimits(rounds=2, moves_max=3, rest_seconds=1_000.0)


class Fleet:
    """Brokers whose load is the sum of their bundles' loads."""

    def __init__(self, costs: dict[str, list[int]]) -> None:
        self.bundles = {
            broker: {f"/{broker}/{number}": cost for number, cost in enumerate(list_)}
            for broker, list_ in costs.items()
        }

    def reports(self) -> dict[str, BrokerLoad]:
        return {
            broker: BrokerLoad(
                broker,
                cpu_share=self.load(broker),
                bundles_owned=len(owned),
                bundles=tuple(BundleLoad(path, 1, 0.0, float(cost)) for path, cost in owned.items()),
            )
            for broker, owned in self.bundles.items()
        }

    def load(self, broker: str) -> float:
        return sum(self.bundles[broker].values()) / 100

    def make(self, move: Move) -> None:
        self.bundles[move.receiver][move.path] = self.bundles[move.giver].pop(move.path)

    @property
    def worst(self) -> float:
        return max(self.load(broker) for broker in self.bundles)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from("abcd"), st.lists(st.integers(0, 60), min_size=1, max_size=8), min_size=2, max_size=4
    )
)
def test_moves_end_and_never_make_the_busiest_broker_busier(costs: dict[str, list[int]]) -> None:
    fleet, balancer = Fleet(costs), LoadBalancer(replace(LIMITS, rest_seconds=0.0))
    moved: list[str] = []
    for number in range(60):
        worst = fleet.worst
        moves = balancer.round(fleet.reports(), fleet.bundles, float(number))
        assert len(moves) <= LIMITS.moves_max
        assert len({move.path for move in moves}) == len(moves)
        for move in moves:
            fleet.make(move)
            assert fleet.load(move.receiver) <= fleet.load(move.giver) + 1e-9  # else it would come back
            moved.append(move.path)
        assert fleet.worst <= worst + 1e-9
    for number in range(60, 60 + LIMITS.rounds):
        assert balancer.round(fleet.reports(), fleet.bundles, float(number)) == []  # it has settled


def test_a_short_peak_moves_nothing() -> None:
    busy, calm = Fleet({"a": [50, 45], "b": [5]}), Fleet({"a": [10, 5], "b": [5]})
    balancer = LoadBalancer(LIMITS)
    for _ in range(4):
        assert balancer.round(busy.reports(), "ab", 0.0) == []
        assert balancer.round(calm.reports(), "ab", 0.0) == []


def test_a_bundle_that_moved_rests() -> None:
    fleet, balancer = Fleet({"a": [30, 30, 30], "b": []}), LoadBalancer(LIMITS)
    balancer.round(fleet.reports(), "ab", 0.0)
    (move,) = balancer.round(fleet.reports(), "ab", 1.0)
    fleet.make(move)
    fleet.bundles["b"] = dict.fromkeys(fleet.bundles["b"], 90) | {"/b/x": 5}
    fleet.bundles["a"] = {"/a/y": 1}
    for number in range(2, 20):
        assert all(made.path != move.path for made in balancer.round(fleet.reports(), "ab", float(number)))


def test_a_broker_that_has_shed_is_left_alone_until_it_was_measured_again() -> None:
    """The report that the next round finds may have been measured before the moves."""
    fleet, balancer = Fleet({"a": [9] * 10, "b": []}), LoadBalancer(replace(LIMITS, moves_max=20))
    balancer.round(fleet.reports(), "ab", 0.0)
    stale = fleet.reports()
    assert balancer.round(stale, "ab", 1.0)
    assert balancer.round(stale, "ab", 2.0) == []
    assert balancer.round(stale, "ab", 3.0)


def test_the_only_bundle_of_a_busy_broker_stays() -> None:
    fleet, balancer = Fleet({"a": [100], "b": [0]}), LoadBalancer(LIMITS)
    for number in range(5):
        assert balancer.round(fleet.reports(), "ab", float(number)) == []


def test_draining_brokers_are_given_nothing() -> None:
    fleet, balancer = Fleet({"a": [30, 30, 30], "b": [], "c": [5]}), LoadBalancer(LIMITS)
    balancer.round(fleet.reports(), "ac", 0.0)
    moves = balancer.round(fleet.reports(), "ac", 1.0)
    assert moves
    assert {move.receiver for move in moves} == {"c"}


def test_free_bundles_spread_over_brokers_of_like_load() -> None:
    balancer = LoadBalancer(LIMITS)
    reports = {name: BrokerLoad(name, cpu_share=share) for name, share in (("a", 0.02), ("b", 0.05), ("c", 0.4))}
    chosen = [balancer.assign(f"/bundle/{number}", "abc", reports) for number in range(10)]
    assert (chosen.count("a"), chosen.count("b")) == (5, 5)
    assert balancer.assign("/bundle/3", "abc", reports) == chosen[3]  # the same answer until the next reports
    assert balancer.assign("/bundle/x", "", reports) is None
    assert balancer.assign("/bundle/y", ["new"], reports) == "new"


def test_a_burst_of_bundles_does_not_go_to_the_one_broker_that_was_least_loaded() -> None:
    """All are assigned by one report: a broker that was a little busier gets its part of them, too."""
    balancer = LoadBalancer(LIMITS)
    reports = {name: BrokerLoad(name, cpu_share=share) for name, share in (("a", 0.25), ("b", 0.05))}
    chosen = [balancer.assign(f"/bundle/{number}", "ab", reports) for number in range(64)]
    assert 20 <= chosen.count("a") < chosen.count("b") <= 44


def test_a_bundle_that_is_moved_is_assigned_to_its_receiver() -> None:
    fleet, balancer = Fleet({"a": [30, 30, 30], "b": [20], "c": []}), LoadBalancer(LIMITS)
    balancer.round(fleet.reports(), "abc", 0.0)
    moves = balancer.round(fleet.reports(), "abc", 1.0)
    assert moves[0].receiver == "c"
    assert balancer.assign(moves[0].path, "abc", fleet.reports()) == "c"
    balancer.forget(moves[0])


@pytest.mark.parametrize(
    ("bundle", "expected"),
    [
        (BundleLoad("/b", 11), True),
        (BundleLoad("/b", 10), False),
        (BundleLoad("/b", 2, 101.0), True),
        (BundleLoad("/b", 2, 0.0, 1_001.0), True),
        (BundleLoad("/b", 1, 1e9, 1e9), False),  # nothing to divide
    ],
)
def test_bundles_that_are_too_large(bundle: BundleLoad, expected: bool) -> None:
    assert is_too_large(bundle, SplitLimits(10, 100.0, 1_000.0)) is expected
    assert not is_too_large(bundle, SplitLimits(0, 0.0, 0.0))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([BundleLoad("/b/1", 2, 1.0, 60.0), BundleLoad("/b/2", 2, 1.0, 50.0)], True),
        ([BundleLoad("/b/1", 2, 1.0, 60.0), BundleLoad("/b/2", 2, 1.0, 70.0)], False),
        ([BundleLoad("/b/1", 1, 1.0, 60.0)], False),
        ([BundleLoad("/b/1", 9, 0.0, 0.0), BundleLoad("/b/2", 8, 0.0, 0.0)], False),  # what is busy is no bundle
    ],
)
def test_bundles_that_cannot_leave_as_a_whole(rows: list[BundleLoad], expected: bool) -> None:
    assert is_stuck(BrokerLoad("a", memory_share=0.9, bundles=tuple(rows)), rows[0], LIMITS) is expected


def test_load_is_the_scarcest_resource_and_reports_tell_news_only() -> None:
    report = BrokerLoad("a", cpu_share=0.2, memory_share=0.1, bytes_in_per_second=LIMITS.bytes_per_second / 2)
    assert load_of(report, LIMITS) == 0.5
    assert is_worth_writing(None, report, LIMITS, 0.05)
    assert not is_worth_writing(report, replace(report, cpu_share=0.4, reported_ms=9), LIMITS, 0.05)
    assert is_worth_writing(report, replace(report, cpu_share=0.6), LIMITS, 0.05)
    assert is_worth_writing(report, replace(report, bundles_owned=1), LIMITS, 0.05)
    other = replace(report, bundles=(BundleLoad("/x"),))
    assert is_worth_writing(report, other, LIMITS, 0.05)
