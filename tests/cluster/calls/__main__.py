"""Run cells: ``python -m tests.cluster.calls --url pulsar://127.0.0.1:6650 "send/not open/sync" ...``.

A cell prints one line of JSON. Each is a fork of this process, which has imported what all of them need.
"""

from __future__ import annotations

import atexit


def _run_last() -> None:
    from tests.cluster.calls.cell import at_exit

    for hook in at_exit:
        hook()


atexit.register(_run_last)  # before the first import of heliograph: its own hooks run earlier

import argparse  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import select  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from dataclasses import dataclass  # noqa: E402

import heliograph  # noqa: E402
from tests.cluster.calls.cell import Cell  # noqa: E402
from tests.cluster.calls.table import CALLS, KINDS, SITUATIONS  # noqa: E402

heliograph.connect  # noqa: B018 - loads the handles, once for all cells
LIMIT_SECONDS = 60.0  # for a cell from its fork to the end of its process


@dataclass
class Running:
    """A cell's process."""

    name: str
    process: int
    output: int  # the pipe that its outcome comes by
    deadline: float
    said: str = ""

    def end(self) -> None:
        """Read what it said; end it if it is late."""
        is_late = False
        while True:
            readable, _, _ = select.select([self.output], [], [], max(0.0, self.deadline - time.monotonic()))
            if not readable:
                is_late = True
                os.kill(self.process, signal.SIGKILL)
                break
            piece = os.read(self.output, 1 << 16)
            if not piece:
                break
            self.said += piece.decode()
        os.close(self.output)
        _, status = os.waitpid(self.process, 0)
        outcome = "hangs" if is_late else self.said or f"says nothing, status {status}"
        print(json.dumps({"cell": self.name, "outcome": outcome}), flush=True)


def begin(name: str, url: str) -> Running | None:
    """Fork a cell; return None in its process, which has nothing left to do but to end."""
    here, there = os.pipe()
    process = os.fork()
    if process:
        os.close(there)
        return Running(name, process, here, time.monotonic() + LIMIT_SECONDS)
    os.close(here)

    def say(outcome: str) -> None:
        os.write(there, outcome.encode())

    call, situation, kind = name.split("/")
    try:
        Cell(call, situation, kind, url, say).run()
    except BaseException as error:
        traceback.print_exc()
        say(f"fails: {type(error).__name__}: {error}")
    return None


def main() -> None:
    """Run the cells that the command line names, a few at a time."""
    parser = argparse.ArgumentParser(description="Run cells of the table of calls and situations.")
    parser.add_argument("cells", nargs="*", help="call/situation/kind; none: all")
    parser.add_argument("--url", required=True, help="a broker")
    parser.add_argument("--at-once", type=int, default=6)
    arguments = parser.parse_args()
    every = [f"{call}/{situation}/{kind}" for situation in SITUATIONS for call in CALLS for kind in KINDS]
    running: list[Running] = []
    for name in arguments.cells or every:
        if len(running) >= arguments.at_once:
            running.pop(0).end()
        cell = begin(name, arguments.url)
        if cell is None:
            return
        running.append(cell)
    for cell in running:
        cell.end()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
