"""When Ray's log monitor looks at the log files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from heliograph.cluster.head import log_monitor
from heliograph.cluster.head.log_monitor import BUSY_SECONDS, QUIET_SECONDS_MAX, DirectoryWatch, pause

ROUND_SECONDS = 0.1  # of Ray


class Clock:
    """A clock that stands but for sleeps and waits; files change at some times."""

    def __init__(self, *changes: float) -> None:
        self.now = 0.0
        self.changes = list(changes)
        self.slept = 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        self.now += seconds

    def wait(self, seconds: float) -> bool:
        change = min(self.changes, default=float("inf"))
        self.now = min(self.now + seconds, max(self.now, change))
        told = [each for each in self.changes if each <= self.now]
        self.changes = self.changes[len(told) :]
        return bool(told)

    def rounds(self, until: float) -> list[float]:
        """Return the times of the rounds of a log monitor."""
        rest, found = pause(self.wait, self.sleep, lambda: self.now), []
        while self.now < until:
            rest(ROUND_SECONDS)
            found.append(round(self.now, 3))
        return found


def test_it_looks_as_soon_as_a_file_has_changed_and_seldom_while_none_does() -> None:
    rounds = Clock(7.0).rounds(20.0)
    assert rounds[:2] == [QUIET_SECONDS_MAX, 7.0]
    assert rounds[2] == 7.0 + ROUND_SECONDS  # Ray needs several rounds where many files have changed
    assert 8 < len(rounds) + 1 < 12


def test_while_files_change_it_looks_as_often_as_ray_does() -> None:
    clock = Clock(*(number / 1000 for number in range(3000)))
    rounds = clock.rounds(2.9)
    assert len(rounds) == pytest.approx(2.9 / ROUND_SECONDS, abs=2)
    assert clock.slept >= len(rounds) - 1
    assert BUSY_SECONDS > 2 * ROUND_SECONDS


def test_a_change_is_told_once(tmp_path: Path) -> None:
    watch = DirectoryWatch([str(tmp_path)])
    try:
        assert not watch.wait(0)
        (tmp_path / "worker-1.out").write_text("a line\n")
        assert watch.wait(30)
        assert not watch.wait(0)
        with (tmp_path / "worker-1.out").open("a") as log:
            log.write("another line\n")
        assert watch.wait(30)
    finally:
        watch.close()


def test_a_directory_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DirectoryWatch([str(tmp_path / "absent")])


def test_only_the_log_monitor_itself_waits_for_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(log_monitor, "QUIET_SECONDS_MAX", 0.0)
    monkeypatch.setattr(log_monitor, "BUSY_SECONDS", 0.0)
    log_monitor.look_when_told(str(tmp_path))
    monitor: dict[str, Any] = {"__name__": "__main__", "time": time}
    exec("time.sleep(0.1)", monitor)
    assert slept == []
    time.sleep(0.2)
    assert slept == [0.2]
