"""JSON that others send: one parser with limits on depth, numbers and values, for every door."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from typing import Any, NoReturn

from heliograph.base.errors import MalformedJsonError

DEPTH_MAX = 64  # arrays and objects within each other  # I15
STORED_DEPTH_MAX = 1_000  # the same, of what was stored before there was a limit
DIGITS_MAX = 20  # of a whole number, with its sign: what has 64 bits fits

_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,{\[]', re.DOTALL)


def parse_json(
    text: str | bytes,
    what: str,
    field: str,
    *,
    values_max: int | None = None,
    is_content: bool = False,
    is_stored: bool = False,
) -> Any:
    """Return the value of a JSON text that comes from outside.

    Args:
        text: bytes are UTF-8.
        what: the text's name for the error, such as ``the body``.
        field: the name of the input, for the error.
        values_max: how many values it may have, the names in objects not counted; None where the number of bytes is
            bound enough.
        is_content: the text is a user's message, whose numbers may be of any size and whose texts may
            have halves of surrogate pairs.
        is_stored: the text may be a definition that was stored before there were limits: numbers and texts have none,
            and it may be deeper.

    Raises:
        MalformedJsonError: it is not JSON, has a number that is not finite or half of a surrogate pair, or is above a
            limit, which the error names.
    """
    depth_max = STORED_DEPTH_MAX if is_stored else DEPTH_MAX
    try:
        text = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        if values_max is not None and _values_at_most(text) > values_max and _values(text) > values_max:
            raise MalformedJsonError(
                f"{what} has more than {values_max} JSON values", field=field, limit=f"{values_max} values"
            )
        decoder = _STORED_DECODER if is_stored else _CONTENT_DECODER if is_content else _DECODER
        value = decoder.decode(text)
        if text.count("[") + text.count("{") > depth_max and _is_too_deep(value, depth_max):
            raise RecursionError
        if not (is_content or is_stored) and (
            "\\ud" in text or "\\uD" in text
        ):  # it may name half of a surrogate pair, which has no UTF-8
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise MalformedJsonError(
            f"{what} is nested deeper than {depth_max} arrays and objects", field=field, limit=f"{depth_max} levels"
        ) from None
    except _LongNumber:
        raise MalformedJsonError(
            f"{what} has a whole number of more than {DIGITS_MAX} digits", field=field, limit=f"{DIGITS_MAX} digits"
        ) from None
    except ValueError as error:
        raise MalformedJsonError(f"{what} is not JSON: {error}", field=field) from error
    return value


class _LongNumber(Exception):
    """A whole number has more digits than DIGITS_MAX."""


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise _LongNumber
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is above every number")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_finite, parse_constant=_refuse_constant)

_STORED_DECODER = json.JSONDecoder()

_CONTENT_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _values_at_most(text: str) -> int:
    return sum(map(text.count, ",{[")) + 1


def _values(text: str) -> int:
    """Count the values without those separators that stand in texts."""
    return 1 + sum(token.group()[0] != '"' for token in _TOKEN.finditer(text))


def _is_too_deep(value: Any, depth_max: int) -> bool:
    level: list[Any] = [[value]]  # the containers of one depth
    for _ in range(depth_max + 1):
        groups: Iterable[Any] = (each.values() if isinstance(each, dict) else each for each in level)
        level = [each for group in groups for each in group if isinstance(each, dict | list)]
        if not level:
            return False
    return True
