"""The number of hypothesis's examples of a test that has a number of its own: more or fewer by the profile."""

from __future__ import annotations

from hypothesis import settings

STEADY = 100  # examples of a test in the profile `steady`, for which the numbers of tests are written


def examples(number: int) -> int:
    """Return the examples of a test in this run, which has ``number`` of them in the profile `steady`."""
    return max(1, number * settings().max_examples // STEADY)
