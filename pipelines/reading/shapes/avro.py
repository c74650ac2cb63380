"""Definitions of Avro as columns, for values in Avro's binary form and in JSON. No I/O.

A union of several types is a struct with a nullable member for each type but null, ``member0`` first, as Spark's own
reader of Avro makes it; unions of int and long, and of float and double, are the larger of the two. A record that
stands in itself becomes text of JSON below a depth.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from heliograph.base.version import extra_required
from heliograph.client.schemas.avro_bounds import value_check
from heliograph.client.schemas.decoding import tagged
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH, Shape, ShapeLimits, json_text
from heliograph.protocol.schema import JSON_TEXT

TIMESTAMP_MS = pa.timestamp("ms", tz="UTC")
_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}
_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": TIMESTAMP_MS,
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_NAMED = ("record", "error", "enum", "fixed")
_LARGER = ({"int", "long"}, {"float", "double"})  # unions that are their second type
_INT_MAX = (1 << 31) - 1
_TAG = "heliograph-width"  # a logical type by which longs and doubles keep their width in Python
_Path = tuple[str, ...]


@dataclass(frozen=True)
class AvroShape(Shape):
    """The form of a definition.

    Args:
        is_direct: what fastavro and ``json`` return needs no conversion.
    """

    is_direct: bool = True


class _Long(int):
    """A number that was written as a long, which a union with int distinguishes."""


class _Double(float):
    """A number that was written as a double."""


def avro_shape(definition: Any, recursion_depth: int = RECURSION_DEPTH) -> AvroShape:
    """Return the form of a definition.

    Raises:
        UnsupportedError: it has too many columns, or types in types are too deep.
        KeyError, TypeError: it is malformed.
    """
    shapes = _Shapes(ShapeLimits(recursion_depth))
    made = shapes.of(definition, "", ())
    return AvroShape(made.kind, made.convert, shapes.is_direct)


def avro_reader(written: bytes, shown: bytes, shape: AvroShape) -> Callable[[bytes], Any]:
    """Return the function that makes cells of values in Avro's binary form.

    Args:
        written, shown: the definitions of a message, and of the table.
        shape: that of ``shown``.

    Raises:
        ResourceError: fastavro is not installed.
    """
    with extra_required():
        import fastavro
        from fastavro.read import LOGICAL_READERS

    if shape.is_direct:
        writer, reader = fastavro.parse_schema(json.loads(written)), fastavro.parse_schema(json.loads(shown))
        return _checked(written, lambda value: fastavro.schemaless_reader(io.BytesIO(value), writer, reader))
    LOGICAL_READERS[f"long-{_TAG}"] = lambda value, *_: _Long(value)
    LOGICAL_READERS[f"double-{_TAG}"] = lambda value, *_: _Double(value)
    writer = fastavro.parse_schema(tagged(json.loads(written), {"long": _TAG, "double": _TAG}))
    # A value that was written with the same definition is read without resolution, and keeps its place in unions.
    resolved = None if written == shown else fastavro.parse_schema(json.loads(shown))
    return _checked(
        written,
        lambda value: shape.optional(
            fastavro.schemaless_reader(io.BytesIO(value), writer, resolved, return_named_type=True)
        ),
    )


def _checked(written: bytes, read: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return ``read``, which sees only values that the library reads without ending the process."""
    check = value_check(written)
    if check is None:
        return read

    def checking(value: bytes) -> Any:
        check(value)
        return read(value)

    return checking


@dataclass(frozen=True)
class _Member:
    """A type of a union."""

    name: str  # of a named type
    shape: Shape
    is_exact: Callable[[Any], bool]  # whether a value was written as this type
    fits: Callable[[Any], bool]  # or may have become it


class _Shapes:
    """The forms of one definition. ``is_direct`` turns false where a value needs a conversion."""

    def __init__(self, limits: ShapeLimits) -> None:
        self._limits = limits
        self._named: dict[str, tuple[Any, str]] = {}  # definitions by full name, and the namespace that they stand in
        self.is_direct = True

    def of(self, schema: Any, namespace: str, path: _Path) -> Shape:
        if isinstance(schema, list):
            return self._union(schema, namespace, path)
        if isinstance(schema, str):
            if schema in _PRIMITIVES:
                return Shape(_PRIMITIVES[schema], _same)
            return self.of(*self._definition(schema, namespace), path)
        kind, logical = schema["type"], schema.get("logicalType")
        if isinstance(kind, dict | list):
            return self.of(kind, namespace, path)
        if kind in _NAMED:
            self._named.setdefault(_full_name(schema, namespace), (schema, namespace))
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return Shape(pa.decimal128(schema["precision"], schema.get("scale", 0)), _untupled)
        if schema == JSON_TEXT:
            self.is_direct = False
            return Shape(pa.string(), json_text)
        if logical in _LOGICAL:
            return Shape(_LOGICAL[logical], _same)
        if logical == "uuid":
            self.is_direct = False
            return Shape(pa.string(), lambda value: str(_untupled(value)))
        if kind in ("record", "error"):
            return self._record(schema, namespace, path)
        if kind == "enum":
            return Shape(pa.string(), _untupled)
        if kind == "fixed":
            return Shape(pa.binary(), _untupled)
        if kind == "array":
            item = self.of(schema["items"], namespace, path)
            return Shape(pa.list_(item.kind), lambda value: [item.optional(one) for one in value])
        if kind == "map":
            one = self.of(schema["values"], namespace, path)
            return Shape(
                pa.map_(pa.string(), one.kind),
                lambda value: [(name, one.optional(cell)) for name, cell in value.items()],
            )
        return self.of(kind, namespace, path)

    def _definition(self, name: str, namespace: str) -> tuple[Any, str]:
        full = name if "." in name or not namespace else f"{namespace}.{name}"
        return self._named[full] if full in self._named else self._named[name]

    def _record(self, schema: Any, namespace: str, path: _Path) -> Shape:
        name = _full_name(schema, namespace)
        if self._limits.is_reached(name, path):
            self.is_direct = False
            return Shape(pa.string(), json_text)
        self._limits.count(len(schema["fields"]), len(path))
        inner = name.rpartition(".")[0]
        found = [(one["name"], self.of(one["type"], inner, (*path, name))) for one in schema["fields"]]

        def convert(value: Any) -> dict[str, Any]:
            record = _untupled(value)
            return {name: shape.optional(record.get(name)) for name, shape in found}

        return Shape(pa.struct([pa.field(name, shape.kind) for name, shape in found]), convert)

    def _union(self, union: list[Any], namespace: str, path: _Path) -> Shape:
        others = [one for one in union if one != "null" and one != {"type": "null"}]
        if not others:
            return Shape(pa.null(), lambda _: None)
        if len(others) == 1:
            return self.of(others[0], namespace, path)
        plain = [one["type"] if isinstance(one, dict) and "logicalType" not in one else one for one in others]
        for pair in _LARGER:
            if len(plain) == 2 and all(isinstance(one, str) for one in plain) and set(plain) == pair:
                return self.of(max(pair) if "long" in pair else "double", namespace, path)
        self.is_direct = False
        self._limits.count(len(others), len(path))
        members = [self._member(one, namespace, path) for one in others]
        kind = pa.struct([pa.field(f"member{place}", one.shape.kind) for place, one in enumerate(members)])
        return Shape(kind, lambda value: _of_member(members, value))

    def _member(self, schema: Any, namespace: str, path: _Path) -> _Member:
        shape = self.of(schema, namespace, path)
        if isinstance(schema, str) and schema not in _PRIMITIVES:
            schema, namespace = self._definition(schema, namespace)
        while isinstance(schema, dict) and isinstance(schema["type"], dict):
            schema = schema["type"]
        kind = schema if isinstance(schema, str) else schema["type"]
        name = _full_name(schema, namespace) if kind in _NAMED else ""
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        fits = _fitting(kind, logical, schema)
        if kind in _NAMED:
            return _Member(name, shape, lambda _: False, fits)  # what was written as one in a union has its name
        exact = _EXACT.get(kind) if logical is None else None
        return _Member(name, shape, fits if exact is None else lambda value: type(value) is exact, fits)


def _of_member(members: list[_Member], value: Any) -> dict[str, Any]:
    """Return the struct of a union's value: the member of the type that it has, and nulls."""
    name = value[0] if type(value) is tuple else None
    inner = _untupled(value)
    tests: Iterable[Callable[[_Member], bool]] = (
        lambda one: one.name == name,
        lambda one: one.is_exact(inner),
        lambda one: one.fits(inner),
    )
    for is_meant in tests:
        for place, one in enumerate(members):
            if is_meant(one):
                return {f"member{place}": one.shape.convert(inner)}
    raise TypeError(f"{type(inner).__name__} is no type of the union")


def _fitting(kind: str, logical: str | None, schema: Any) -> Callable[[Any], bool]:
    """Return the test whether a value, of Avro or of JSON, may be of a type."""
    if logical in _PYTHON_TYPES:
        types = (_PYTHON_TYPES[logical], *((int,) if kind in ("int", "long") else ()))
        return lambda value: type(value) in types
    if kind in ("record", "error"):
        names = {one["name"] for one in schema["fields"]}
        needed = {one["name"] for one in schema["fields"] if "default" not in one and not _may_be_null(one["type"])}
        return lambda value: isinstance(value, dict) and needed <= set(value) <= names
    if kind == "enum":
        return lambda value: isinstance(value, str) and value in schema["symbols"]
    return _FITTING[kind]


_PYTHON_TYPES: Mapping[str | None, type] = {
    "date": date,
    "time-millis": time,
    "time-micros": time,
    **dict.fromkeys([one for one in _LOGICAL if "timestamp" in one], datetime),
    "decimal": Decimal,
    "uuid": UUID,
}
_FITTING: Mapping[str, Callable[[Any], bool]] = {
    "boolean": lambda value: isinstance(value, bool),
    "int": lambda value: type(value) is int and -_INT_MAX - 1 <= value <= _INT_MAX,
    "long": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda value: isinstance(value, float) or type(value) is int,
    "double": lambda value: isinstance(value, float) or type(value) is int,
    "bytes": lambda value: isinstance(value, bytes | str),
    "fixed": lambda value: isinstance(value, bytes | str),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list),
    "map": lambda value: isinstance(value, dict),
}


_EXACT: Mapping[str, type] = {"long": _Long, "float": float, "double": _Double, "bytes": bytes}


def _may_be_null(schema: Any) -> bool:
    return schema == "null" or (isinstance(schema, list) and "null" in schema)


def _full_name(schema: Mapping[str, Any], namespace: str) -> str:
    name: str = schema["name"]
    if "." in name:
        return name
    own = schema.get("namespace", namespace)
    return f"{own}.{name}" if own else name


def _untupled(value: Any) -> Any:
    """Return a value without the name of its type, which it has if it was written in a union."""
    return value[1] if type(value) is tuple else value


def _same(value: Any) -> Any:
    return value


def direct_fields(definition: bytes) -> Iterator[tuple[str, pa.DataType]]:
    """Yield the names and types of a record's fields whose values need no conversion."""
    fields = json.loads(definition)["fields"]
    shapes = _Shapes(ShapeLimits(RECURSION_DEPTH))
    named = _full_name(json.loads(definition), "")
    shapes._named[named] = (json.loads(definition), "")
    for one in fields:
        shapes.is_direct = True
        shape = shapes.of(one["type"], named.rpartition(".")[0], (named,))
        if shapes.is_direct:
            yield one["name"], shape.kind
