"""The output of a command: tables and lines for people, one JSON object for programs.

With ``--json`` standard output carries that object and nothing else; without it, progress and results go to standard
output. An error is one line on standard error, or with ``--json`` an object with the key ``error`` on standard output.
Names and messages are of strangers: whatever is printed here is made harmless to a terminal first, and no other
module of the command line prints.

Where people read on a terminal there are colours, symbols, and a last line that counts the seconds; a pipe, a file,
``NO_COLOR`` and ``TERM=dumb`` get plain text.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TextIO

from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.base.version import install_advice
from heliograph.base.visible import visible, visible_json

WIDTH_IN_FILES = 200  # columns, if standard output is not a terminal
WIDTH_IF_UNKNOWN = 80  # of a terminal that says 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
TICK_SECONDS = 0.25  # between two looks of the line that counts the seconds
GREEN, YELLOW, RED, FAINT, PLAIN = "\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[2m", "\x1b[0m"
DONE = "\N{CHECK MARK}"
_ERASE_LINE = "\r\x1b[K"
_CLEAR = "\x1b[H\x1b[J"
_STYLES = {  # of cells of tables
    **dict.fromkeys(("ALIVE", "ok"), "green"),
    **dict.fromkeys(("RESTARTING", "PENDING_CREATION", "DEPENDENCIES_UNREADY", "warning"), "yellow"),
    **dict.fromkeys(("DEAD", "problem"), "bold red"),
}
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|[\x00-\x08\x0b-\x1f\x7f]")
_TRACEBACK = "Traceback (most recent call last):"


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


def has_colours(stream: TextIO) -> bool:
    """Return whether colours may be written: to a terminal whose user has not asked for plain text."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str, stream: TextIO) -> str:
    """Return a text in a colour if the stream shows colours, else unchanged."""
    return f"{colour}{text}{PLAIN}" if has_colours(stream) else text


def note(line: str) -> None:
    """Print a line for people on standard error, beside a result that programs may read."""
    print(visible(line), file=sys.stderr)


def write_message(payload: bytes, *, is_raw: bool = False) -> None:
    """Write the content of a message as a line: its bytes, or on a terminal its text in a harmless form.

    Args:
        is_raw: write the bytes to a terminal, too.
    """
    if sys.stdout.isatty() and not is_raw:
        payload = visible(payload.decode(errors="backslashreplace"), keep="\t").encode(errors="replace")
    sys.stdout.buffer.write(payload + b"\n")


def write_object(fields: Mapping[str, Any]) -> None:
    """Write one of many objects as a line of JSON in UTF-8, for programs."""
    sys.stdout.buffer.write(visible_json(fields, is_ascii=False).encode() + b"\n")


def one_line(text: str) -> str:
    """Return a text as one line without escapes of terminals; of a traceback in it, the error alone is left."""
    lines = [line for line in (_ESCAPES.sub("", each).rstrip() for each in text.splitlines()) if line.strip()]
    for place, line in enumerate(lines):
        if _TRACEBACK in line:
            lines = [*lines[:place], lines[-1]]
            break
    return " ".join(" ".join(lines).split())


class Stopwatch:
    """The lines of a command that takes longer than a moment, each with the seconds since it began.

    On a terminal a last line shows the step that is under way and counts the seconds.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begun = time.monotonic()
        self._step = ""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._is_live = not output.as_json and has_colours(sys.stderr) and has_colours(sys.stdout)

    @property
    def seconds(self) -> float:
        """The seconds since the command began."""
        return time.monotonic() - self._begun

    def progress(self, line: str) -> None:
        """Print a line, which says what was done or what begins now."""
        line = one_line(line)  # it may repeat what Ray said
        with self._lock:
            self._erase()
            self._step = line
            self._output.progress(line, coloured(f"{self.seconds:6.1f} s", FAINT, sys.stdout) + "  ")

    @contextlib.contextmanager
    def running(self) -> Iterator[Stopwatch]:
        """Count the seconds for the length of the block, where people see them."""
        counting = threading.Thread(target=self._count, name="helio-seconds", daemon=True) if self._is_live else None
        if counting is not None:
            counting.start()
        try:
            yield self
        finally:
            self._ended.set()
            if counting is not None:
                counting.join()

    def _count(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            with self._lock:
                width = os.get_terminal_size(sys.stderr.fileno()).columns or WIDTH_IF_UNKNOWN
                text = f"{self.seconds:6.1f} s  ... {self._step}"[: max(1, width - 1)]
                sys.stderr.write(f"{_ERASE_LINE}{FAINT}{text}{PLAIN}")
                sys.stderr.flush()
        self._erase()

    def _erase(self) -> None:
        if self._is_live:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()


class Output:
    """The output of one command."""

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json

    def progress(self, line: str, before: str = "") -> None:
        """Print a line for people, behind a text of ours that may have colours."""
        if not self.as_json:
            print(before + visible(line), flush=True)

    def done(self, line: str) -> None:
        """Print a line on a finished action, for people."""
        is_marked = has_colours(sys.stdout) and (sys.stdout.encoding or "").lower().startswith("utf")
        self.progress(line, f"{GREEN}{DONE}{PLAIN} " if is_marked else "")

    def warn(self, line: str) -> None:
        """Print a warning, for people."""
        if not self.as_json:
            print(coloured(visible(line), YELLOW, sys.stdout), flush=True)

    @contextlib.contextmanager
    def timed(self) -> Iterator[Stopwatch]:
        """Show the lines of the block with seconds: what takes longer than one second runs in here."""
        with Stopwatch(self).running() as watch:
            yield watch

    def result(self, fields: Mapping[str, Any]) -> None:
        """Print the result for programs."""
        if self.as_json:
            print(visible_json(fields), flush=True)

    def clear(self) -> None:
        """Empty the screen of a terminal, for what is shown again and again."""
        if has_colours(sys.stdout):
            sys.stdout.write(_CLEAR)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table for people."""
        if self.as_json:
            return
        from rich.console import Console  # a tenth of a second, which the commands without a table save
        from rich.table import Table
        from rich.text import Text

        console = Console(
            highlight=False,
            soft_wrap=True,
            width=None if sys.stdout.isatty() else WIDTH_IN_FILES,
            color_system="auto" if has_colours(sys.stdout) else None,
        )
        table = Table(
            title=Text(visible(title), style="bold") if title else None,
            title_justify="left",
            box=None,
            pad_edge=False,
            show_header=any(columns),
        )
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(
                *(Text("" if cell is None else visible(str(cell)), _STYLES.get(str(cell), "")) for cell in row)
            )
        console.print(table)

    def facts(self, title: str, rows: Sequence[tuple[str, Any]]) -> None:
        """Print names and values for people."""
        self.table(title, ("", ""), rows)

    def error(self, error: BaseException) -> int:
        """Print a failure; return the exit code that fits it."""
        text = one_line(str(error)) or type(error).__name__
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
            print(visible_json({"error": details}), flush=True)
        else:
            print(f"{coloured('error:', RED, sys.stderr)} {visible(text)}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, BadRequestError) else EXIT_FAILED
