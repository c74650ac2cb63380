"""``python -m tools.laboratory.against REVISION``: the present code and an older one, measured in turns in one run.

The older code is taken from git, with the benchmarks that it had, so that each is measured by what fits it, or with the
present ones, which have rows that the older did not. A section that the older code cannot run has no values there. What
is compared is what both call by the same name.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figure import number
from tests.bench.machine import ROOT
from tests.bench.process import end_by_exception
from tests.bench.sections import SECTIONS, USUAL

FOLDERS = ("heliograph", "actors", "gateway", "metadata", "pipelines", "examples", "tests", "tools", "pyproject.toml")
BENCHMARKS = (Path("tests") / "bench", Path("tools") / "laboratory")
RESULTS = ROOT / "bench-results"
ROUNDS = 2
SECTION_SECONDS_MAX = 1_800
CLEAR = 0.1  # a ratio this far from 1 in every round, in one direction, is pointed out

Key = tuple[str, str]  # section and name of a figure


@dataclass(slots=True)
class Pair:
    """One figure in both revisions: a value for each round."""

    unit: str
    before: list[float] = field(default_factory=list)
    now: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Return the present value divided by the older one, for each round that has both."""
        return [now / before for before, now in zip(self.before, self.now, strict=False) if before]

    @property
    def is_clear(self) -> bool:
        """Return whether all rounds agree that the value changed."""
        found = self.ratios
        return bool(found) and (min(found) > 1 + CLEAR or max(found) < 1 - CLEAR)


def compare(
    revision: str,
    sections: Sequence[str],
    directory: Path,
    *,
    rounds: int,
    is_quick: bool,
    with_present_benchmarks: bool,
    say: Callable[[str], None],
) -> dict[Key, Pair]:
    """Measure sections with the code of a revision and with the present one, in turns.

    Args:
        directory: for the files of the runs, on the measured disk.
        rounds: of both, for each section; every second one begins with the present code.
        with_present_benchmarks: whether the older code is measured with these instead of its own.

    Raises:
        RuntimeError: the revision is not in git's history here.
    """
    trees = {"before": unpack(revision, directory / "before-code"), "now": ROOT}
    if with_present_benchmarks:
        lay_over(trees["before"])
    found: dict[Key, Pair] = {}
    for section in sections:
        for turn in range(rounds):
            for which in ("before", "now") if turn % 2 == 0 else ("now", "before"):
                say(f"{section}, round {turn + 1}: {revision if which == 'before' else 'the present code'}")
                note(found, which, measured(trees[which], section, directory, is_quick=is_quick))
    return found


def unpack(revision: str, directory: Path) -> Path:
    """Write the code of a revision to a directory and return it.

    Raises:
        RuntimeError: git does not have it.
    """
    packed = directory.with_suffix(".tar")
    there = _git("ls-tree", "--name-only", revision, "--", *FOLDERS).split()  # an older one may lack some
    _git("archive", f"--output={packed}", revision, *there)
    with tarfile.open(packed) as archive:
        archive.extractall(directory, filter="tar")
    packed.unlink()
    return directory


def lay_over(tree: Path) -> None:
    """Put the present benchmarks in the place of those of an older tree."""
    for folder in BENCHMARKS:
        shutil.rmtree(tree / folder, ignore_errors=True)
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))


def _git(command: str, *arguments: str) -> str:
    """Run a command of git on the history of this code.

    Raises:
        RuntimeError: it failed, so a revision that it names is not there.
    """
    ran = subprocess.run(["git", "-C", str(ROOT), command, *arguments], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"not in the history here (git fetch --unshallow): {ran.stderr.strip()}")
    return ran.stdout


def measured(tree: Path, section: str, directory: Path, *, is_quick: bool) -> Sequence[Mapping[str, Any]]:
    """Run one section of the benchmarks of a tree; return its figures, none if it has no such section."""
    command = [sys.executable, "-m", "tests.bench", "--json", "--directory", str(directory), "--only", section]
    ran = subprocess.run(
        [*command, "--quick"] if is_quick else command,
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECTION_SECONDS_MAX,
        check=False,
    )
    if not ran.stdout.lstrip().startswith("{"):
        return []
    figures: list[Mapping[str, Any]] = json.loads(ran.stdout)["figures"]
    return figures


def note(found: dict[Key, Pair], which: str, figures: Sequence[Mapping[str, Any]]) -> None:
    """Add the figures of one run of one revision."""
    for figure in figures:
        pair = found.setdefault((figure["section"], figure["name"]), Pair(figure["unit"]))
        values = pair.before if which == "before" else pair.now
        values.append(figure["value"])


def show(revision: str, found: Mapping[Key, Pair]) -> None:
    """Print medians, the median of the rounds' ratios, and how far the rounds are apart."""
    table = Table(box=None, pad_edge=False)
    for column in ("section", "figure", f"at {revision}", "now", "unit", "now / before", "rounds", ""):
        justify = "right" if column.startswith(("at ", "now")) else "left"
        table.add_column(column, justify="right" if justify == "right" else "left", no_wrap=True)
    last = ""
    for (section, name), pair in found.items():
        table.add_row(section if section != last else "", name, *cells(pair))
        last = section
    Console(highlight=False, soft_wrap=True, width=400).print(table)


def cells(pair: Pair) -> tuple[str, str, str, str, str, str]:
    """Return what stands beside the name of a figure; a dash where only one of both has it."""
    before, now = ("-" if not values else number(median(values)) for values in (pair.before, pair.now))
    ratios = pair.ratios
    if not ratios:
        return before, now, pair.unit, "-", "", ""
    spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
    return before, now, pair.unit, f"{median(ratios):.2f}", spread, "changed" if pair.is_clear else ""


def as_json(revision: str, found: Mapping[Key, Pair]) -> dict[str, Any]:
    """Return the comparison for programs."""
    return {
        "against": revision,
        "figures": [
            {"section": section, "name": name, "unit": pair.unit, "before": pair.before, "now": pair.now,
             "ratios": pair.ratios, "is_clear": pair.is_clear}
            for (section, name), pair in found.items()
        ],
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure an older revision and the present code in turns; print and write how they compare."""
    parser = argparse.ArgumentParser(prog="python -m tools.laboratory.against", description=main.__doc__)
    parser.add_argument("revision", help="of git: the older code")
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), metavar="NAME", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="shorter runs and fewer rounds: rough figures soon")
    parser.add_argument("--json", action="store_true", help="print the JSON document instead of the table")
    parser.add_argument("--directory", type=Path, default=RESULTS, help="where the data goes: its disk is measured")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"for each section (default: {ROUNDS})")
    parser.add_argument(
        "--present-benchmarks",
        action="store_true",
        help="measure the older code with the present benchmarks, also rows that it did not have",
    )
    options = parser.parse_args(arguments)
    end_by_exception()
    options.directory.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=options.directory))
    try:
        found = compare(
            options.revision,
            options.only or USUAL,
            directory,
            rounds=options.rounds,
            is_quick=options.quick,
            with_present_benchmarks=options.present_benchmarks,
            say=lambda line: print(f"  {line}", file=sys.stderr, flush=True),
        )
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    written = json.dumps(as_json(options.revision, found), indent=2) + "\n"
    path = RESULTS / f"against-{options.revision.replace('/', '-')}.json"
    RESULTS.mkdir(exist_ok=True)
    path.write_text(written)
    if options.json:
        print(written, end="")
    else:
        show(options.revision, found)
        print(f"\nwritten to {path}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
