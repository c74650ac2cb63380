"""The watchdog: a blocked loop ends its process with the stacks in the log; a paused process goes on."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time

import pytest

from heliograph.base.guard.watchdog import STUCK_SECONDS_MAX, LoopWatchdog, watchdog_of_environment

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
