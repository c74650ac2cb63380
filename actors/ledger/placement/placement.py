"""Placement policies: they pick the bookies of a new ensemble and replacements for failed ones.

A policy is given the candidates and a source of randomness, and does no I/O. A class of a user, which the configuration
registers under a name, is another implementation of ``Placement``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from typing_extensions import override

from heliograph.actors.errors import NotEnoughBookiesError
from heliograph.metadata.model import BookieRegistration

WEIGHT_CAP = 3.0  # times the median: one large new disk must not get all the traffic


class Randomness(Protocol):
    """The part of ``random.Random`` that placement uses."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


class Placement(Protocol):
    """Policy that picks bookies. Its result depends only on its arguments and ``randomness``."""

    def new_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, randomness: Randomness
    ) -> list[str]:
        """Return ``size`` different bookies out of ``candidates``, in striping order.

        Raises:
            NotEnoughBookiesError: there are too few candidates, or too few racks.
        """

    def replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
        randomness: Randomness,
    ) -> str | None:
        """Return one of ``candidates``, none of which is in the ensemble, to replace ``leaving``, or None.

        Args:
            staying: members of the ensemble that are still registered.
            leaving: the failed bookie, None when it is not registered.
        """


class RandomPlacement(Placement):
    """Policy that picks at random, in proportion to free disk space if ``by_free_space``."""

    def __init__(self, by_free_space: bool = False) -> None:
        self._by_free_space = by_free_space

    @override
    def new_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, randomness: Randomness
    ) -> list[str]:
        _check_enough(candidates, size)
        left = list(candidates)
        chosen: list[str] = []
        while len(chosen) < size:
            pick = self._pick(left, randomness)
            left.remove(pick)
            chosen.append(pick.bookie_id)
        assert len(set(chosen)) == size, "an ensemble names a bookie once"
        return chosen

    @override
    def replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
        randomness: Randomness,
    ) -> str | None:
        return self._pick(candidates, randomness).bookie_id if candidates else None

    def _pick(self, candidates: Sequence[BookieRegistration], randomness: Randomness) -> BookieRegistration:
        return pick(candidates, randomness, self._by_free_space)


class RackAwarePlacement(Placement):
    """Policy that spreads each write set, and so the ensemble, over racks as evenly as the candidates allow.

    A replacement comes from the rack of the bookie that it replaces, else from the rack with the fewest members.
    With ``racks_min`` > 1, fewer racks than that in a write quorum are an error instead of a fallback.
    """

    def __init__(self, by_free_space: bool = False, racks_min: int = 1) -> None:
        self._by_free_space = by_free_space
        self._racks_min = racks_min

    @override
    def new_ensemble(
        self, candidates: Sequence[BookieRegistration], size: int, write_quorum: int, randomness: Randomness
    ) -> list[str]:
        _check_enough(candidates, size)
        racks = {candidate.rack for candidate in candidates}
        needed = min(self._racks_min, write_quorum)
        if len(racks) < needed:
            raise NotEnoughBookiesError(f"{needed} racks are required, bookies are registered in {len(racks)}")
        left = list(candidates)
        used: Counter[str] = Counter()
        chosen: list[BookieRegistration] = []
        while len(chosen) < size:
            at = len(chosen)
            before = chosen[max(0, at - write_quorum + 1) :]  # those that share a write set with this position
            around = chosen[: max(0, at + write_quorum - size)]
            near = Counter(bookie.rack for bookie in before + around)
            fewest = min(near[candidate.rack] for candidate in left)
            pick = self._least_used([c for c in left if near[c.rack] == fewest], used, randomness)
            left.remove(pick)
            used[pick.rack] += 1
            chosen.append(pick)
        assert len({bookie.bookie_id for bookie in chosen}) == size, "an ensemble names a bookie once"
        return [bookie.bookie_id for bookie in chosen]

    @override
    def replacement(
        self,
        candidates: Sequence[BookieRegistration],
        staying: Sequence[BookieRegistration],
        leaving: BookieRegistration | None,
        randomness: Randomness,
    ) -> str | None:
        used = Counter(bookie.rack for bookie in staying)
        if leaving is not None:
            same = [candidate for candidate in candidates if candidate.rack == leaving.rack]
            if same:
                return pick(same, randomness, self._by_free_space).bookie_id
        if self._racks_min > 1:
            candidates = [
                c for c in candidates if len(used.keys() | {c.rack}) >= min(self._racks_min, len(staying) + 1)
            ]
        return self._least_used(candidates, used, randomness).bookie_id if candidates else None

    def _least_used(
        self, candidates: Sequence[BookieRegistration], used: Counter[str], randomness: Randomness
    ) -> BookieRegistration:
        fewest = min(used[candidate.rack] for candidate in candidates)
        return pick([c for c in candidates if used[c.rack] == fewest], randomness, self._by_free_space)


def pick(candidates: Sequence[BookieRegistration], randomness: Randomness, by_free_space: bool) -> BookieRegistration:
    """Pick a candidate at random, with equal chances or with chances in proportion to the (capped) free space."""
    assert candidates, "there is a candidate to pick"
    if not by_free_space:
        return candidates[int(randomness.random() * len(candidates))]
    known = [c.free_bytes for c in candidates if c.free_bytes > 0]
    middle = median(known) if known else 1
    weights = [min(c.free_bytes or middle, WEIGHT_CAP * middle) for c in candidates]
    point = randomness.random() * sum(weights)
    for candidate, weight in zip(candidates, weights, strict=True):
        point -= weight
        if point < 0:
            return candidate
    return candidates[-1]


def _check_enough(candidates: Sequence[BookieRegistration], size: int) -> None:
    if len(candidates) < size:
        raise NotEnoughBookiesError(
            f"an ensemble of {size} bookies is required, {len(candidates)} can be used now: start more bookies or "
            "lower the ensemble size",
            field="ensemble_size",
            limit=f"at most {len(candidates)} bookies",
        )
