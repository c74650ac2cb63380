"""Placement policies, and the chooser that asks them."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Sequence

import pytest

from heliograph.actors.errors import NotEnoughBookiesError
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.ledger.driver.placements import PlacementRegistry
from heliograph.actors.ledger.limits import QuarantineLimits, WriterLimits
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.placement import (
    Placement,
    RackAwarePlacement,
    Randomness,
    RandomPlacement,
    pick,
)
from heliograph.base.errors import InvalidConfigError
from heliograph.metadata.model import BookieRegistration


def bookie(name: str, rack: str = "default", free: int = 0) -> BookieRegistration:
    return BookieRegistration(name, "host:1", rack=rack, free_bytes=free)


LIMITS = QuarantineLimits()
SIX = [bookie(f"b{n}", rack=f"r{n % 3}") for n in range(6)]


@pytest.mark.parametrize("policy", [RandomPlacement(), RackAwarePlacement(), RandomPlacement(by_free_space=True)])
def test_an_ensemble_has_different_bookies(policy: Placement) -> None:
    for seed in range(50):
        chosen = policy.new_ensemble(SIX, 5, 3, random.Random(seed))
        assert len(set(chosen)) == 5
    with pytest.raises(NotEnoughBookiesError, match="start more bookies"):
        policy.new_ensemble(SIX, 7, 3, random.Random(0))


def test_racks_are_used_evenly() -> None:
    rack_of = {b.bookie_id: b.rack for b in SIX}
    for seed in range(50):
        chosen = RackAwarePlacement().new_ensemble(SIX, 3, 3, random.Random(seed))
        assert {rack_of[name] for name in chosen} == {"r0", "r1", "r2"}
        chosen = RackAwarePlacement().new_ensemble(SIX, 6, 3, random.Random(seed))
        assert Counter(rack_of[name] for name in chosen) == {"r0": 2, "r1": 2, "r2": 2}


@pytest.mark.parametrize(("racks", "bookies", "size", "write_quorum"), [(2, 4, 4, 2), (3, 9, 6, 3), (3, 6, 5, 2)])
def test_every_write_set_spans_as_many_racks_as_it_can(racks: int, bookies: int, size: int, write_quorum: int) -> None:
    """The loss of a rack counts within a write set, not within the ensemble."""
    candidates = [bookie(f"b{n}", rack=f"r{n % racks}") for n in range(bookies)]
    rack_of = {b.bookie_id: b.rack for b in candidates}
    for seed in range(100):
        chosen = RackAwarePlacement(racks_min=2).new_ensemble(candidates, size, write_quorum, random.Random(seed))
        for start in range(size):
            write_set = [rack_of[chosen[(start + i) % size]] for i in range(write_quorum)]
            assert len(set(write_set)) == min(racks, write_quorum), chosen


def test_too_few_racks_is_an_error_only_if_asked() -> None:
    one_rack = [bookie(f"b{n}") for n in range(3)]
    assert len(RackAwarePlacement().new_ensemble(one_rack, 3, 3, random.Random(0))) == 3
    with pytest.raises(NotEnoughBookiesError, match="racks"):
        RackAwarePlacement(racks_min=2).new_ensemble(one_rack, 3, 3, random.Random(0))


def test_a_replacement_comes_from_the_same_rack_else_from_the_emptiest() -> None:
    policy = RackAwarePlacement()
    spares = [bookie("x0", "r0"), bookie("x1", "r1"), bookie("x2", "r2")]
    staying, leaving = [bookie("b1", "r1"), bookie("b2", "r2")], bookie("b0", "r0")
    for seed in range(20):
        assert policy.replacement(spares, staying, leaving, random.Random(seed)) == "x0"
        assert policy.replacement(spares, staying, None, random.Random(seed)) == "x0"
        assert policy.replacement(spares[1:], [bookie("b1", "r1")], leaving, random.Random(seed)) == "x2"
    assert policy.replacement([], staying, leaving, random.Random(0)) is None
    strict = RackAwarePlacement(racks_min=2)
    assert strict.replacement([bookie("y", "r1")], [bookie("b1", "r1")], leaving, random.Random(0)) is None


def test_weights_follow_free_space_up_to_a_cap() -> None:
    rng = random.Random(1)
    disks = [bookie("small", free=10), bookie("middle", free=20), bookie("huge", free=10_000)]
    counts = Counter(pick(disks, rng, True).bookie_id for _ in range(9_000))
    assert counts["small"] < counts["middle"] < counts["huge"]
    assert counts["huge"] == pytest.approx(9_000 * 60 / 90, rel=0.1)  # capped at three times the median
    even = Counter(pick(disks, rng, False).bookie_id for _ in range(9_000))
    assert all(count == pytest.approx(3_000, rel=0.1) for count in even.values())


def chooser(*names: str) -> BookieChooser:
    made = BookieChooser(RandomPlacement(), random.Random(7))
    made.set_writable([bookie(name) for name in names])
    return made


def test_replacements_are_outside_the_ensemble_and_different() -> None:
    made = chooser("b1", "b2", "b3", "b4", "b5")
    chosen = made.choose_replacements(("b1", "b2", "b3"), [0, 2], 0)
    assert chosen.keys() == {0, 2}
    assert sorted(chosen.values()) == ["b4", "b5"]
    assert len(made.choose_replacements(("b1", "b2", "b3", "b4"), [0, 1], 0)) == 1
    assert made.choose_replacements(("b1", "b2", "b3", "b4", "b5"), [0], 0) == {}
    assert made.is_available("b1")
    assert not made.is_available("b9")


def test_a_bookie_that_just_failed_replaces_nobody() -> None:
    made = chooser("b1", "b2", "b3", "b4")
    made.note_failure("b4", 1_000)
    assert made.choose_replacements(("b1", "b2", "b3"), [0], 1_000) == {}
    assert made.choose_replacements(("b1", "b2", "b3"), [0], 1_000 + LIMITS.pause_ms) == {0: "b4"}


def test_quarantine_gives_way_when_nobody_else_is_left() -> None:
    made = chooser("b1", "b2", "b3", "b4", "b5")
    for n in range(LIMITS.failures):
        made.note_failure("b4", n)
    later = LIMITS.pause_ms + LIMITS.failures
    for _ in range(20):
        assert made.choose_replacements(("b1", "b2", "b3"), [0], later) == {0: "b5"}
        assert "b4" not in made.choose_ensemble(4, 3, later)
    assert made.choose_replacements(("b1", "b2", "b3", "b5"), [0], later) == {0: "b4"}
    assert len(made.choose_ensemble(5, 3, later)) == 5
    assert "b4" in {
        made.choose_replacements(("b1", "b2", "b3"), [0], later + LIMITS.quarantine_ms)[0] for _ in range(50)
    }


class AlwaysFirst:
    """A policy of a user."""

    def new_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, random: Randomness
    ) -> list[str]:
        return [candidate.bookie_id for candidate in candidates[:size]]

    def replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
        random: Randomness,
    ) -> str | None:
        return candidates[0].bookie_id if candidates else None


class Stubborn(AlwaysFirst):
    """A policy that names bookies outside the candidates."""

    def new_ensemble(self, *_: object) -> list[str]:
        return ["b9"] * 3

    def replacement(self, *_: object) -> str | None:
        return "b9"


class Broken(AlwaysFirst):
    def new_ensemble(self, *_: object) -> list[str]:
        raise ZeroDivisionError

    def replacement(self, *_: object) -> str | None:
        raise ZeroDivisionError


@pytest.mark.parametrize("policy", [Stubborn(), Broken()], ids=["stubborn", "broken"])
def test_a_policy_of_the_users_is_not_trusted(policy: Placement) -> None:
    made = BookieChooser(policy, random.Random(0))
    made.set_writable(SIX)
    with pytest.raises(InvalidConfigError, match=type(policy).__name__):
        made.choose_ensemble(3, 3, 0)
    assert made.choose_replacements(("b0", "b1", "b2"), [1], 0) == {}  # the writer goes on without a replacement


def test_excluded_bookies_replace_nobody() -> None:
    made = chooser("b1", "b2", "b3", "b4", "b5")
    for _ in range(20):
        assert made.choose_replacements(("b1", "b2", "b3"), [0], 0, excluded=["b4"]) == {0: "b5"}
    assert made.choose_replacements(("b1", "b2", "b3"), [0], 0, excluded=["b4", "b5"]) == {}


def test_policies_by_name() -> None:
    registry = PlacementRegistry(f"first={__name__}:AlwaysFirst, also={__name__}:AlwaysFirst")
    assert isinstance(registry.get("random"), RandomPlacement)
    assert isinstance(registry.get("rack-weighted"), RackAwarePlacement)
    assert registry.get("first").new_ensemble(SIX, 3, 3, random.Random(0)) == ["b0", "b1", "b2"]
    assert registry.names == ["also", "first", "rack", "rack-weighted", "random", "random-weighted"]
    wrong = ("x", "x=", f"x={__name__}.AlwaysFirst", "x=no.such:Class", f"x={__name__}:Nothing", "x=decimal:Decimal")
    for setting in (*wrong, f"rack={__name__}:AlwaysFirst", "x=os:abort()"):
        with pytest.raises(InvalidConfigError) as refused:
            PlacementRegistry(setting)
        assert refused.value.field == "placements"
    with pytest.raises(InvalidConfigError, match="tick_ms"):
        LedgerClientConfig(tick_ms=0)
    with pytest.raises(InvalidConfigError, match="frame"):
        LedgerClientConfig(writer=WriterLimits(entry_bytes_max=6 << 20))


def test_the_name_of_a_policy_is_never_imported() -> None:
    """A record named a module once, and every broker that opened the topic imported and called it."""
    registry = PlacementRegistry()
    for name in ("this.c", "os.abort", "this:c", f"{__name__}.AlwaysFirst", "", "nothing"):
        with pytest.raises(InvalidConfigError, match="this cluster has rack, rack-weighted, random") as refused:
            registry.get(name)
        assert refused.value.field == "placement"
    assert "this" not in sys.modules


def test_choosers_by_several_policies_know_the_same_bookies() -> None:
    common = chooser("b1", "b2", "b3")
    first = common.by(AlwaysFirst())
    assert first.choose_ensemble(1, 1, 0) == ("b1",)
    common.set_writable([bookie(name) for name in ("b0", "b1", "b2")])
    assert first.choose_ensemble(1, 1, 0) == ("b0",)
    common.note_failure("b0", 1)
    assert first.choose_ensemble(1, 1, 1) == ("b1",), "what one learned of a bookie the other knows"
