"""The time slice of the journal's thread."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal import journal as journal_module
from heliograph.actors.bookie.journal import time_slice
from heliograph.actors.bookie.journal.files import JournalFiles
from heliograph.actors.bookie.journal.journal import Journal, JournalPorts
from heliograph.actors.bookie.journal.loop_commits import LoopCommits

Result = TypeVar("Result")


def in_a_thread(call: Callable[[], Result]) -> Result:
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def nice_value_after_the_call() -> tuple[int, int]:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + 1)
    before = os.getpriority(os.PRIO_PROCESS, thread)
    time_slice.shorten_time_slice()
    return before, os.getpriority(os.PRIO_PROCESS, thread)


def test_a_kernel_that_knows_slices_takes_it() -> None:
    release = tuple(int(number) for number in platform.release().split("-")[0].split(".")[:2])
    if platform.system() != "Linux" or platform.machine() != "x86_64" or release < (6, 12):
        pytest.skip("Linux 6.12 and later let a thread choose its slice")
    assert in_a_thread(time_slice.shorten_time_slice)


def test_a_thread_of_lower_priority_keeps_it() -> None:
    before, after = in_a_thread(nice_value_after_the_call)
    assert after == before


def test_a_machine_whose_system_calls_are_not_known_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "s390x")
    assert not in_a_thread(time_slice.shorten_time_slice)


def test_the_thread_of_a_journal_has_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    callers: list[str] = []
    monkeypatch.setattr(journal_module, "shorten_time_slice", lambda: callers.append(threading.current_thread().name))
    files = JournalFiles(RealDisk(), tmp_path, 1 << 20, 1)
    ports = JournalPorts(lambda call: None, lambda error: None)
    journal = Journal(files, 1 << 20, 1, 60.0, LoopCommits(0.0), lambda: False, ports)
    journal.start()
    journal.stop()
    assert callers == ["journal"]
