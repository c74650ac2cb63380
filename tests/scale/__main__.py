"""The command ``python -m tests.scale``: fill clusters of growing size, run every job, and print the table."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.bench.machine import ROOT
from tests.scale.cost import Cost
from tests.scale.failover import ROWS as FAILOVER
from tests.scale.jobs import ROWS as JOBS
from tests.scale.processes import ROWS as PROCESSES
from tests.scale.row import Row, lines
from tests.scale.site import OPEN_MAX, Site

SIZES = (1_000, 10_000, 100_000, 1_000_000)
HEAD = ("limit", "value", "grows with", "measured", "growth", "goal", "verdict")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen rows. Return 0 if all of them could be measured, whether goals are held or not."""
    options = _parse(arguments)
    logging.getLogger("heliograph").setLevel(logging.ERROR)  # each topic has a line when the cluster stops
    words = options.only or [""]
    rows = [row for row in (*PROCESSES, *JOBS, *FAILOVER) if any(word in row.limit for word in words)]
    measured: dict[Row, list[tuple[int, Cost]]] = {row: [] for row in rows}
    failures: list[str] = []
    sizes = sorted({*(size for size in SIZES if size < options.size), options.size})
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="scale-", dir=options.directory))
    try:
        for size in sizes:
            site = Site(directory / str(size), size, open_max=options.open)
            try:
                _measure(site, rows, measured, failures)
            finally:
                site.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for cells in (HEAD, ["---"] * len(HEAD), *lines({row: costs for row, costs in measured.items() if costs})):
        print("| " + " | ".join(cells) + " |")
    for failure in failures:
        print(f"failed: {failure}")
    return 1 if failures else 0


def _measure(site: Site, rows: list[Row], measured: dict[Row, list[tuple[int, Cost]]], failures: list[str]) -> None:
    for row in rows:
        began = time.monotonic()
        try:
            size, cost = row.measure(site)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{row.limit} at {site.topics:,}: {type(error).__name__}: {error}")
            continue
        if not measured[row] or measured[row][-1][0] < size:  # a broker has no more topics open than at the last size
            measured[row].append((size, cost))
        print(f"  {row.limit}, {size:,}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="topics of the largest cluster; 10 times the ledgers")
    parser.add_argument("--open", type=int, default=OPEN_MAX, help="topics that a broker has open at most, 40 kB each")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="only rows with such words in their names")
    parser.add_argument("--directory", type=Path, default=ROOT / "scale-results", help="where the data goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
