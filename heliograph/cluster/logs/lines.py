"""The two formats of a log line, text and JSON: making them from log records, and parsing them. Pure.

Text: ``2026-01-01T05:15:00.000Z WARNING bookie-1 heliograph.actors.bookie.server: message [ledger=7]``. Further lines
of a message, and a traceback, are indented, so that nothing in a message looks like the begin of a line.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from heliograph.base.clock import iso_time
from heliograph.base.visible import visible

INDENT = "    "
IDS = ("ledger", "entry", "topic", "subscription", "bookie", "broker")  # given as ``extra`` of a log call
MESSAGE_CHARACTERS_MAX = 32_768  # of one record, a traceback included # I15
_NAMED = {  # ids that messages name
    "ledger": re.compile(r"\bledger (\d+)\b"),
    "topic": re.compile(r"\b((?:non-)?persistent://[^\s/]+/[^\s/]+/\S+?)(?=[:,;.]?(?:\s|$))"),
}
_TEXT = re.compile(r"(?P<time>\d{4}-\S+Z) (?P<level>[A-Z]+) (?P<part>\S+) (?P<module>[^\s:]+): (?P<message>.*)")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One record of a log. ``message`` may have several lines; ``ids`` are names and values such as a ledger's."""

    time_ms: int
    level: str
    part: str
    module: str
    message: str
    ids: tuple[tuple[str, str], ...] = ()

    @property
    def severity(self) -> int:
        """The level as a number, as the module ``logging`` counts."""
        return severity_of(self.level)

    def as_text(self) -> str:
        missing = [f"{name}={value}" for name, value in self.ids if value not in self.message]
        tail = f" [{' '.join(missing)}]" if missing else ""
        first, *rest = visible(self.message, keep="\n").split("\n")
        head = f"{iso_time(self.time_ms)} {self.level} {self.part} {self.module}: {first}{tail}"
        return "\n".join([head, *(INDENT + line for line in rest)])

    def as_fields(self) -> dict[str, Any]:
        return {
            "time": iso_time(self.time_ms),
            "level": self.level,
            "part": self.part,
            "module": self.module,
            "message": self.message,
            **dict(self.ids),
        }


def severity_of(level: str) -> int:
    """Return the number of a level's name; that of INFO for an unknown one."""
    return logging.getLevelNamesMapping().get(level, logging.INFO)


def line_of(record: logging.LogRecord, part: str) -> LogLine:
    message = record.getMessage()
    if record.exc_info and record.exc_info[0] is not None:
        message += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
    if len(message) > MESSAGE_CHARACTERS_MAX:
        message = message[:MESSAGE_CHARACTERS_MAX] + " ..."
    given = {name: str(getattr(record, name)) for name in IDS if hasattr(record, name)}
    ids = tuple({**_ids_in(message), **given}.items())
    return LogLine(int(record.created * 1000), record.levelname, part, record.name, message, ids)


def encoded(line: LogLine, form: str) -> bytes:
    """Return a line as bytes in the format ``text`` or ``json``."""
    text = line.as_text() if form == "text" else json.dumps(line.as_fields(), separators=(",", ":"))
    return text.encode(errors="replace")


def parsed(data: bytes, part: str) -> Iterator[LogLine]:
    """Parse the content of a log in either format. Text that is no line of a log joins the line before it.

    Args:
        part: whose log it is, for JSON lines without one.
    """
    held: LogLine | None = None
    for text in data.decode(errors="replace").split("\n"):
        found = _parsed_line(text, part)
        if found is None:
            if held is not None and text.strip():
                held = _joined(held, text)
            continue
        if held is not None:
            yield held
        held = found
    if held is not None:
        yield held


def merged(lines: Iterable[LogLine], *, since_ms: int = 0, level: str = "DEBUG") -> list[LogLine]:
    """Return the lines of several logs ordered by time, each once; older and less severe ones are left out."""
    least = severity_of(level)
    wanted = (line for line in lines if line.time_ms >= since_ms and line.severity >= least)
    return sorted(dict.fromkeys(wanted), key=lambda line: line.time_ms)


def _joined(line: LogLine, text: str) -> LogLine:
    message = f"{line.message}\n{text.removeprefix(INDENT)}"
    return LogLine(line.time_ms, line.level, line.part, line.module, message, line.ids)


def _parsed_line(text: str, part: str) -> LogLine | None:
    if text.startswith("{"):
        return _parsed_json(text, part)
    match = _TEXT.fullmatch(text)
    time_ms = _time_ms(match["time"]) if match else None
    if match is None or time_ms is None:
        return None
    message = match["message"]
    return LogLine(time_ms, match["level"], match["part"], match["module"], message, tuple(_ids_in(message).items()))


def _parsed_json(text: str, part: str) -> LogLine | None:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    time_ms = _time_ms(str(fields.get("time"))) if isinstance(fields, dict) else None
    if time_ms is None:
        return None
    level, part, module, message = (
        str(fields.get(name, default))
        for name, default in (("level", "INFO"), ("part", part), ("module", ""), ("message", ""))
    )
    ids = tuple((name, str(fields[name])) for name in IDS if name in fields)
    return LogLine(time_ms, level, part, module, message, ids)


def _ids_in(message: str) -> dict[str, str]:
    return {name: match[1] for name, pattern in _NAMED.items() if (match := pattern.search(message))}


def _time_ms(text: str) -> int | None:
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None
