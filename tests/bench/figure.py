"""One measured figure: a value, what it is compared with in the same run, and the aim that it was built for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should be. Missing one fails nothing: this is a measurement, not a test."""

    limit: float
    at_most: bool

    def is_met(self, value: float) -> bool:
        """Whether ``value`` is on the right side."""
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.at_most else '>='} {number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Limit:
    """What a figure is measured against: a value of the same unit from the same run, and its name."""

    value: float
    name: str


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. ``more`` holds numbers that explain the value; they go to the JSON file and, as text, to the table."""

    section: str
    name: str
    value: float
    unit: str
    against: Limit
    aim: Aim | None = None
    more: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Value over limit; None when the limit is 0."""
        return self.value / self.against.value if self.against.value else None

    def as_json(self) -> dict[str, Any]:
        """All of it, for programs."""
        return {
            **asdict(self),
            "ratio": self.ratio,
            "is_aim_met": None if self.aim is None else self.aim.is_met(self.value),
        }


def at_most(limit: float) -> Aim:
    """An aim for what should be small."""
    return Aim(limit, True)


def at_least(limit: float) -> Aim:
    """An aim for what should be big."""
    return Aim(limit, False)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
