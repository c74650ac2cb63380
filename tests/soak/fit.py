"""Whether a series of a part is flat: a line through its second half, and how sure its slope is (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

POINTS_LEAST = 12  # of the second half, below which a line says nothing
SECONDS_LEAST = 600.0  # of the second half
ERRORS = 3.0  # standard errors of the slope within which it is none


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted series.

    Attributes:
        last: its mean over the second half.
        per_hour: its slope there.
        error: the standard error of the slope.
        note: why it is not fitted; empty if it is.
    """

    last: float
    per_hour: float = 0.0
    error: float = 0.0
    note: str = ""

    def is_flat(self, tolerance: float) -> bool:
        """Return whether it does not grow, or by at most ``tolerance`` an hour, or no more than chance explains."""
        return not self.note and self.per_hour <= max(tolerance, ERRORS * self.error)


def fit(points: Sequence[tuple[float, float]]) -> Fit:
    """Fit a line through the second half of a series.

    Args:
        points: seconds, which increase, and values.
    """
    if not points:
        return Fit(0.0, note="nothing was measured")
    middle = (points[0][0] + points[-1][0]) / 2
    half = [(seconds / 3_600, value) for seconds, value in points if seconds >= middle]
    mean = sum(value for _, value in half) / len(half)
    passed = points[-1][0] - middle
    if len(half) < POINTS_LEAST or passed < SECONDS_LEAST:
        least = f"{POINTS_LEAST} in {SECONDS_LEAST:.0f} s"
        return Fit(mean, note=f"too short to fit: {len(half)} samples in {passed:.0f} s, at least {least} are needed")
    at = sum(hour for hour, _ in half) / len(half)
    spread = sum((hour - at) ** 2 for hour, _ in half)
    slope = sum((hour - at) * (value - mean) for hour, value in half) / spread
    rest = sum((value - mean - slope * (hour - at)) ** 2 for hour, value in half)
    return Fit(mean, slope, math.sqrt(rest / (len(half) - 2) / spread))


def verdict(found: Fit, unit: str, tolerance: float) -> str:
    """Return a sentence: flat, grows and by how much, or why that is not known."""
    if found.note:
        return found.note
    slope = f"{found.per_hour:+.2f} {unit}/h (standard error {found.error:.2f})"
    return f"flat: {slope}" if found.is_flat(tolerance) else f"GROWS: {slope}"
