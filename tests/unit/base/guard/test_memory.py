"""The alarm of a process that is above the budget of its parts."""

from __future__ import annotations

import logging

import pytest

from heliograph.base.guard import memory

MIB = 1 << 20


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_bounds", {})
    monkeypatch.setattr(memory, "_is_above", False)


def test_the_budget_of_a_process_is_that_of_its_parts() -> None:
    assert memory.budget() == memory.PROCESS_BYTES
    memory.host("bookie-1", {"cache": 80 * MIB, "queue": 20 * MIB})
    assert memory.budget() == memory.PROCESS_BYTES + 125 * MIB
    memory.host("broker-1", {"cache": 100 * MIB})
    assert memory.budget() == memory.PROCESS_BYTES + memory.OTHERS_BYTES + 250 * MIB
    memory.leave("bookie-1")
    memory.leave("bookie-1")
    assert memory.budget() == memory.PROCESS_BYTES + 125 * MIB


def test_the_alarm_is_one_line_and_lasts_until_there_is_some_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    used = [0]
    monkeypatch.setattr(memory, "used_bytes", lambda: used[0])
    memory.host("broker-1", {"cache": 400 * MIB})
    budget = memory.budget()
    with caplog.at_level(logging.WARNING):
        assert memory.alarm() == ""
        used[0] = budget + 1
        assert memory.alarm() == memory.alarm() != ""
        assert len(caplog.records) == 1
        assert "broker-1" in caplog.text
        used[0] = budget - 1
        assert memory.alarm() != "", "it would come and go"
        used[0] = int(memory.CALM_SHARE * budget) - 1
        assert memory.alarm() == ""
        used[0] = budget + 1
        assert memory.alarm() != ""
    assert len(caplog.records) == 2


def test_memory_that_this_process_takes_is_counted() -> None:
    before = memory.used_bytes()
    held = bytearray(b"x" * (64 * MIB))
    assert memory.used_bytes() - before >= 60 * MIB
    assert len(held) == 64 * MIB
