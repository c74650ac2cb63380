"""The output of the demonstration: progress bars while it runs, tables and text at its end."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights.check import Check
from examples.flights.cluster import DemoCluster
from examples.flights.publish import Published

PERCENTILES = (50, 99)
MIB = 1 << 20
LOG_COLUMNS = 140  # the width when the output is not a terminal
_STANDARD_STREAMS = (1, 2)


class Bars:
    """A progress bar for each stream of rows. On a terminal they move; a log has one line for each."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("   {task.description:<36}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, name: str, description: str, rows: int) -> None:
        """Start a bar."""
        self._tasks[name] = self._progress.add_task(description, total=rows)

    def advance(self, name: str, rows: int) -> None:
        """Add ``rows`` to a bar."""
        self._progress.advance(self._tasks[name], rows)

    def set(self, name: str, rows: int) -> None:
        """Set a bar to ``rows``."""
        self._progress.update(self._tasks[name], completed=rows)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self._progress.console.print(text)


def _own_console() -> Console:
    """Return a console that prints also while ``others_in`` redirects standard output."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    return Console(file=out, highlight=False, width=None if out.isatty() else LOG_COLUMNS)


@contextmanager
def others_in(file: Path) -> Iterator[None]:
    """Redirect the output of Ray and Java, in this process and its children, to ``file``."""
    kept = [os.dup(stream) for stream in _STANDARD_STREAMS]
    with file.open("ab") as out:
        _flush()
        for stream in _STANDARD_STREAMS:
            os.dup2(out.fileno(), stream)
    try:
        yield
    finally:
        _flush()
        for stream, copy in zip(_STANDARD_STREAMS, kept, strict=True):
            os.dup2(copy, stream)
            os.close(copy)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


class Report:
    """The printer of everything but the bars."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or _own_console()
        self._step = 0

    def step(self, text: str) -> None:
        """Print the title of a step."""
        self._step += 1
        self.console.print(f"\n[bold]{self._step}. {text}[/bold]")

    def note(self, text: str) -> None:
        """Print a line within a step."""
        self.console.print(f"   {text}", soft_wrap=True)

    @contextmanager
    def waiting(self, text: str) -> Iterator[None]:
        """Show that a step is in progress."""
        with self.console.status(f"   {text}"):
            yield

    def carriers(self, table: pd.DataFrame) -> None:
        """Print the table that Spark computed."""
        shown = Table("carrier", title="From the topic, by Spark", title_justify="left")
        for name in ("flights", "mean departure delay, min", "cancelled, %"):
            shown.add_column(name, justify="right")
        for carrier, flights, delay, cancelled in table.itertuples(index=False):
            shown.add_row(carrier, f"{flights:,}", f"{delay:.2f}", f"{100 * cancelled:.2f}")
        self.console.print(shown)

    def checks(self, checks: Iterable[Check]) -> None:
        """Print each check with its name and whether it held."""
        self.console.print("\n[bold]Checks[/bold]")
        for check in checks:
            mark = "[green]held  [/green]" if check.held else "[bold red]FAILED[/bold red]"
            self.console.print(f"   {mark} {check.name}: {check.found}", soft_wrap=True)

    def throughput(self, ways: Sequence[tuple[str, list[Published]]]) -> None:
        """Print rows per second and latencies of each way of publishing."""
        shown = Table("published over", title="Publishing, each row durable on two bookies", title_justify="left")
        for name in ("rows", "seconds", "rows/s", "MiB/s", "unit", "p50 ms", "p99 ms"):
            shown.add_column(name, justify="right")
        units = {"HTTP": "request", "WebSocket": "row"}
        for name, parts in ways:
            seconds = _span(parts)
            rows, size = sum(part.rows for part in parts), sum(part.payload_bytes for part in parts)
            shown.add_row(
                name,
                f"{rows:,}",
                f"{seconds:.1f}",
                f"{rows / seconds:,.0f}",
                f"{size / seconds / MIB:.1f}",
                units.get(name, "batch"),
                *percentiles([latency for part in parts for latency in part.latencies_ms]),
            )
        self.console.print(shown)

    def figures(self, figures: Iterable[tuple[str, str]]) -> None:
        """Print names and values, one pair per line."""
        for name, value in figures:
            self.console.print(f"   {name:<34} {value}")

    def addresses(self, cluster: DemoCluster) -> None:
        """Print the addresses of the cluster."""
        self.figures(
            [
                ("gateway", cluster.gateway_url),
                ("API documentation", f"{cluster.gateway_url}/docs"),
                ("Ray dashboard", cluster.dashboard_url or "this Ray cluster has none"),
            ]
        )


def percentiles(values: Sequence[float]) -> list[str]:
    """Return the percentiles to show, as text."""
    if not len(values):
        return ["-"] * len(PERCENTILES)
    return [f"{value:,.2f}" for value in np.percentile(values, PERCENTILES)]


def _span(parts: Sequence[Published]) -> float:
    """Return the seconds from the first start to the last end."""
    end = max(part.started + part.seconds for part in parts)
    return max(end - min(part.started for part in parts), 1e-3)
