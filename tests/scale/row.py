"""What a row of the table is: a measurement at several sizes, what it grows with, and whether its goal is held."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.bench.figure import number
from tests.scale.cost import Cost

if TYPE_CHECKING:
    from tests.scale.site import Site

STEP_MS_MAX = 20.0  # I24
SHARE_MAX = 1.0  # % of a core, of any periodic job
SPREAD_LEAST = 4  # between two sizes whose values tell how fast something grows
GROWN_LEAST = 1.1  # a value that grew by less, over all sizes, is flat


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound of one value.

    Attributes:
        value: makes the value of a cost.
        at: the size at which it is to be held; a value of a smaller size is extrapolated.
    """

    name: str
    unit: str
    most: float
    at: int
    value: Callable[[Cost], float]


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        limit: what the row is about; no two rows have the same.
        of: what the sizes count.
        measure: returns the cost at a site, and the size there.
        is_flat: calls, bytes and steps must not grow with the size.
        runs_small: cheap enough for `make test`.
    """

    limit: str
    of: str
    measure: Callable[[Site], tuple[int, Cost]]
    goals: tuple[Goal, ...]
    is_flat: bool = False
    runs_small: bool = True


def cpu(most_ms: float, at: int) -> Goal:
    """Return the goal that one run takes at most so much processor time."""
    return Goal("processor", "ms", most_ms, at, lambda cost: cost.cpu_ms)


def step(at: int) -> Goal:
    """Return the goal that no step of the event loop is longer than 20 ms."""
    return Goal("longest step", "ms", STEP_MS_MAX, at, lambda cost: cost.step_ms)


def share(seconds: float, at: int) -> Goal:
    """Return the goal that a job that runs at such an interval takes at most 1 % of a core."""
    return Goal(f"each {seconds:g} s", "% of a core", SHARE_MAX, at, lambda cost: cost.cpu_ms / seconds / 10)


def other(name: str, unit: str, most: float, at: int) -> Goal:
    """Return the goal of a value in ``Cost.more``."""
    return Goal(name, unit, most, at, lambda cost: cost.more[name])


def expected(points: Sequence[tuple[int, float]], at: int) -> float:
    """Return the value at a size: that of the largest one, and if ``at`` is larger, as much more as it has grown by.

    The last size and one well below it tell how fast it grows: by a power of the size, linearly if there is but one.
    """
    assert points, "something was measured"
    size, value = points[-1]
    if at <= size or value <= 0:
        return value
    earlier = [point for point in points if point[0] * SPREAD_LEAST <= size and point[1] > 0]
    power = max(0.0, math.log(value / earlier[-1][1]) / math.log(size / earlier[-1][0])) if earlier else 1.0
    return value * math.pow(at / size, power)


def growth(points: Sequence[tuple[int, float]]) -> str:
    """Return how a value grows with the size: ``flat``, as a power of it, or that one size does not tell."""
    if len(points) < 2:
        return "not known"
    points = [(size, value) for size, value in points if value > 0]
    if len(points) < 2 or points[-1][0] <= points[0][0] or points[-1][1] < GROWN_LEAST * points[0][1]:
        return "flat"
    power = math.log(points[-1][1] / points[0][1]) / math.log(points[-1][0] / points[0][0])
    return f"n^{power:.1f}"


def verdict(points: Sequence[tuple[int, float]], goal: Goal) -> str:
    """Return whether a goal is held, measured or expected. One size alone shows no miss at a larger one."""
    value = expected(points, goal.at)
    how = "" if goal.at <= points[-1][0] else f", expected at {goal.at:,}"
    if value <= goal.most:
        return f"held ({number(value)}{how})"
    if len(points) == 1 and how:
        size, least = points[0]
        is_missed = least > goal.most
        return f"missed ({number(least)} with {size:,})" if is_missed else "not known from one size"
    return f"missed by {number(value / goal.most)} times ({number(value)}{how})"


def lines(measured: Mapping[Row, Sequence[tuple[int, Cost]]]) -> list[tuple[str, ...]]:
    """Return the table: limit, what grows, values by size, growth, goal, verdict."""
    found = list[tuple[str, ...]]()
    for row, costs in measured.items():
        for goal in row.goals:
            points = [(size, goal.value(cost)) for size, cost in costs]
            values = ", ".join(f"{short(size)}: {number(value)}" for size, value in points)
            wanted = f"{number(goal.most)} {goal.unit} at {short(goal.at)}"
            found.append(
                (row.limit, f"{goal.name}, {goal.unit}", row.of, values, growth(points), wanted, verdict(points, goal))
            )
    return found


def short(size: int) -> str:
    """Return a size as people write it: ``10 k``, ``1 M``."""
    for unit, letter in ((10**6, "M"), (10**3, "k")):
        if size >= unit:
            return f"{size / unit:g} {letter}"
    return str(size)
