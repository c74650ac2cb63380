"""Campaigns: many runs over seeds, processes and mutants."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from statistics import median
from typing import TypeVar

from tests.simulation.mutants.mutants import MUTANTS
from tests.simulation.profile import BOOKIE, CLIENT, DELETION, LEDGER, TOPIC, Plan
from tests.simulation.report import Report
from tests.simulation.worlds import KINDS_OF, execute

T = TypeVar("T")
R = TypeVar("R")
BATCH_SEEDS = 10
MUTANT_SEEDS_MAX = 2_000  # within which each mutant must be caught
SEEDS_FOR_EVERY_KIND = 200  # from so many seeds on, every kind must have happened
LEDGERS_SEE = (
    "bookie died with an unsynced entry",
    "bookie died with an unsynced fence",
    "bookie died with an unsynced recovered entry",
    "entry copied",
    "explicit LAC sent",
    "LAC read",
    "answer repeated late",
    "entry of a recovery or repair refused by a full disk",
    "entry with two damaged copies",
    "ledger left limbo",
    "ledger closed by its writer",
    "ledger collected by a bookie",
    "ledger deleted",
    "message cut off",
    "message duplicated",
    "message late",
    "message lost",
    "metadata conflict",
    "metadata reply lost",
    "next ledger listed before the last was closed",
    "reader lost its ledger to deletion",
    "recovery failed",
    "recovery finished",
    "repair complete",
    "repair incomplete",
    "sync failed",
    "tail read",
    "writer ended: LedgerFencedError",
    "writer ended: QuorumLostError",
)
TOPICS_SEE = (
    "answer repeated late",
    "session ended right after a write",
    "acknowledgement confirmed",
    "bookie died with an unsynced entry",
    "message cut off",
    "message duplicated",
    "message late",
    "message lost",
    "message sent again",
    "metadata conflict",
    "metadata reply lost",
    "takeover retried",
    "topic lost, and its broker knows",
    "topic opened",
)
CLIENTS_SEE = (
    *(event for event in TOPICS_SEE if event not in ("message sent again", "answer repeated late")),
    "application killed",
    "flush",
    "message received",
    "producer closed with calls under way",
    "seek of a handle ended",
)
BOOKIES_SEE = (
    "bookie ended by itself",
    "entry replayed",
    "fence answered",
    "fence replayed",
    "ledger removed from metadata",
    "power cut happened in a start",
    "power cut happened in an operation",
    "start refused for damage",
)
DELETIONS_SEE = (
    "broker ended right after a write",
    "deletion confirmed",
    "deletion left to the sweep",
    "message lost",
    "metadata reply lost",
    "orphaned ledger deleted",
    "record deleted",
    "record marked",
    "use refused below a mark",
)
HAPPENS = {
    LEDGER: LEDGERS_SEE,
    TOPIC: TOPICS_SEE,
    CLIENT: CLIENTS_SEE,
    BOOKIE: BOOKIES_SEE,
    DELETION: DELETIONS_SEE,
}  # events, besides the kinds of faults


@dataclass
class Totals:
    """Sums over runs."""

    world: str = LEDGER
    seeds: int = 0
    confirmed: int = 0
    steps: int = 0
    simulated_ms: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    def add(self, report: Report) -> None:
        """Add a run."""
        self.seeds += 1
        self.confirmed += report.confirmed
        self.steps += report.steps
        self.simulated_ms += report.simulated_ms
        self.counts.update(report.counts)
        if report.failure:
            self.failures.append((report.plan.seed, report.failure))

    def merge(self, other: Totals) -> None:
        """Add other sums."""
        self.seeds += other.seeds
        self.confirmed += other.confirmed
        self.steps += other.steps
        self.simulated_ms += other.simulated_ms
        self.counts.update(other.counts)
        self.failures += other.failures

    def never_happened(self) -> list[str]:
        """Return the kinds that a campaign of many seeds must see and did not."""
        if self.seeds < SEEDS_FOR_EVERY_KIND:
            return []
        seen = {*HAPPENS[self.world], *(kind.name for kind in KINDS_OF[self.world])}
        return [name for name in sorted(seen) if not self.counts[name]]

    def lines(self) -> Iterator[str]:
        """Return the lines of the summary."""
        for name, count in sorted(self.counts.items()):
            yield f"{count:>10,}  {name}"
        minutes = max(self.seconds, 1e-9) / 60
        hours = self.simulated_ms / 3_600_000
        yield ""
        confirmed = f"{self.confirmed:,} messages confirmed"
        yield f"{self.world}: {self.seeds:,} seeds, {self.steps:,} events, {confirmed}, {hours:.2f} hours"
        yield f"{self.seeds / minutes:,.0f} seeds a minute, {hours / minutes:.2f} simulated hours a minute"


@dataclass(frozen=True, slots=True)
class Hunt:
    """The search for the first seed, from ``start`` on, that catches a mutant."""

    mutant: str
    start: int
    watched: Collection[str] | None = None
    seeds_max: int = MUTANT_SEEDS_MAX

    def plan(self, count: int) -> Plan:
        """Return the plan after ``count`` runs."""
        made = MUTANTS[self.mutant]
        others = {kind.name for kind in KINDS_OF[made.world]} - {made.only} if made.only else ()
        return Plan(self.start + count, world=made.world, without=frozenset(others))


@dataclass(frozen=True, slots=True)
class Catch:
    """The result of a hunt.

    Attributes:
        seeds: how many runs it took, 0 if none of them caught the mutant.
        accident: the first failure that proves nothing, empty if there was none (``Mutant.is_caught_by``).
    """

    hunt: Hunt
    seeds: int
    failure: str
    accident: str = ""

    @property
    def invariant(self) -> str:
        """Return the invariant that was broken."""
        return self.failure.split(" ", 1)[0]


def run_plan(plan: Plan, mutant: str = "", is_traced: bool = False, watched: Collection[str] | None = None) -> Report:
    """Run one plan, with or without a sabotage."""
    with MUTANTS[mutant].sabotage() if mutant else nullcontext():
        return execute(plan, is_traced, watched)


def hunt(task: Hunt) -> Catch:
    """Run seeds until one of them catches the mutant."""
    accident = ""
    for count in range(task.seeds_max):
        report = run_plan(task.plan(count), task.mutant, watched=task.watched)
        if MUTANTS[task.mutant].is_caught_by(report):
            return Catch(task, count + 1, report.failure, accident)
        accident = accident or report.failure
    return Catch(task, 0, "", accident)


def run_seeds(start: int, count: int, jobs: int, world: str = LEDGER) -> Totals:
    """Run seeds ``start .. start + count - 1`` of a world on ``jobs`` processes."""
    began = time.monotonic()
    totals = Totals(world)
    starts = range(start, start + count, BATCH_SEEDS)
    batches = [(world, range(at, min(at + BATCH_SEEDS, start + count))) for at in starts]
    for part in spread(_run_batch, batches, jobs):
        totals.merge(part)
    totals.seconds = time.monotonic() - began
    totals.failures.sort()
    return totals


def spread(function: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[R]:
    """Yield the results of tasks, in any order, from ``jobs`` processes. BrokenProcessPool: one of them died."""
    if jobs == 1:
        yield from map(function, tasks)
        return
    with ProcessPoolExecutor(jobs, get_context("fork")) as pool:
        for done in as_completed([pool.submit(function, task) for task in tasks]):
            yield done.result()


def table(catches: Iterable[Catch]) -> list[str]:
    """Return one line for each mutant: what caught it, and how many seeds it took from each start."""
    by_mutant: dict[str, list[Catch]] = {name: [] for name in MUTANTS}
    for catch in catches:
        by_mutant[catch.hunt.mutant].append(catch)
    lines = [f"{'mutant':<42} {'median':>7} {'most':>6}  caught by"]
    for name, found in by_mutant.items():
        if not found:
            continue
        caught = [catch.seeds for catch in found if catch.seeds]
        missed = len(found) - len(caught)
        seen = Counter(catch.invariant for catch in found if catch.seeds)
        words = ", ".join(f"{invariant} {times}x" for invariant, times in seen.most_common())
        words += f"{', ' if seen else ''}NOT CAUGHT {missed}x" if missed else ""
        middle = f"{median(caught):.0f}" if caught else "-"
        lines.append(f"{name:<42} {middle:>7} {max(caught, default='-'):>6}  {words}")
    return lines


def _run_batch(batch: tuple[str, range]) -> Totals:
    world, seeds = batch
    totals = Totals(world)
    for seed in seeds:
        totals.add(run_plan(Plan(seed, world=world)))
    return totals
