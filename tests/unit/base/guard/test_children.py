"""The program that stays in place of a head: it ends with its children, and passes on a request to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.base.guard import children
from heliograph.base.processes import ProcessName, end_session, session_members, wait_until

LEADER = """
import os, subprocess, sys
for command in sys.argv[2:]:
    subprocess.Popen([sys.executable, "-c", command])
os.execv(sys.executable, [sys.executable, "-I", "-S", sys.argv[1]])
"""
STAYS = "import signal; signal.pause()"


class Family:
    """A leader in a session of its own, with children, which has left the small program in its place."""

    def __init__(self) -> None:
        self.leader: subprocess.Popen[bytes] | None = None
        self._name: ProcessName | None = None

    def start(self, *commands: str) -> subprocess.Popen[bytes]:
        self.leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, children.__file__, *commands], start_new_session=True
        )
        self._name = ProcessName.of(self.leader.pid)
        return self.leader

    def end(self) -> None:
        if self.leader is not None:
            assert self._name is not None, "a child has a name until it is waited for"
            assert end_session(self._name)  # also where the leader has ended before its children
            self.leader.wait()


@pytest.fixture
def family() -> Iterator[Family]:
    found = Family()
    yield found
    found.end()


def listens(leader: subprocess.Popen[bytes]) -> bool:
    """Return whether the small program runs, and has its handler of SIGTERM."""
    caught = [line for line in Path(f"/proc/{leader.pid}/status").read_text().splitlines() if line.startswith("SigCgt")]
    is_small = children.__file__ in Path(f"/proc/{leader.pid}/cmdline").read_text()
    return is_small and bool(int(caught[0].split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_it_ends_in_good_order_with_the_last_child(family: Family) -> None:
    assert family.start("pass", "pass").wait(60) == 0


def test_the_failure_of_one_child_ends_the_others(family: Family) -> None:
    leader = family.start(STAYS, "raise SystemExit(3)")
    assert leader.wait(60) == 1
    name = ProcessName(leader.pid, 0)
    assert wait_until(lambda: not session_members(name), 60)


def test_it_passes_on_that_it_is_to_end(family: Family) -> None:
    leader = family.start(STAYS)
    assert wait_until(lambda: listens(leader), 60)
    name = ProcessName.of(leader.pid)
    assert name is not None
    assert wait_until(lambda: len(session_members(name)) >= 2, 60)
    os.kill(leader.pid, signal.SIGTERM)
    assert leader.wait(60) == 0
