"""The lines that etcd writes. Pure."""

from __future__ import annotations

import json

SERIOUS = ("error", "dpanic", "panic", "fatal")  # levels of lines that say why etcd ends


def text_of(line: str) -> tuple[str, str]:
    """Return the level of a line, and what it says with its error, if it names one; other lines are of level panic."""
    try:
        fields = json.loads(line)
        level, text = str(fields["level"]), str(fields["msg"])
    except (ValueError, TypeError, KeyError):
        return "panic", line.strip()
    return level, f"{text}: {fields['error']}" if fields.get("error") else text
