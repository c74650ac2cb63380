"""Run as a program, with a pid and a command: becomes that command, which the kernel kills when its parent has ended.

The parent is the process of that pid; if it has ended already, the command is not run. This file imports nothing of
ours, so that it starts in a few milliseconds: ``python -I -S die_with_parent.py PID PROGRAM ARGUMENT...``.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Become the command. Returns only if the parent has ended.

    Raises:
        OSError: the program cannot be run.
    """
    if (prctl := getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)) is not None:  # Linux alone has it
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() == parent:  # read after prctl: the signal of a parent that ended before was never sent
        os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
