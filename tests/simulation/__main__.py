"""``python -m tests.simulation``: run seeds, replay one of them, or try mutants.

Exit codes: 0 success (with --mutant and --mutants: all were caught), 1 an invariant was broken, a mutant was not caught
or a kind of fault never happened, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection

from tests.simulation.campaign import MUTANT_SEEDS_MAX, Hunt, hunt, run_plan, run_seeds, spread, table
from tests.simulation.checkers.judge import OUTCOMES
from tests.simulation.mutants.mutants import MUTANTS
from tests.simulation.profile import LEDGER, MESSAGES_MAX, NUISANCES, WORLDS, Plan
from tests.simulation.report import Report
from tests.simulation.shrink import Shrinker, relevant
from tests.simulation.worlds import KINDS_OF

SEEDS = 50
FAILURES_SHOWN_MAX = 10
STARTS = (0, 100_000, 200_000, 300_000, 400_000)  # first seeds of the hunts for each mutant


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    options = _parsed(arguments)
    watched = OUTCOMES if options.outcomes else None
    if options.mutants:
        return _try_mutants(list(MUTANTS), options.jobs, watched)
    if options.seed is not None:
        return _replay(options, watched)
    if options.mutant:
        return _hunt(Hunt(options.mutant, options.start, watched, options.seeds))
    worlds = WORLDS if options.world is None else (options.world,)
    return max([_run(options.start, options.seeds, options.jobs, world) for world in worlds])


def _run(start: int, seeds: int, jobs: int, world: str) -> int:
    totals = run_seeds(start, seeds, jobs, world)
    print("\n".join(totals.lines()))
    missing = totals.never_happened()
    for name in missing:
        print(f"error: never happened: {name}")
    for seed, failure in totals.failures[:FAILURES_SHOWN_MAX]:
        print(f"seed {seed}: {failure}")
    if totals.failures:
        print(f"{len(totals.failures)} of {totals.seeds} seeds failed")
        _explain(run_plan(Plan(totals.failures[0][0], world=world)), "", None)
    return 1 if totals.failures or missing else 0


def _hunt(task: Hunt) -> int:
    catch = hunt(task)
    if not catch.seeds:
        print(f"{task.mutant} was not caught by {task.seeds_max} seeds from {task.start} on")
        return 1
    print(f"{task.mutant} was caught by seed {task.start + catch.seeds - 1}, the {catch.seeds}. tried")
    plan = task.plan(catch.seeds - 1)
    _explain(run_plan(plan, task.mutant, watched=task.watched), task.mutant, task.watched)
    return 0


def _try_mutants(names: list[str], jobs: int, watched: Collection[str] | None) -> int:
    tasks = [Hunt(name, start, watched) for name in names for start in STARTS]
    catches = list(spread(hunt, tasks, jobs))
    print("\n".join(table(catches)))
    return 0 if all(catch.seeds for catch in catches) else 1


def _replay(options: argparse.Namespace, watched: Collection[str] | None) -> int:
    numbers = None if options.faults is None else frozenset(int(n) for n in options.faults.split(",") if n != "none")
    without = frozenset(options.without.split(",")) if options.without else frozenset()
    world = MUTANTS[options.mutant].world if options.mutant else options.world or LEDGER
    plan = Plan(options.seed, numbers, without, options.until, options.messages, world)
    report = run_plan(plan, options.mutant, options.trace, watched)
    print("\n".join(report.trace), end="\n" if report.trace else "")
    print(f"seed {plan.seed}: {report.failure or 'every promise held'}")
    if report.failure and not options.trace:
        _explain(report, options.mutant, watched)
    return 1 if report.failure else 0


def _explain(report: Report, mutant: str, watched: Collection[str] | None) -> None:
    """Shrink a failure, and print the broken invariant, the trace of the small run, and the command that repeats it."""
    shrinker = Shrinker(report, watched)
    with_mutant = f" --mutant {mutant}" if mutant else ""
    if mutant:
        with MUTANTS[mutant].sabotage():
            small = shrinker.shrink()
    else:
        small = shrinker.shrink()
    print("\n".join(["", *relevant(small)]))
    print(f"\nbroken: {small.failure}")
    print(f"faults left: {len(small.struck)} of {len(report.struck)}, after {shrinker.runs} runs of shrinking")
    only = " --outcomes" if watched is not None else ""
    print(f"all of it:  python -m tests.simulation {report.plan.arguments()}{with_mutant}{only} --trace")
    print(f"shrunk:     python -m tests.simulation {small.plan.arguments()}{with_mutant}{only} --trace")


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help=f"how many seeds to run: {SEEDS}, with --mutant {MUTANT_SEEDS_MAX}")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to run them on")
    parser.add_argument("--seed", type=int, help="replay one seed")
    parser.add_argument("--world", choices=WORLDS, help="what to simulate: with --seed ledger, else both")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--faults", help="with --seed: numbers of the faults to keep, or 'none'")
    parser.add_argument(
        "--without", help=f"with --seed: kinds of faults to leave out, or any of {', '.join(NUISANCES)}"
    )
    parser.add_argument("--until", type=int, help="with --seed: when faults end, in simulated milliseconds")
    parser.add_argument("--messages", type=int, default=MESSAGES_MAX, help="with --seed: how many messages to take")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), default="", metavar="NAME", help="sabotage something")
    parser.add_argument("--mutants", action="store_true", help="try every mutant from several starting points")
    parser.add_argument(
        "--outcomes", action="store_true", help=f"watch {', '.join(sorted(OUTCOMES))} only: see the harm"
    )
    options = parser.parse_args(arguments)
    if options.seeds is None:
        options.seeds = MUTANT_SEEDS_MAX if options.mutant else SEEDS
    if options.seeds < 1 or options.jobs < 1 or options.messages < 0:
        parser.error("--seeds and --jobs must be at least 1, --messages at least 0")
    if options.seed is None and (options.trace or options.faults is not None or options.without or options.until):
        parser.error("--trace, --faults, --without and --until go with --seed")
    known = {*NUISANCES, *(kind.name for kinds in KINDS_OF.values() for kind in kinds)}
    unknown = set(options.without.split(",")) - known if options.without else set()
    if unknown:
        parser.error(f"--without does not know {', '.join(sorted(unknown))}; it knows {', '.join(sorted(known))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
