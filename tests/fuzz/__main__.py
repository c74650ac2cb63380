"""``python -m tests.fuzz``: fuzz all listeners in turns, or replay what broke one of them.

Exit codes: 0 every promise was kept, 1 one was broken, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import sys
from collections.abc import Callable

import uvloop

from tests.fuzz.campaign import campaign
from tests.fuzz.formats import table
from tests.fuzz.gateway_api import run_for
from tests.fuzz.listeners.listeners import LISTENERS
from tests.patience import patience

API = "api"  # requests made up from the gateway's OpenAPI document
FORMATS = "formats"  # contents that look like the formats that hold them
# Each runs rounds of its own seeds for some seconds.
OTHERS: dict[str, Callable[..., int]] = {API: run_for, FORMATS: table.run_for}
SLICE_SECONDS = 20.0  # of one listener, before the next has its turn


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit code."""
    options = _parsed(arguments)
    logging.getLogger("heliograph").addHandler(logging.NullHandler())
    logging.lastResort = None
    names = [*LISTENERS, *OTHERS] if options.listener is None else [options.listener]
    print(f"seed {options.seed}", flush=True)
    with patience():
        if options.count is not None:
            return max(_run(name, options.seed, options.first, count=options.count) for name in names)
        return _run_for(names, options.seed, options.first, options.minutes * 60)


def _run_for(names: list[str], seed: int, first: int, seconds: float) -> int:
    """Give each listener its share of the time. A listener that breaks has no further turn."""
    left = dict.fromkeys(names, seconds / len(names))
    seeds = dict.fromkeys(names, seed)
    failed = 0
    while left:
        for name in list(left):
            share = min(SLICE_SECONDS, left[name])
            if _run(name, seeds[name], first, seconds=share):
                failed = 1
                del left[name]
                continue
            left[name] -= share
            seeds[name] += 1
            if left[name] <= 0:
                del left[name]
    return failed


def _run(name: str, seed: int, first: int, *, count: int | None = None, seconds: float | None = None) -> int:
    if name in OTHERS:
        return OTHERS[name](seconds or 0.0, seed + first, rounds=count)
    run = uvloop.run if seed % 2 else asyncio.run  # the actors run on the one, and programs of users on either
    report = run(campaign(LISTENERS[name], seed, first=first, count=count, seconds=seconds))
    rate = report.conversations / report.seconds * 60
    print(
        f"{name}: seed {seed}, {report.conversations} conversations in {report.seconds:.0f} s ({rate:.0f} a minute)",
        flush=True,
    )
    if report.failure is not None:
        print(report.failure, flush=True)
    return int(report.failure is not None)


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--listener", choices=[*LISTENERS, *OTHERS], help="only this one")
    parser.add_argument("--minutes", type=float, default=10.0, help="for all listeners together")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="the first seed; default: any")
    parser.add_argument("--first", type=int, default=0, help="the first conversation of the seed")
    parser.add_argument("--count", type=int, help="as many conversations, or rounds, instead of a time")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
