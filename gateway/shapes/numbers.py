"""Numbers of a JSON body, which clients also send as text. No I/O."""

from __future__ import annotations

from typing import Any

from heliograph.gateway.errors import PreconditionError, UnacceptableFieldError

DIGITS_MAX = 20  # of a number in text


def number_in_text(value: Any) -> Any:
    """Return the whole number that a text such as ``"3"`` holds, and any other value as it is."""
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal() and len(value) <= DIGITS_MAX:
        return int(value)
    return value


def number_of(body: Any, name: str, lowest: int) -> int:
    """Return a whole number of a body, which may be text.

    Raises:
        UnacceptableFieldError: it is no whole number.
        PreconditionError: it is too low.
    """
    limit = f"a whole number, {lowest} or more"
    body = number_in_text(body)
    if isinstance(body, float) and body.is_integer():
        body = int(body)
    if not isinstance(body, int) or isinstance(body, bool):
        raise UnacceptableFieldError(f"{name} is {body!r}", field=name, limit=limit)
    if body < lowest or body >= 1 << 63:
        raise PreconditionError(f"{name} is {body}", field=name, limit=limit)
    return body
