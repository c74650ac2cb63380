"""A program that takes the place of a parent whose work is done, and ends with its children.

It is run by its path, so that it loads nothing but Python: it takes 5 MB, and wakes when a child ends.
"""

import os
import signal
import sys

ORDERLY = (0, -signal.SIGTERM, signal.SIGTERM, 128 + signal.SIGTERM)  # outcomes of children that were asked to end


def main() -> int:
    """Wait for the children of this process; pass on SIGTERM and SIGINT.

    Returns:
        0 when all have ended in good order; 1 when one did not, and the others were killed.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: _send(signal.SIGTERM))
    while True:
        try:
            child, status = os.wait()
        except ChildProcessError:
            return 0
        code = os.waitstatus_to_exitcode(status)
        if code not in ORDERLY:
            print(f"process {child} ended with {code}; the others are killed", file=sys.stderr)
            _send(signal.SIGKILL)
            return 1


def children() -> list[int]:
    """Return the processes whose parent is this one."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        if int(fields[1]) == os.getpid():
            found.append(int(name))
    return found


def _send(number: int) -> None:
    for child in children():
        try:
            os.kill(child, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main())
