"""Pauses between attempts, which double, end at their maximum and vary by their jitter, and pauses of periodic work."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from heliograph.base.backoff import JITTER, Attempts, Backoff
from heliograph.base.interval import Interval, until_tick


async def test_a_shorter_length_holds_for_the_pause_that_lasts() -> None:
    interval = Interval(3_600.0)
    waiting = asyncio.create_task(interval.passes())
    await asyncio.sleep(0)
    interval.set(7_200.0)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    interval.set(0.001)
    await asyncio.wait_for(waiting, 60)


async def test_work_with_a_length_of_0_never_runs_until_it_is_changed() -> None:
    interval = Interval(0)
    waiting = asyncio.create_task(interval.passes())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    interval.set(0.001)
    await asyncio.wait_for(waiting, 60)
    interval.set(0)
    again = asyncio.create_task(interval.passes())
    await asyncio.sleep(0.01)
    assert not again.done()
    again.cancel()


async def test_periodic_work_of_one_loop_wakes_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    for now, left in ((100.0, 0.5), (100.2, 0.3), (100.375, 0.125), (100.4, 0.6), (100.499, 0.501)):
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda now=now: now)
        assert until_tick(0.5) == pytest.approx(left)
        assert 0.125 <= until_tick(0.5) < 0.625
    monkeypatch.undo()


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
