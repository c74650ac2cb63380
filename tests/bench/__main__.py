"""The command ``python -m tests.bench``: measure, print a table, write bench-results/."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from tests.bench import machine, report
from tests.bench.bench import Bench
from tests.bench.process import end_by_exception
from tests.bench.sections import SECTIONS, USUAL, measure

RESULTS = machine.ROOT / "bench-results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen sections. Return 0 when all of them could be measured, whatever the figures."""
    options = _parse(arguments)
    end_by_exception()
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=options.directory))
    facts = machine.machine_facts(directory)
    bench = Bench(directory, is_quick=options.quick, backlog_bytes=int(options.backlog_gb * 1e9))
    begun = time.monotonic()
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # Ray logs each killed actor
        try:
            failures = _run(bench, options.only or USUAL)
            yardsticks = bench.yardsticks()
        finally:
            bench.close()
            shutil.rmtree(directory, ignore_errors=True)
    run = report.document(
        {**facts, "yardsticks": {name: asdict(found) for name, found in yardsticks.items()}},
        machine.code_facts(),
        bench.figures,
        failures,
        seconds=time.monotonic() - begun,
        is_quick=options.quick,
    )
    path = report.save(RESULTS, run)
    if options.json:
        print(json.dumps(run))
    elif options.markdown:
        print(report.markdown(bench.figures))
    else:
        report.show(bench.figures, failures)
        print()
        for name, found in yardsticks.items():
            print(f"{name}: {found}")
        print(f"{run['seconds']:.0f} s; written to {path}")
    return 1 if failures else 0


def _run(bench: Bench, names: Sequence[str]) -> list[str]:
    """Measure one section after another; a section that fails does not stop the others."""
    failures = []
    for name in names:
        begun = time.monotonic()
        try:
            measure(bench, name)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{name}: {type(error).__name__}: {error}")
        bench.say(f"{name}: {time.monotonic() - begun:.1f} s")
    return failures


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer rounds: rough figures soon")
    parser.add_argument(
        "--backlog-gb", type=float, default=0.0, metavar="GB", help="backlog of the section cold (1; quick: 0.27)"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of the table")
    parser.add_argument("--markdown", action="store_true", help="print the table as docs/benchmarks.md has it")
    parser.add_argument(
        "--directory", type=Path, default=RESULTS, help="where the data goes: its disk is what is measured"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
