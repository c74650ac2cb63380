"""Figures as people read them: ``2.4 MB/s``, ``3 min ago``. Programs get the numbers, by ``--json``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from heliograph.base.clock import iso_time, wall_ms

_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_AGES = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_RATE = re.compile(r"(?i)msgRate\w*|msgs_per_s|messages\w*_per_second|\w*rate(In|Out)")
_THROUGHPUT = re.compile(r"(?i)\w*throughput\w*|bytes\w*_per_second")
_SIZE = re.compile(r"(?i)(\w*size|(\w+_)?bytes|bytes\w*counter)")
_MOMENT = re.compile(r"(?i)\w*timestamp|since_ms|\w*ed_ms")
_LATENCY = re.compile(r"\w+_ms")
_NAME = re.compile(r"(\w*_)?(ledger|id|pid|port)")  # a number that tells things apart


def size_text(count: float) -> str:
    """Return a number of bytes with three digits, such as ``2.4 MB``; a unit is a thousand of the one before."""
    for unit in _SIZES[:-1]:
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} {_SIZES[-1]}"


def age_text(time_ms: int, now_ms: int) -> str:
    """Return how long ago a time was, in its greatest unit, such as ``3 min ago``; the time itself if it is ahead."""
    seconds = (now_ms - time_ms) // 1000
    if seconds < 0:
        return iso_time(time_ms)
    unit, name = next((each for each in _AGES if seconds >= each[0]), _AGES[-1])
    return f"{seconds // unit} {name} ago"


def for_people(name: str, value: Any) -> Any:
    """Return a figure as people read it, by the unit that its name has; anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or _NAME.fullmatch(name):
        return value
    if name == "mb_per_s":
        return f"{size_text(value * 1e6)}/s"
    if name.endswith("_share"):
        return f"{value:.1%}"
    if _MOMENT.fullmatch(name):
        return age_text(int(value), wall_ms()) if value > 0 else "not known"
    if _THROUGHPUT.fullmatch(name):
        return f"{size_text(value)}/s"
    if _RATE.fullmatch(name):
        return f"{value:,.3g} messages/s" if abs(value) < 1000 else f"{value:,.0f} messages/s"
    if _SIZE.fullmatch(name):
        return size_text(value) if value >= 0 else value  # -1: not known
    if _LATENCY.fullmatch(name):
        return f"{value:.3g} ms" if abs(value) < 1000 else f"{value:,.0f} ms"
    return f"{value:,}" if abs(value) >= 10_000 else value


def rows_for_people(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """Return the rows of a table as people read them, by the names of its columns."""
    return [[for_people(name, value) for name, value in zip(columns, row, strict=True)] for row in rows]
