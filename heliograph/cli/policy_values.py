"""Policies on a command line: ``retention_seconds=3600``."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.errors import BadRequestError

_WORDS = {"true": True, "false": False}


def parsed(assignments: Sequence[str]) -> dict[str, bool | int | str]:
    """``name=value`` each; true, false and whole numbers are taken as such, anything else is text.

    Raises:
        BadRequestError: one of another form.
    """
    values: dict[str, bool | int | str] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator or not name:
            raise BadRequestError(f"{assignment!r} is no name=value", field="policy")
        number = text.removeprefix("-")
        values[name] = _WORDS[text] if text in _WORDS else int(text) if number.isdigit() else text
    return values
