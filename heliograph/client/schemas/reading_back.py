"""The parts of a value that do not come back from JSON or Avro, and their places in it. No I/O."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID

_LONG = 1 << 63  # numbers from it on are no longs
_OF_AVRO = (date, time, UUID, Decimal)  # which may be given as Avro stores them; a datetime is a date


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


def avro_difference(given: Any, read: Any, path: str = "") -> str | None:
    """Return which part of a value a record of Avro has no field for, or holds as another one; None: all are equal."""
    if isinstance(given, tuple) and len(given) == 2 and not isinstance(read, list):
        given = given[1]  # fastavro's form of a value in a union: the name of its type, and the value
    if isinstance(given, Mapping) and isinstance(read, Mapping):
        for name in given:
            if name not in read and name != "-type":  # fastavro's other form
                return f"the record has no field {_shown(f'{path}.{name}')}"
        pairs = [(part, read[name], f"{path}.{name}") for name, part in given.items() if name in read]
    elif isinstance(read, list):
        pairs = [
            (part, other, f"{path}[{number}]") for number, (part, other) in enumerate(zip(given, read, strict=True))
        ]
    elif given == read or given != given or (isinstance(given, str | bytes | int) and isinstance(read, _OF_AVRO)):
        return None
    else:
        return f"{_shown(path)} is read back as {'more than 32 bits' if read is None else repr(read)}"
    return next((fault for pair in pairs if (fault := avro_difference(*pair)) is not None), None)
