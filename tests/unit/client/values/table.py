"""What each type of value is in JSON, in Avro, over REST and in a table: the tables of it in docs/python.md.

``python -m tests.unit.client.values.table`` writes them. ``test_table.py`` here and ``test_values.py`` beside the other
tests with a cluster hold them to what producers, readers, REST and tables do.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from heliograph.client.schemas.models import ModelSchema
from heliograph.client.schemas.records import AvroSchema
from heliograph.pipelines.reading.shapes.values import arrow_type
from tests.unit.client.values.strategies import Colour

PAGE = Path(__file__).resolve().parents[4] / "docs" / "python.md"
BEGIN, END = "<!-- values: made by `make docs` -->\n", "<!-- end of values -->\n"


@dataclasses.dataclass
class Place:
    city: str


# The type of a field, as users write it, and a value of it.
MODEL_ROWS: Sequence[tuple[str, Any, Any]] = (
    ("`bool`", bool, True),
    ("`int`", int, -(1 << 63)),
    ("`float`", float, 0.1),
    ("`str`", str, "é"),
    ("`bytes`", bytes, b"text"),
    ("`datetime`", datetime, datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)),
    ("`date`", date, date(2026, 1, 2)),
    ("`time`", time, time(3, 4, 5, 678901)),
    ("`timedelta`", timedelta, timedelta(days=1, microseconds=1)),
    ("`Decimal`", Decimal, Decimal("1.50")),
    ("`UUID`", uuid.UUID, uuid.UUID(int=1)),
    ("`Path`", Path, Path("/a/b")),
    ("`Enum`", Colour, Colour.RED),
    ("`Literal['a', 2]`", Literal["a", 2], 2),
    ("`str \\| None`", str | None, None),
    ("`int \\| str`", int | str, "a"),
    ("`list[int]`, `set[int]`, `tuple[int, ...]`", list[int], [1, 2]),
    ("`tuple[int, str]`", tuple[int, str], (1, "a")),
    ("`dict[str, int]`", dict[str, int], {"a": 1}),
    ("`dict[int, str]`", dict[int, str], {7: "a"}),
    ("a model or dataclass", Place, Place("B")),
    ("`Any`", Any, {"a": [1, None]}),
    ("`dict`, `dict[str, Any]`", dict[str, Any], {"a": [1], "b": "x"}),
)


def _logical(kind: str, name: str, **more: int) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


# A definition, a value of it for an ``AvroSchema``, and the same in JSON as REST takes it; None: REST refuses it.
AVRO_ROWS: Sequence[tuple[Any, Any, Any]] = (
    ("boolean", True, True),
    ("int", -(1 << 31), -(1 << 31)),
    ("long", 1 << 62, 1 << 62),
    ("float", 0.5, 0.5),
    ("double", 0.1, 0.1),
    ("string", "é", "é"),
    ("bytes", b"\xff\x00", None),
    (["null", "string"], None, None),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "array", "items": "long"}, [1, 2], [1, 2]),
    ({"type": "map", "values": "long"}, {"a": 1}, {"a": 1}),
    ({"type": "record", "name": "P", "fields": [{"name": "y", "type": "long"}]}, {"y": 1}, {"y": 1}),
    (_logical("long", "timestamp-millis"), datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), 1767323045678),
    (_logical("long", "timestamp-micros"), datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), 1767323045678901),
    (_logical("int", "date"), date(2026, 1, 2), 20455),
    (_logical("int", "time-millis"), time(3, 4, 5, 678000), 11045678),
    (_logical("long", "time-micros"), time(3, 4, 5, 678901), 11045678901),
    (_logical("string", "uuid"), uuid.UUID(int=1), str(uuid.UUID(int=1))),
    (_logical("bytes", "decimal", precision=5, scale=2), Decimal("1.50"), None),
)


def model_of(kind: Any) -> Any:
    """Return a class with one field ``x`` of a type."""
    return dataclasses.make_dataclass("Row", [("x", kind)])


def record_of(form: Any) -> dict[str, Any]:
    """Return the definition of a record with one field ``x``."""
    return {"type": "record", "name": "Row", "fields": [{"name": "x", "type": form}]}


def column_of(schema: ModelSchema | AvroSchema) -> str:
    """Return the type that Spark gives to the column of ``x``."""
    from pyspark.sql.pandas.types import from_arrow_type

    kind = arrow_type(schema.info).field("x").type
    if pa.types.is_time(kind):
        return "int" if kind.bit_width == 32 else "bigint"  # milliseconds, microseconds
    return str(from_arrow_type(kind).simpleString())


def tables() -> str:
    """Return both tables."""
    lines = [
        "| a field of a model or dataclass | in JSON, which REST takes, too | in the definition | in Spark |",
        "|---|---|---|---|",
    ]
    for shown, kind, value in MODEL_ROWS:
        schema = ModelSchema(model_of(kind))
        form = json.loads(schema.info.data)["fields"][0]["type"]
        packed = json.loads(schema.encode(model_of_value(schema, value)))["x"]
        lines.append(f"| {shown} | {_code(packed)} | {_code(form)} | {_cell(column_of(schema))} |")
    lines += [
        "",
        "| a field of an `AvroSchema` | in Python | in JSON of REST and WebSockets, with `valueSchema` | in Spark |",
        "|---|---|---|---|",
    ]
    for form, value, sent in AVRO_ROWS:
        in_json = "refused: send the bytes of Avro" if sent is None and value is not None else _code(sent)
        lines.append(
            f"| {_code(form)} | {_cell(repr(value))} | {in_json} | {_cell(column_of(AvroSchema(record_of(form))))} |"
        )
    return "\n".join(lines) + "\n"


def model_of_value(schema: ModelSchema, value: Any) -> Any:
    """Return an instance of the schema's class with a value in ``x``."""
    return schema._model(x=value)


def _code(value: Any) -> str:
    return _cell(json.dumps(value, ensure_ascii=False))


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def page() -> str:
    """Return docs/python.md with the tables of now."""
    head, rest = PAGE.read_text().split(BEGIN)
    return f"{head}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
