"""The output of a command: tables and lines for people, one JSON object for programs.

With ``--json`` standard output carries that object and nothing else; without it, progress and results go to standard
output. An error is one line on standard error, or with ``--json`` an object with the key ``error`` on standard output.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.base.version import install_advice

WIDTH_IN_FILES = 200  # columns, if standard output is not a terminal
EXIT_FAILED = 1
EXIT_USAGE = 2


class OwnOutput:
    """Standard output that only the main thread writes to; what other threads print goes to standard error.

    Ray prints news of its nodes from a thread of its own, also between the lines of a result that programs read.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text; return its length."""
        is_ours = threading.current_thread() is threading.main_thread()
        return (self._stream if is_ours else sys.stderr).write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def progress(self, line: str) -> None:
        """Print a line for people."""
        if not self.as_json:
            print(line, flush=True)

    def result(self, fields: Mapping[str, Any]) -> None:
        """Print the result for programs."""
        if self.as_json:
            print(json.dumps(fields, default=str), flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table for people."""
        if self.as_json:
            return
        from rich.console import Console  # a tenth of a second, which the commands without a table save
        from rich.table import Table

        console = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else WIDTH_IN_FILES)
        table = Table(
            title=title or None,
            title_justify="left",
            title_style="bold",
            box=None,
            pad_edge=False,
            show_header=any(columns),
        )
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*("" if cell is None else str(cell) for cell in row))
        console.print(table)

    def facts(self, title: str, rows: Sequence[tuple[str, Any]]) -> None:
        """Print names and values for people."""
        self.table(title, ("", ""), rows)

    def error(self, error: BaseException) -> int:
        """Print a failure; return the exit code that fits it."""
        text = " ".join(str(error).split()) or type(error).__name__
        limit = getattr(error, "limit", None)
        if limit and limit not in text:
            text = f"{text} (allowed: {limit})"
        if isinstance(error, ImportError) and (advice := install_advice(error)):
            text = advice
        elif not isinstance(error, HeliographError):
            text = f"unexpected {type(error).__name__}: {text} (HELIOGRAPH_DEBUG=1 shows where)"
        if self.as_json:
            details = {
                "type": type(error).__name__,
                "message": text,
                "field": getattr(error, "field", None),
                "limit": limit,
            }
            print(json.dumps({"error": details}), flush=True)
        else:
            print(f"error: {text}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, BadRequestError) else EXIT_FAILED
