"""Which Avro schemas read each other. The verdicts are those of the Java library's ``SchemaValidatorBuilder``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.actors.broker.schema.compatibility import check_compatible
from heliograph.base.errors import IncompatibleSchemaError
from heliograph.protocol.schema import SchemaInfo, SchemaType


def record(name: str, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def of(kind: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def enum(name: str, *symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols), **more}


def fixed(name: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size}


CHAIN = 1_200  # records
LIST = record("List", of(["null", "List"], "next", default=None))
LONG_LIST = record("List", of(["null", "List"], "next", default=None), of("long", "value"))

READABLE: list[tuple[Any, Any]] = [  # (reader, writer)
    (record("Order", of("string")), record("shop.Purchase", of("string"))),  # renamed
    (record("Outer", of(record("New", of("int")))), record("Outer", of(record("Old", of("int"))))),
    (record("R", of("int", "new", aliases=["old"])), record("R", of("int", "old"))),
    (record("R", of("int", "new", aliases=["old"]), aliases=["W"]), record("W", of("int", "old"))),
    (enum("x.E", "P", "Q"), enum("y.E", "Q")),
    (enum("E", "P"), enum("E", "P", "Q")),  # a symbol is lacking
    (enum("E", "P", aliases=["F"]), enum("F", "P")),
    (fixed("x.F", 3), fixed("y.F", 3)),
    (["null", record("New", of("int"))], record("Old", of("int"))),  # by structure
    (["null", "long"], "int"),
    ("string", ["string", "bytes"]),
    (["null", "string"], ["null", "string"]),
    ({"type": "array", "items": "double"}, {"type": "array", "items": "float"}),
    ({"type": "map", "values": "bytes"}, {"type": "map", "values": "string"}),
    (LIST, LONG_LIST),
]
UNREADABLE: list[tuple[Any, Any, str]] = [
    (record("R", of("int", "b")), record("R", of("int", "a")), "b was not written"),
    (record("R", of("int", "new", aliases=["old"])), record("W", of("int", "old")), "new was not written"),
    (LONG_LIST, LIST, "value was not written"),
    (enum("E", "P"), enum("F", "P"), "E cannot read F"),
    (fixed("F", 3), fixed("F", 4), "3 bytes cannot read 4"),
    (fixed("F", 3), fixed("G", 3), "F cannot read G"),
    ("int", "long", "int cannot read long"),
    ("string", ["null", "string"], "string cannot read null"),
    (["null", "string"], "int", "no type of the reader's union reads int"),
    (["null", enum("E", "P")], enum("F", "P"), "no type of the reader's union"),
    (record("R", of(record("S", of("int")))), record("R", of("string")), "at /a: record cannot read string"),
]


def check(reader: Any, writer: Any, strategy: str) -> None:
    new, old = (SchemaInfo(SchemaType.AVRO, json.dumps(one).encode()) for one in (reader, writer))
    check_compatible(new, [old], strategy)


@pytest.mark.parametrize(("reader", "writer"), READABLE)
def test_what_can_be_read_is_allowed_in_either_direction(reader: Any, writer: Any) -> None:
    check(reader, writer, "BACKWARD")
    check(writer, reader, "FORWARD")


@pytest.mark.parametrize(("reader", "writer", "why"), UNREADABLE)
def test_what_cannot_be_read_is_refused_with_the_place(reader: Any, writer: Any, why: str) -> None:
    with pytest.raises(IncompatibleSchemaError, match=why):
        check(reader, writer, "BACKWARD")
    with pytest.raises(IncompatibleSchemaError, match=why):
        check(writer, reader, "FORWARD")


def chained(names: str, **more: Any) -> dict[str, Any]:
    """Return a record whose field "top" is the last of many records, each of which has the one before as a field."""
    links = [of(record(f"{names}0", of("int")), f"{names}0", **more)]
    links += [
        of(record(f"{names}{number}", of(f"{names}{number - 1}")), f"{names}{number}", **more)
        for number in range(1, CHAIN)
    ]
    return record("Top", *links, of(f"{names}{CHAIN - 1}", "top"))


def test_long_chains_of_references_are_refused() -> None:
    with pytest.raises(IncompatibleSchemaError, match="too deeply"):
        check(chained("R", default={}), chained("W"), "BACKWARD")


def test_names_of_nested_java_classes_are_valid() -> None:
    check(record("com.shop.Outer$Inner", of("int")), record("com.shop.Outer$Inner", of("int")), "FULL")
