"""The table for people and the file for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figure import Figure, number

WIDTH = 400  # columns: more than any row has, so that no row is folded


def show(figures: Sequence[Figure], failures: Sequence[str]) -> None:
    """Print the table, and which sections failed."""
    console = Console(highlight=False, soft_wrap=True, width=WIDTH)
    table = Table(box=None, pad_edge=False)
    for column, justify in (
        ("section", "left"),
        ("figure", "left"),
        ("value", "right"),
        ("unit", "left"),
        ("ratio", "right"),
        ("to", "left"),
        ("aim", "left"),
        ("more", "left"),
    ):
        table.add_column(column, justify="right" if justify == "right" else "left", no_wrap=True)
    section = ""
    for figure in figures:
        table.add_row(figure.section if figure.section != section else "", *_cells(figure))
        section = figure.section
    console.print(table)
    for failure in failures:
        console.print(f"failed: {failure}", markup=False)


def markdown(figures: Sequence[Figure]) -> str:
    """Return the table in the form of docs/benchmarks.md."""
    lines = ["| figure | value | ratio | to | aim |", "|---|---|---|---|---|"]
    section = ""
    for figure in figures:
        if figure.section != section:
            section = figure.section
            lines.append(f"| **{section}** | | | | |")
        name, value, unit, ratio, to, aim, more = _cells(figure)
        note = f" ({more})" if more else ""
        lines.append(f"| {name.strip()} | {value} {unit}{note} | {ratio} | {to} | {aim} |")
    return "\n".join(lines)


def document(
    machine: dict[str, Any],
    code: dict[str, Any],
    figures: Sequence[Figure],
    failures: Sequence[str],
    *,
    seconds: float,
    is_quick: bool,
) -> dict[str, Any]:
    """Return the whole run, for programs."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds, 1),
        "is_quick": is_quick,
        "code": code,
        "machine": machine,
        "figures": [figure.as_json() for figure in figures],
        "failures": list(failures),
    }


def save(directory: Path, run: dict[str, Any]) -> Path:
    """Write the run to a new file, and to ``latest.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(run, indent=2) + "\n"
    path = directory / f"{run['when'].replace(':', '')}.json"
    path.write_text(text)
    (directory / "latest.json").write_text(text)
    return path


def _cells(figure: Figure) -> tuple[str, ...]:
    aim = ""
    if figure.aim is not None:
        aim = f"{figure.aim} {'met' if figure.is_aim_met else 'MISSED'}"
    ratio = "-" if figure.ratio is None else f"{figure.ratio:.2f}"
    more = ", ".join(f"{name} {_part(value)}" for name, value in figure.more.items())
    return figure.name, number(figure.value), figure.unit, ratio, figure.against.name, aim, more


def _part(value: float | int | str) -> str:
    return number(value) if isinstance(value, int | float) else value
