"""What of a value does not come back from JSON, and where in the value it stands. No I/O."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

_LONG = 1 << 63  # numbers from it on are no longs


def fault_of(value: Any, kinds: tuple[type, ...] = (object,)) -> str | None:
    """Return which part of a value JSON cannot hold, and why; None if there is none to be seen.

    Args:
        kinds: The types that parts without parts may have.
    """
    for path, leaf in _leaves(value, ""):
        if reason := _reason(leaf, kinds):
            return f"{_shown(path)} {reason}"
    return None


def difference(given: Any, read: Any) -> str | None:
    """Return which part of a value is another one after reading it back; None if all parts are equal."""
    path = _first_difference(given, read, "")
    return None if path is None else f"{_shown(path)} is read back from JSON as something else"


def _reason(leaf: Any, kinds: tuple[type, ...]) -> str:
    if isinstance(leaf, float | Decimal) and not math.isfinite(leaf):
        return "is not finite, and JSON has no such number"
    if type(leaf) is int and not -_LONG <= leaf < _LONG:
        return "is a number of more than 64 bits, which readers in other languages do not have"
    if not isinstance(leaf, kinds):
        return f"is of the type {type(leaf).__name__}, which JSON does not have"
    try:
        if isinstance(leaf, bytes):
            leaf.decode()
        elif isinstance(leaf, str):
            leaf.encode()
    except UnicodeError:
        return "cannot be written as UTF-8; a model writes any bytes with ser_json_bytes and val_json_bytes='base64'"
    return ""


def _shown(path: str) -> str:
    return path.lstrip(".") or "the value"


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value that have no parts, with their places."""
    parts = _parts(value)
    if parts is None:
        yield path, value
        return
    for place, part in parts.items():
        yield from _leaves(part, path + place)


def _parts(value: Any) -> dict[str, Any] | None:
    """Return the parts of a value by their places; None if it has none."""
    if isinstance(value, Mapping):
        return {f"[{key!r}]": part for key, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return {f"[{number}]": part for number, part in enumerate(value)}
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {f".{field.name}": getattr(value, field.name) for field in dataclasses.fields(value)}
    fields = getattr(type(value), "model_fields", None)  # of a pydantic model
    if fields is None:
        return None
    parts = {f".{name}": getattr(value, name) for name, info in fields.items() if not info.exclude}
    return parts | {f".{name}": part for name, part in (value.model_extra or {}).items()}


def _first_difference(given: Any, read: Any, path: str) -> str | None:
    if given == read:
        return None
    mine = None if isinstance(given, set | frozenset) or type(given) is not type(read) else _parts(given)
    if mine is None:
        are_equal = isinstance(given, float | Decimal) and type(given) is type(read) and given != given and read != read
        return None if are_equal else path
    others = _parts(read) or {}
    if mine.keys() != others.keys():
        return path
    for place, part in mine.items():
        found = _first_difference(part, others[place], path + place)
        if found is not None:
            return found
    return None  # only the class itself says that they differ, by identity for instance


def dropped(given: Any, read: Any, path: str = "") -> str | None:
    """Return the place of a field that is in a value and not in what was read back; None if there is none."""
    if isinstance(given, tuple) and len(given) == 2 and isinstance(read, Mapping):
        given = given[1]  # fastavro's form of a value in a union: the name of its type, and the value
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for name, part in given.items():
            if name != "-type":  # fastavro's other form
                place = f"{path}.{name}"
                found = dropped(part, read[name], place) if name in read else _shown(place)
                if found is not None:
                    return found
    elif isinstance(given, list | tuple) and isinstance(read, list):
        for number, (part, other) in enumerate(zip(given, read, strict=False)):
            if (found := dropped(part, other, f"{path}[{number}]")) is not None:
                return found
    return None
