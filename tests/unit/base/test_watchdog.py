"""The watchdog: a blocked loop ends its process with the stacks in the log; a paused process goes on. Long steps of a
loop are found and named."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time

import pytest

from heliograph.base.guard.watchdog import (
    LOCKED,
    LONG_SECONDS,
    STUCK_SECONDS_MAX,
    LoopWatch,
    LoopWatchdog,
    running_loop_watch,
    watch_running_loop,
    watchdog_of_environment,
)

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, sys, time
from heliograph.base.guard.watchdog import LoopWatchdog

def this_function_blocks():
    time.sleep(float(sys.argv[1]))

async def main():
    LoopWatchdog(1.0).start()
    for _ in range(40):
        await asyncio.sleep(0.05)
        print("turned", flush=True)
    this_function_blocks()
    await asyncio.sleep(0.1)
    print("ended", flush=True)

asyncio.run(main())
"""


def started(blocked_seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM, str(blocked_seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_blocked_loop_ends_its_process_with_the_stacks_in_its_log() -> None:
    process = started(60)
    out, errors = process.communicate(timeout=50)
    assert process.returncode == 70
    assert "ended" not in out
    assert "this_function_blocks" in errors


def test_a_paused_process_goes_on() -> None:
    process = started(0)
    assert process.stdout is not None
    assert process.stdout.readline() == "turned\n"
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    process.send_signal(signal.SIGCONT)
    out, errors = process.communicate(timeout=50)
    assert (process.returncode, out.splitlines()[-1]) == (0, "ended"), errors


async def test_a_loop_that_turns_slowly_is_left_alone() -> None:
    stuck: list[float] = []
    watchdog = LoopWatchdog(0.5, stuck.append)
    watchdog.start()
    for _ in range(6):
        time.sleep(0.1)  # noqa: ASYNC251 - it blocks the loop, for less than the limit
        await asyncio.sleep(0)
    watchdog.stop()
    assert stuck == []


@pytest.mark.parametrize(("text", "seconds"), [("", STUCK_SECONDS_MAX), ("5", 5.0), ("x", 60.0), ("-1", 60.0)])
def test_the_environment_names_the_limit(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("HELIOGRAPH_WATCHDOG_SECONDS", text)
    watchdog = watchdog_of_environment()
    assert watchdog is not None
    assert watchdog._stuck_seconds == seconds
    monkeypatch.setenv("HELIOGRAPH_WATCHDOG_SECONDS", "0")
    assert watchdog_of_environment() is None


def busy(seconds: float) -> None:
    """Use the processor for so long, as a step that does too much does."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_a_long_step_is_measured_and_named(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch()
    watch.start()
    async with asyncio.timeout(120):
        while not watch.long_steps:  # a machine that is busy enough keeps the watch from looking
            busy(0.3)
            await asyncio.sleep(0)
    watch.stop()
    assert watch.longest_seconds >= LONG_SECONDS
    assert any("busy (test_watchdog.py:" in line or LOCKED in line for line in caplog.messages)


async def test_a_loop_that_turns_has_no_long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(LoopWatch, "_ask", lambda self, loop, before: asked.append(before))
    watch = LoopWatch()
    watch.start()
    await asyncio.sleep(0.5)
    watch.stop()
    assert asked == [], "who waits is not even asked"
    assert (watch.long_steps, watch.longest_seconds) == (0, 0.0)


def test_each_loop_has_a_watch_of_its_own_which_ends_with_it() -> None:
    async def watched() -> LoopWatch:
        assert running_loop_watch() is None
        watch = watch_running_loop()
        assert watch_running_loop() is running_loop_watch() is watch
        return watch

    async def watched_and_stopped() -> LoopWatch:
        watch = await watched()
        watch.stop()
        return await watched()

    assert running_loop_watch() is None, "no loop is running"
    before = threading.active_count()
    asyncio.run(watched_and_stopped())
    thread = threading.Thread(target=lambda: asyncio.run(watched()))
    thread.start()
    thread.join()
    while threading.active_count() > before:  # a thread that raised would be a warning, which is an error
        time.sleep(0.01)


def test_the_longest_step_of_the_last_minute_is_told() -> None:
    now = [1_000.0]
    watch = LoopWatch(lambda: now[0])
    for at, seconds in ((0, 0.5), (10, 0.01), (20, 0.3), (30, 0.2)):
        now[0] = 1_000.0 + at
        watch.note(seconds, "x")
    assert watch.longest_seconds == 0.5
    now[0] = 1_070.0
    assert watch.longest_seconds == 0.3
    assert watch.long_steps == 3
    now[0] = 1_200.0
    assert watch.longest_seconds == 0.0
