"""The command ``python -m tests.scale``: fill clusters of growing size, run every job, and print the table."""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from heliograph.base.system import collector
from tests.bench.machine import ROOT
from tests.bench.process import end_by_exception
from tests.scale.failover import ROWS as FAILOVER
from tests.scale.jobs import ROWS as JOBS
from tests.scale.processes import ROWS as PROCESSES
from tests.scale.site import LEDGERS_PER_TOPIC, OPEN_MAX, Site
from tests.scale.table import Table

SIZES = (1_000, 10_000, 100_000, 1_000_000)
ROW_SECONDS_MAX = 1_800.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the chosen rows. Return 0 if all of them could be measured, whether goals are held or not."""
    options = _parse(arguments)
    end_by_exception()
    logging.getLogger("heliograph").setLevel(logging.ERROR)  # each topic has a line when the cluster stops
    words = options.only or [""]
    rows = [row for row in (*PROCESSES, *JOBS, *FAILOVER) if any(word in row.limit for word in words)]
    table = Table(rows, options.row_seconds)
    sizes = sorted({*(size for size in SIZES if size < options.size), options.size})
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="scale-", dir=options.directory))
    try:
        for size in [options.size] if options.largest else sizes:
            collector.take_over()  # as the processes of a cluster do
            site = Site(directory / str(size), size, ledgers_per_topic=options.ledgers, open_max=options.open)
            try:
                table.measure(site)
            finally:
                site.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        table.print_whole()
    return 1 if any(table.missing.values()) else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scale", description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="topics of the largest cluster")
    parser.add_argument("--ledgers", type=int, default=LEDGERS_PER_TOPIC, help="for each topic")
    parser.add_argument("--open", type=int, default=OPEN_MAX, help="topics that a broker has open at most, 40 kB each")
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="only rows with such words in their names")
    parser.add_argument("--largest", action="store_true", help="only the largest cluster, none of the smaller ones")
    parser.add_argument("--row-seconds", type=float, default=ROW_SECONDS_MAX, help="for one row at one size")
    parser.add_argument("--directory", type=Path, default=ROOT / "scale-results", help="where the data goes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
