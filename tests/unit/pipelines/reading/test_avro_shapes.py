"""Unions of several types and records in themselves as columns, beside Apache's own reader of Avro."""

from __future__ import annotations

import io
import json
import random
import struct
from typing import Any

import avro.io
import avro.schema
import fastavro
import pyarrow as pa
import pytest

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.pipelines.reading.registry import RegistryRead, TopicSchemas
from heliograph.pipelines.reading.shapes.avro import avro_reader, avro_shape
from heliograph.protocol.schema import SchemaInfo, SchemaType
from tests.unit.pipelines.reading.test_decoding import decoded, schema

SCHEMAS = 60
ROWS = 8
PLAIN = ("boolean", "int", "long", "float", "double", "bytes", "string")


class Made:
    """A random schema, with values of it whose place in each union is known."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0
        self.schema = self._record(0)

    def _name(self) -> str:
        self._names += 1
        return f"N{self._names}"

    def _record(self, depth: int) -> dict[str, Any]:
        fields = [{"name": f"f{one}", "type": self._type(depth + 1)} for one in range(self._random.randint(1, 4))]
        return {"type": "record", "name": self._name(), "namespace": "a.b", "fields": fields}

    def _type(self, depth: int) -> Any:
        kinds = [*PLAIN, "enum", "fixed", "union", "union"] + (["record", "array", "map", "union"] if depth < 4 else [])
        return self._of_kind(self._random.choice(kinds), depth)

    def _of_kind(self, kind: str, depth: int) -> Any:
        if kind == "union":
            kinds = self._random.sample([*PLAIN, "enum", "fixed", "null"], self._random.randint(1, 5))
            kinds += self._random.sample(["record", "record", "array", "map"], 2 if depth < 3 else 0)
            self._random.shuffle(kinds)
            return [one if one == "null" else self._of_kind(one, depth + 1) for one in kinds]
        if kind == "record":
            return self._record(depth)
        if kind == "enum":
            return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"]}
        if kind == "fixed":
            return {"type": "fixed", "name": self._name(), "size": 3}
        if kind == "array":
            return {"type": "array", "items": self._type(depth + 1)}
        if kind == "map":
            return {"type": "map", "values": self._type(depth + 1)}
        return kind

    def value(self, schema: Any) -> tuple[bytes, Any, Any]:
        """Return a value in Avro's bytes, as a cell, and as a reader without columns shows it."""
        draw = self._random
        if isinstance(schema, list):
            return self._of_union(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind == "record":
            found = [(one["name"], *self.value(one["type"])) for one in schema["fields"]]
            packed = b"".join(one[1] for one in found)
            return packed, {one[0]: one[2] for one in found}, {one[0]: one[3] for one in found}
        if kind in ("array", "map"):
            inner = schema["items" if kind == "array" else "values"]
            items = [self.value(inner) for _ in range(draw.randint(0, 3))]
            names = [f"k{place}" for place in range(len(items))]
            keys = [varint(len(name)) + name.encode() if kind == "map" else b"" for name in names]
            body = b"".join(key + one[0] for key, one in zip(keys, items, strict=True))
            packed = (varint(len(items)) + body if items else b"") + b"\x00"
            cells, plain = [one[1] for one in items], [one[2] for one in items]
            if kind == "array":
                return packed, cells, plain
            return packed, list(zip(names, cells, strict=True)), dict(zip(names, plain, strict=True))
        packed, value = self._plain(kind, schema)
        return packed, value, value

    def _of_union(self, union: list[Any]) -> tuple[bytes, Any, Any]:
        place = self._random.randrange(len(union))
        if union[place] == "null":
            return varint(place), None, None
        packed, cell, plain = self.value(union[place])
        others = [one for one in union if one != "null"]
        if len(others) > 1 and set(map(str, others)) not in ({"int", "long"}, {"float", "double"}):
            member = others.index(union[place])
            cell = {f"member{one}": cell if one == member else None for one in range(len(others))}
        return varint(place) + packed, cell, plain

    def _plain(self, kind: str, schema: Any) -> tuple[bytes, Any]:
        draw = self._random
        if kind == "null":
            return b"", None
        if kind == "boolean":
            truth = draw.random() < 0.5
            return bytes([truth]), truth
        if kind in ("int", "long"):
            number = draw.choice([0, 1, -1, draw.randint(-(1 << 31), (1 << 31) - 1)])
            return varint(number), number
        if kind in ("float", "double"):
            real = draw.choice([0.0, -1.5, 3.25])
            return struct.pack("<f" if kind == "float" else "<d", real), real
        if kind == "enum":
            return varint(1), "B"
        if kind == "fixed":
            return b"xyz", b"xyz"
        text = draw.choice(["", "A", "text \N{SNOWMAN}"]).encode()
        return varint(len(text)) + text, text if kind == "bytes" else text.decode()


def varint(number: int) -> bytes:
    """Return a number as Avro writes it."""
    left, out = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*out, left])


def read_by_apache(definition: str, packed: bytes) -> Any:
    reader = avro.io.DatumReader(avro.schema.parse(definition))
    return reader.read(avro.io.BinaryDecoder(io.BytesIO(packed)))


@pytest.mark.parametrize("seed", range(SCHEMAS))
def test_every_value_has_the_member_it_was_written_as(seed: int) -> None:
    made = Made(seed)
    definition = json.dumps(made.schema)
    shape = avro_shape(made.schema)
    read = avro_reader(definition.encode(), definition.encode(), shape)
    rows = [made.value(made.schema) for _ in range(ROWS)]
    for packed, _, plain in rows:
        assert read_by_apache(definition, packed) == plain
    array = pa.array([read(packed) for packed, _, _ in rows], shape.kind)
    assert array.to_pylist() == pa.array([cell for _, cell, _ in rows], shape.kind).to_pylist()
    assert array.to_pylist() == [cell for _, cell, _ in rows]


WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [{"name": "v", "type": ["null", "int", "long", "float", "double", "string"], "default": None}],
}


@pytest.mark.parametrize(
    ("written", "value", "member"),
    [("int", 5, 0), ("long", 5, 1), ("float", 1.5, 2), ("double", 1.5, 3), ("string", "x", 4), ("null", None, None)],
)
def test_a_field_that_became_a_union(written: str, value: Any, member: int | None) -> None:
    before = {"type": "record", "name": "Wide", "fields": [{"name": "v", "type": written}]}
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(before), {"v": value})
    versions = {0: schema(SchemaType.AVRO, before), 1: schema(SchemaType.AVRO, WIDE)}
    (row,) = decoded(versions, (0, out.getvalue()))
    wanted = None if member is None else {f"member{one}": value if one == member else None for one in range(5)}
    assert row["v"] == wanted


def test_a_union_that_became_a_field() -> None:
    after = {"type": "record", "name": "Wide", "fields": [{"name": "v", "type": "double"}]}
    versions = {0: schema(SchemaType.AVRO, WIDE), 1: schema(SchemaType.AVRO, after)}
    rows = [varint(2) + varint(7), varint(4) + struct.pack("<d", 1.5), varint(5) + varint(1) + b"x"]
    found = decoded(versions, *((0, one) for one in rows), on_unreadable="null")
    assert [row["v"] for row in found] == [7.0, 1.5, None]
    assert found[2]["__error"]
    assert found[2]["__badValue"] == rows[2]


TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "forest",
    "fields": [
        {"name": "row", "type": "long"},
        {"name": "left", "type": ["null", "Tree"], "default": None},
        {"name": "others", "type": {"type": "array", "items": "forest.Tree"}, "default": []},
        {"name": "raw", "type": ["null", "bytes"], "default": None},
    ],
}


def tree(row: int, left: Any = None, *others: Any) -> dict[str, Any]:
    return {"row": row, "left": left, "others": list(others), "raw": b"\xff"}


def test_a_record_in_itself_is_json_below_the_depth() -> None:
    value = tree(1, tree(2, tree(3)), tree(4, tree(5)))
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(TREE), value)
    info = schema(SchemaType.AVRO, TREE)
    (row,) = decoded({0: info}, (0, out.getvalue()))
    assert (row["row"], row["raw"]) == (1, b"\xff")
    left = {"row": 2, "left": {"row": 3, "left": None, "others": [], "raw": "/w=="}, "others": [], "raw": "/w=="}
    assert json.loads(row["left"]) == left
    assert [json.loads(one)["row"] for one in row["others"]] == [4]
    (row,) = decoded(TopicSchemas({0: info}, 2), (0, out.getvalue()))
    assert (row["left"]["row"], json.loads(row["left"]["left"])["row"]) == (2, 3)
    assert json.loads(row["others"][0]["left"])["row"] == 5
    text = json.dumps({"row": 1, "left": {"row": 2}}).encode()
    (row,) = decoded({0: schema(SchemaType.JSON, TREE)}, (0, text))
    assert (json.loads(row["left"]), row["others"]) == ({"row": 2}, None)


def test_values_of_json_in_unions() -> None:
    other = {"type": "record", "name": "Other", "fields": [{"name": "x", "type": "int"}]}
    fields = [
        {"name": "v", "type": ["null", "int", "long", "double", "string", other, {"type": "array", "items": "int"}]}
    ]
    info = schema(SchemaType.JSON, {"type": "record", "name": "R", "fields": fields})
    values = [1, 1 << 40, 1.5, "t", {"x": 3}, [1, 2], None, {"y": 1}]
    rows = decoded({0: info}, *((0, json.dumps({"v": one}).encode()) for one in values), on_unreadable="null")
    for place, (row, value) in enumerate(zip(rows[:6], values, strict=False)):
        assert row["v"] == {f"member{one}": value if one == place else None for one in range(6)}
    assert rows[6]["v"] is None
    assert rows[7]["__error"]


def test_bounds() -> None:
    with pytest.raises(BadRequestError, match="recursion_depth is 16"):
        RegistryRead.of(None, 16)
    names = [{"name": f"f{one}", "type": ["null", "Bush"], "default": None} for one in range(6)]
    bush = SchemaInfo(SchemaType.AVRO, json.dumps({"type": "record", "name": "Bush", "fields": names}).encode())
    assert TopicSchemas({0: bush}, 4).kind
    with pytest.raises(UnsupportedError, match="too many columns"):
        assert TopicSchemas({0: bush}, 15).kind
