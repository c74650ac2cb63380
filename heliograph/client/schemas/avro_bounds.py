"""Bounds of the memory that a value of Avro takes, by the length of its bytes. No I/O.

The library that reads values ends the process when records in records are too deep, and reads any number of items that
have no bytes. A value of a definition that does not rule this out is stepped over in Python before it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heliograph.base.errors import ProtocolError, UnsupportedError
from heliograph.base.guard.json_text import parse_json

DEPTH_MAX = 64  # of types in types
RECORDS_DEPTH_MAX = 200  # of records in records of one value: the library takes several times as many
STEPS_MAX = 20  # parts of a value for each of its bytes
_EMPTY = ("null", {"type": "null"})
_NAMED = ("record", "error", "enum", "fixed")
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def value_check(definition: bytes) -> Callable[[bytes], None] | None:
    """Return what raises ProtocolError for values that are too deep or too many; None if the definition allows none."""
    read = parse_json(definition, "the schema", "schema", is_stored=True)
    try:
        AvroBounds("schema").check(read, "", 0)
    except UnsupportedError:
        named: dict[str, tuple[Any, str]] = {}
        _collect(read, "", named)
        return lambda data: _Steps(data, named).step(read, "", 0)
    return None


def _collect(schema: Any, namespace: str, named: dict[str, tuple[Any, str]]) -> None:
    """Add the named types of a definition by full name, with the namespace that each stands in."""
    if isinstance(schema, list):
        for one in schema:
            _collect(one, namespace, named)
    elif isinstance(schema, dict):
        if schema["type"] in _NAMED:
            full, inner = full_name(schema, namespace)
            named[full], namespace = (schema, namespace), inner
        parts = [one["type"] for one in schema.get("fields", ())]
        for one in [*parts, *(schema[part] for part in ("items", "values", "type") if part in schema)]:
            _collect(one, namespace, named)


class _Steps:
    """Steps over one value, whose definition is a valid one."""

    def __init__(self, data: bytes, named: dict[str, tuple[Any, str]]) -> None:
        self._data = data
        self._at = 0
        self._left = STEPS_MAX * (len(data) + DEPTH_MAX)
        self._named = named

    def step(self, schema: Any, namespace: str, depth: int) -> None:
        self._left -= 1
        if self._left < 0 or depth > RECORDS_DEPTH_MAX:
            raise ProtocolError("the value has more parts than its bytes allow, or records in records are too deep")
        if isinstance(schema, list):
            self.step(schema[self._long()], namespace, depth)
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if isinstance(kind, dict | list):
            self.step(kind, namespace, depth)
        elif kind in _NAMED:
            self._step_named(schema, namespace, depth)
        elif kind in ("array", "map"):
            self._step_items(schema, namespace, depth)
        elif kind in ("int", "long"):
            self._long()
        elif kind in ("bytes", "string"):
            self._pass_bytes()
        elif kind in _SIZES:
            self._at += _SIZES[kind]
        else:
            full = kind if "." in kind or not namespace else f"{namespace}.{kind}"
            self.step(*(self._named[full] if full in self._named else self._named[kind]), depth)

    def _step_named(self, schema: dict[str, Any], namespace: str, depth: int) -> None:
        _, inner = full_name(schema, namespace)
        if schema["type"] == "enum":
            self._long()
        self._at += schema["size"] if schema["type"] == "fixed" else 0
        for field in schema.get("fields", ()):
            self.step(field["type"], inner, depth + 1)

    def _step_items(self, schema: dict[str, Any], namespace: str, depth: int) -> None:
        is_map = schema["type"] == "map"
        while (count := self._long()) != 0:
            if count < 0:  # the block says its size
                count, _ = -count, self._long()
            for _ in range(count):
                if is_map:
                    self._pass_bytes()
                self.step(schema["values" if is_map else "items"], namespace, depth)

    def _pass_bytes(self) -> None:
        size = self._long()
        self._at += max(size, 0)

    def _long(self) -> int:
        value = shift = 0
        while (byte := self._data[self._at]) & 0x80:
            if shift > 63:
                raise ProtocolError("a number has more than 64 bits")
            value, shift, self._at = value | (byte & 0x7F) << shift, shift + 7, self._at + 1
        self._at += 1
        value |= byte << shift
        return (value >> 1) ^ -(value & 1)


def full_name(schema: dict[str, Any], namespace: str) -> tuple[str, str]:
    """Return the full name of a named type, and the namespace of what stands in it."""
    name = str(schema["name"])
    inner = name.rpartition(".")[0] or str(schema.get("namespace") or namespace)
    return (name if "." in name or not inner else f"{inner}.{name}"), inner


class AvroBounds:
    """Walks a definition once. Each value of a type has a byte, and none contains another one of its own type."""

    def __init__(self, field: str) -> None:
        self._field = field
        self._depths: dict[str, int] = {}  # of named types, by full name; -1 for one that is being walked
        self.longest_name = 0

    def check(self, schema: Any, namespace: str, depth: int) -> int:
        """Return how deep the types in a type are.

        Raises:
            UnsupportedError: a type is without bytes or in itself, or types are too deep.
        """
        if depth > DEPTH_MAX:
            raise self._refused("has types in types that are too deep")
        if schema in _EMPTY or (isinstance(schema, dict) and (schema.get("fields") == [] or schema.get("size") == 0)):
            raise self._refused("has a type whose values have no bytes")
        if isinstance(schema, str):
            return self._check_name(schema, namespace, depth)
        if isinstance(schema, list):
            return self._deepest([one for one in schema if one not in _EMPTY], namespace, depth)
        if "name" not in schema or schema["type"] not in _NAMED:
            inner = [schema[part] for part in ("items", "values") if part in schema]
            return self._deepest(inner or [schema["type"]], namespace, depth)
        full, namespace = full_name(schema, namespace)
        fields = schema.get("fields", ())
        names = [one["name"] for one in fields] + schema.get("symbols", [])
        self.longest_name = max([self.longest_name, *map(len, names)])
        self._depths[full] = -1
        self._depths[full] = self._deepest([one["type"] for one in fields], namespace, depth)
        return self._depths[full]

    def _check_name(self, name: str, namespace: str, depth: int) -> int:
        """Return the same as ``check`` for the name of a primitive type, or of one that was walked before."""
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        below = self._depths.get(full, self._depths.get(name, 0))
        if below < 0:
            raise self._refused("has a type that contains itself")
        if depth + below > DEPTH_MAX:
            raise self._refused("has types in types that are too deep")
        return below

    def _deepest(self, schemas: list[Any], namespace: str, depth: int) -> int:
        return 1 + max((self.check(one, namespace, depth + 1) for one in schemas), default=0)

    def _refused(self, why: str) -> UnsupportedError:
        return UnsupportedError(f"the schema {why}: read the bytes of Avro, without {self._field}", field=self._field)
