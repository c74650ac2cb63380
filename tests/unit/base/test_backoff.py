"""Pauses between attempts: they double, end at their maximum, and vary by their jitter only."""

from __future__ import annotations

from random import Random

import pytest

from heliograph.base.backoff import JITTER, Attempts, Backoff


def test_without_randomness_pauses_double_up_to_the_maximum() -> None:
    backoff = Backoff(100, 450)
    assert [backoff.pause_ms() for _ in range(4)] == [100, 200, 400, 450]
    backoff.reset()
    assert backoff.pause() == 0.1


def test_the_first_pause_is_never_above_the_maximum() -> None:
    assert Backoff(500, 200).pause_ms() == 200


@pytest.mark.parametrize("jitter", [JITTER, 0.5, 1.0])
def test_jitter_only_shortens_a_pause_by_its_share(jitter: float) -> None:
    backoff = Backoff(100, 100, Random(1), jitter=jitter)
    pauses = [backoff.pause_ms() for _ in range(200)]
    assert all(100 * (1 - jitter) <= pause <= 100 for pause in pauses)
    assert max(pauses) - min(pauses) > 50 * jitter


def test_equal_randomness_gives_equal_pauses() -> None:
    one, other = Backoff(10, 1000, Random(7)), Backoff(10, 1000, Random(7))
    assert [one.pause() for _ in range(9)] == [other.pause() for _ in range(9)]


def test_no_attempt_begins_after_the_deadline() -> None:
    now = 100.0
    attempts = Attempts(0.6, Backoff(100, 400), lambda: now)
    for expected in (0.1, 0.2):
        assert attempts.pause_after(OSError("it may pass")) == expected
        now += expected
    now += 0.1  # the attempt itself takes time
    with pytest.raises(OSError, match="the last one"):
        attempts.pause_after(OSError("the last one"))
