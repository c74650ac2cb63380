"""Values of Avro as JSON for WebSockets: definitions that do not bound a value by its bytes are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.base.errors import HeliographError, UnsupportedError
from heliograph.client.schemas.avro_bounds import DEPTH_MAX
from heliograph.client.schemas.records import AvroSchema
from heliograph.gateway.shapes.avro_text import DEFINITION_BYTES_MAX, VALUE_BYTES_MAX, avro_text


def record(name: str, *types: Any, namespace: str | None = None) -> dict[str, Any]:
    fields = [{"name": f"f{number}", "type": kind} for number, kind in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields} | ({} if namespace is None else {"namespace": namespace})


def chained(count: int) -> dict[str, Any]:
    """Return a record whose fields are records, each of which has the one before it."""
    return record("R", record("R0", "int"), *[record(f"R{n}", f"R{n - 1}") for n in range(1, count)])


@pytest.mark.parametrize(
    "definition",
    [
        record("R", ["null", "R"]),  # a byte a level: the library would end the process
        record("R", ["null", record("S", {"type": "array", "items": "R"})]),
        record("R", ["null", "a.R"], namespace="a"),
        record("R", {"type": "map", "values": "a.R"}, namespace="a"),
        record("R", {"type": "array", "items": "null"}),  # any number of items in ten bytes
        record("R", {"type": "array", "items": record("S")}),
        record("R", {"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        chained(DEPTH_MAX + 2),
        record("R", *["int"] * (DEFINITION_BYTES_MAX // 20)),
    ],
)
def test_a_definition_that_bounds_no_value_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError) as refused:
        avro_text(json.dumps(definition).encode(), "valueSchema")
    assert refused.value.field == "valueSchema"


def test_named_types_may_occur_again() -> None:
    place = record("Place", "string", namespace="a.b")
    definition = record("R", place, ["null", "a.b.Place"], {"type": "array", "items": "a.b.Place"})
    value: dict[str, Any] = {"f0": {"f0": "é"}, "f1": {"f0": "x"}, "f2": [{"f0": ""}]}
    packed = AvroSchema(definition).encode(value)
    assert json.loads(avro_text(json.dumps(definition).encode(), "valueSchema")(packed)) == value


def test_a_value_that_would_be_too_much_is_an_error() -> None:
    for definition, packed in (
        (record("R", "bytes"), b"\x02a"),  # JSON has no bytes
        (record("R", "double"), b"\x00\x00\x00\x00\x00\x00\xf8\x7f"),  # nor NaN
        (record("R", "string"), b"\x7f"),
        (record("R", "string"), b"\x00" * (VALUE_BYTES_MAX + 1)),
        (record("R", {"type": "enum", "name": "E", "symbols": ["A" * 60_000]}), b"\x00" * 2_000),
    ):
        with pytest.raises(HeliographError):
            avro_text(json.dumps(definition).encode(), "valueSchema")(packed)
