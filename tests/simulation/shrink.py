"""Shrinking of a failing run: fewer faults and nuisances, less time and fewer messages, the same broken invariant."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace

from tests.simulation.profile import NUISANCES, Plan
from tests.simulation.report import Report
from tests.simulation.worlds import execute

RUNS_MAX = 400
TRACE_LINES_MAX = 80
MESSAGES = (1, 2, 3, 5, 8, 13, 20, 30, 50, 80, 130, 200)


class Shrinker:
    """Tries smaller plans, and keeps those that break the same invariant."""

    def __init__(self, report: Report, watched: Collection[str] | None = None) -> None:
        assert report.failure, "a run without a failure cannot be shrunk"
        self.report = report
        self.runs = 0
        self._watched = watched

    @property
    def plan(self) -> Plan:
        """Return the smallest plan found."""
        return self.report.plan

    def shrink(self) -> Report:
        """The report of the smallest plan found, with a trace."""
        self._try(replace(self.plan, faults=frozenset(self.report.struck)))
        if self.plan.faults is not None:
            self._leave_out_faults()
        for name in NUISANCES:
            self._try(replace(self.plan, without=self.plan.without | {name}))
        self._shorten()
        self._send_less()
        if self.plan.faults is not None:
            self._leave_out_faults()
        return execute(self.plan, is_traced=True, watched=self._watched)

    def _try(self, plan: Plan) -> bool:
        if plan == self.plan or self.runs >= RUNS_MAX:
            return False
        self.runs += 1
        report = execute(plan, watched=self._watched)
        if report.invariant != self.report.invariant:
            return False
        self.report = report
        return True

    def _leave_out_faults(self) -> None:
        """Leave out faults: large parts first, then smaller ones, down to single faults."""
        part = max(1, len(self.plan.faults or ()) // 2)
        while True:
            numbers = sorted(self.plan.faults or ())
            for at in range(0, len(numbers), part):
                self._try(
                    replace(self.plan, faults=(self.plan.faults or frozenset()).difference(numbers[at : at + part]))
                )
            if part == 1:
                return
            part //= 2

    def _shorten(self) -> None:
        """Let faults end earlier, as long as the run still fails."""
        until = self.plan.until_ms or self.report.simulated_ms
        while until > 100 and self._try(replace(self.plan, until_ms=until // 2)):
            until //= 2
        self._try(replace(self.plan, until_ms=until * 3 // 4))

    def _send_less(self) -> None:
        for count in MESSAGES:
            if count >= self.report.accepted or self._try(replace(self.plan, messages_max=count)):
                return


def relevant(report: Report) -> list[str]:
    """Return the last lines of a trace about the ledger that the failure names, and about faults."""
    found = re.search(r"(\d+):\d+|ledger (\d+)|\((\d+), \d+\)", report.failure)
    if found is None:
        return report.trace[-TRACE_LINES_MAX:]
    number = next(group for group in found.groups() if group)
    tells = _matcher(number)
    lines = [line for line in report.trace if tells(line)]
    left_out = len(lines) - TRACE_LINES_MAX
    head = [f"        ({left_out} earlier lines on ledger {number} are left out: see --trace)"] if left_out > 0 else []
    return head + lines[-TRACE_LINES_MAX:]


def _matcher(number: str) -> Callable[[str], object]:
    return re.compile(rf" {number}:\d|ledger(?:_id=| ){number}\b|^ *\d+ fault |topic's ledgers").search
