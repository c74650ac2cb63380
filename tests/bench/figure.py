"""One measured figure: a value, the value of the same run that it is compared with, and its aim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim of a figure. A missed aim fails nothing: this is a measurement, not a test.

    Attributes:
        of_ratio: the ratio is compared, not the value, because the value is the machine's as much as ours.
    """

    limit: float
    at_most: bool
    of_ratio: bool = False

    def is_met(self, value: float) -> bool:
        """Return whether ``value``, or a ratio, meets the aim."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        what = "ratio " if self.of_ratio else ""
        return f"{what}{'<=' if self.at_most else '>='} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a figure: a value of the same unit from the same run, and its name."""

    value: float
    name: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. ``more`` holds numbers that explain the value; the JSON file and the table show them."""

    section: str
    name: str
    value: float
    unit: str
    against: Limit
    aim: Aim | None = None
    more: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Return value divided by limit; None when the limit is 0."""
        return self.value / self.against.value if self.against.value else None

    @property
    def is_aim_met(self) -> bool | None:
        """Return whether the aim is met; None where there is none, or no ratio to compare with it."""
        if self.aim is None:
            return None
        compared = self.ratio if self.aim.of_ratio else self.value
        return None if compared is None else self.aim.is_met(compared)

    def as_json(self) -> dict[str, Any]:
        """Return the figure as JSON for programs."""
        return {
            **asdict(self),
            "ratio": self.ratio,
            "is_aim_met": self.is_aim_met,
        }


def at_most(limit: float) -> Aim:
    """Return the aim that a value is at most a bound."""
    return Aim(limit, True)


def at_least(limit: float) -> Aim:
    """Return the aim that a value is at least a bound."""
    return Aim(limit, False)


def ratio_at_most(limit: float) -> Aim:
    """Return the aim that the ratio is at most a bound."""
    return Aim(limit, True, of_ratio=True)


def ratio_at_least(limit: float) -> Aim:
    """Return the aim that the ratio is at least a bound."""
    return Aim(limit, False, of_ratio=True)


def number(value: float) -> str:
    """Return a number with three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
