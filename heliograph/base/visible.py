"""Text that strangers wrote, in a form that a terminal only shows (pure).

Names of topics and subscriptions, properties and messages may hold control characters: some move the cursor, set the
clipboard (OSC 52) or the window's title, begin another line, or turn the direction in which a line is read. Each of
them is written as Python writes it in a text, such as ``\\x1b`` or ``\\u202e``.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from typing import Any

JOINERS = "\u200c\u200d"  # join letters of Persian and parts of emoji, and do nothing else


def visible(text: str, keep: str = "") -> str:
    """Return a text without characters that act on a terminal.

    Args:
        keep: control characters that stay, such as the line ends of a text that is ours.
    """
    return _escaped(text, lambda each: repr(each)[1:-1], keep)


def visible_json(value: Any, *, is_ascii: bool = True) -> str:
    """Return a value as JSON on one line, in which everything that acts on a terminal is escaped.

    Args:
        value: what ``json`` does not know becomes text.
        is_ascii: escape all characters beyond ASCII as well.
    """
    return _escaped(json.dumps(value, default=str, ensure_ascii=is_ascii), _json_escape)


def _escaped(text: str, escape: Callable[[str], str], keep: str = "") -> str:
    if text.isprintable():  # the usual case, and fast
        return text
    return "".join(each if each in keep or _is_shown(each) else escape(each) for each in text)


def _is_shown(each: str) -> bool:
    return each.isprintable() or each in JOINERS or unicodedata.category(each) == "Zs"


def _json_escape(each: str) -> str:
    return json.dumps(each)[1:-1] if each != "\x7f" else "\\u007f"  # to JSON, DEL is an ordinary character
