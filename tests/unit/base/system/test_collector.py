"""Freezing of what stays: after bursts, and thawed after many ends; counted, as Python's collector is not run."""

from __future__ import annotations

import pytest

from heliograph.base.system import collector
from heliograph.base.system.collector import FREEZE_AFTER, THAW_LEAST, FrozenHolder


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []
    for name in ("collect", "freeze", "unfreeze"):
        monkeypatch.setattr(collector.gc, name, lambda name=name: made.append(name))  # type: ignore[attr-defined]
    monkeypatch.setattr(collector, "_is_ours", True)
    return made


def test_each_burst_is_frozen_and_few_objects_are_ever_looked_at(calls: list[str]) -> None:
    holder, held = FrozenHolder(), [object() for _ in range(10 * FREEZE_AFTER)]
    for one in held:
        holder.made(one)
    assert calls == ["collect", "freeze"] * 10
    assert holder.freezes == 10


def test_what_comes_and_goes_is_not_frozen(calls: list[str]) -> None:
    holder = FrozenHolder()
    for _ in range(10 * FREEZE_AFTER):
        one = object()
        holder.made(one)
        holder.ended(one)
    assert calls == []


def test_after_many_ends_all_is_collected_once(calls: list[str]) -> None:
    holder, held = FrozenHolder(), [object() for _ in range(THAW_LEAST)]
    for one in held:
        holder.made(one)
    calls.clear()
    for one in held[:-1]:
        holder.ended(one)
    assert calls == []
    holder.ended(held[-1])
    assert calls == ["unfreeze", "collect", "freeze"]
    assert holder.thaws == 1


def test_a_process_of_others_is_left_as_it_is(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_is_ours", False)
    holder, held = FrozenHolder(), [object() for _ in range(THAW_LEAST)]
    for one in held:
        holder.made(one)
    for one in held:
        holder.ended(one)
    assert (calls, holder.freezes, holder.thaws) == ([], 0, 0)
