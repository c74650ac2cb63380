"""The table while it is measured: each row is printed as soon as it is known, and one that fails does not end it."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType

from tests.scale.cost import Cost
from tests.scale.row import Row, lines, short
from tests.scale.site import Site

HEAD = ("limit", "value", "grows with", "measured", "growth", "goal", "verdict")


class RowTimeoutError(Exception):
    """A row took longer than it may."""


class Table:
    """The rows and what was measured of them.

    Args:
        seconds_max: for one row at one size, with the filling and the start of what it is the first to need.

    Attributes:
        missing: by row, why it has no value at a size. Such rows are in the table, too.
    """

    def __init__(self, rows: Sequence[Row], seconds_max: float) -> None:
        self._measured: dict[Row, list[tuple[int, Cost]]] = {row: [] for row in rows}
        self.missing: dict[Row, list[str]] = {row: [] for row in rows}
        self._seconds_max = seconds_max

    def measure(self, site: Site) -> None:
        """Measure all rows at one size, on the main thread, and print what is known of each when it was measured."""
        for row in self._measured:
            began = time.monotonic()
            try:
                with _at_most(self._seconds_max):
                    size, cost = row.measure(site)
            except Exception as error:
                if not isinstance(error, RowTimeoutError):
                    traceback.print_exc()
                self.missing[row].append(f"{short(site.topics)} topics: {type(error).__name__}: {error}")
            else:
                costs = self._measured[row]
                if not costs or costs[-1][0] < size:  # a broker has no more topics open than at the last size
                    costs.append((size, cost))
            self._print(row)
            print(f"  {row.limit}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)

    def print_whole(self) -> None:
        """Print all rows."""
        _print(HEAD)
        _print(["---"] * len(HEAD))
        for row in self._measured:
            self._print(row)

    def _print(self, row: Row) -> None:
        if costs := self._measured[row]:
            for line in lines({row: costs}):
                _print(line)
        for reason in self.missing[row]:
            _print((row.limit, "not measured", row.of, reason, "", "", ""))


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Interrupt a block of the main thread after so many seconds; what it waits for in a loop thread is cancelled."""

    def end(_: int, __: FrameType | None) -> None:
        raise RowTimeoutError(f"it ran past {seconds:,.0f} s")

    previous = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _print(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)
