"""Pauses of periodic work."""

from __future__ import annotations

import asyncio

import pytest

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
