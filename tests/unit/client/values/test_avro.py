"""Records of Avro: generated definitions, values and evolutions, and what the stock client makes of them."""

from __future__ import annotations

import datetime
import json
import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from typing import Any

import numpy
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.schema.compatibility import check_compatible
from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.client.schemas.avro_bounds import value_check
from heliograph.client.schemas.records import AvroSchema
from heliograph.pipelines.reading.shapes.values import arrow_type, cells_of
from tests.examples import examples
from tests.unit.client.values.strategies import FINITE, LONGS, are_equal

EXAMPLES = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
_numbers = count()
_UNITS = ("millis", "micros")
MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=datetime.UTC)
_Kind = tuple[Any, st.SearchStrategy[Any]]  # a definition, and values of it

MOMENTS = st.datetimes(
    min_value=datetime.datetime(1700, 1, 1), max_value=datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)
)
LEAVES: tuple[_Kind, ...] = (
    ("boolean", st.booleans()),
    ("int", st.integers(-(1 << 31), (1 << 31) - 1)),
    ("long", LONGS),
    ("float", st.floats(width=32, allow_nan=False)),
    ("double", st.floats(allow_nan=False) | FINITE),
    ("string", st.text(max_size=10)),
    ("bytes", st.binary(max_size=10)),
    ({"type": "long", "logicalType": "timestamp-micros"}, MOMENTS),
    ({"type": "long", "logicalType": "timestamp-millis"}, MOMENTS.map(lambda at: at.replace(microsecond=5_000))),
    ({"type": "long", "logicalType": "local-timestamp-micros"}, MOMENTS.map(lambda at: at.replace(tzinfo=None))),
    ({"type": "int", "logicalType": "date"}, st.dates()),
    ({"type": "long", "logicalType": "time-micros"}, st.times()),
    ({"type": "string", "logicalType": "uuid"}, st.uuids()),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2},
        st.decimals(-(10**9), 10**9, places=2).map(lambda value: value.quantize(Decimal("0.01"))),
    ),
)


def _wider(inner: st.SearchStrategy[_Kind]) -> st.SearchStrategy[_Kind]:
    return st.one_of(
        inner.map(lambda kind: ({"type": "array", "items": kind[0]}, st.lists(kind[1], max_size=3))),
        inner.map(
            lambda kind: ({"type": "map", "values": kind[0]}, st.dictionaries(st.text(max_size=3), kind[1], max_size=3))
        ),
        records(inner),
    )


@st.composite
def records(draw: Callable[[Any], Any], fields: st.SearchStrategy[_Kind]) -> _Kind:
    """Return definitions of records, some of whose fields may be null, and their values."""
    described, values = [], {}
    for number, (form, each) in enumerate(draw(st.lists(fields, min_size=1, max_size=4))):
        is_optional = draw(st.booleans())
        described.append({"name": f"f{number}", "type": ["null", form] if is_optional else form})
        values[f"f{number}"] = st.none() | each if is_optional else each
    name = f"Made{next(_numbers)}"
    return {"type": "record", "name": name, "fields": described}, st.fixed_dictionaries(values)


KINDS = records(st.recursive(st.sampled_from(LEAVES), _wider, max_leaves=4))


@EXAMPLES
@given(KINDS, st.data())
def test_values_come_back_as_they_were(kind: _Kind, data: st.DataObject) -> None:
    schema, value = AvroSchema(kind[0]), data.draw(kind[1])
    read = schema.decoder(schema.info)(schema.encode(value))
    assert read == value
    assert {name: type(part) for name, part in read.items()} == {name: type(part) for name, part in value.items()}


@pytest.mark.filterwarnings("error")  # the broker's library warns of what it ignores
@EXAMPLES
@given(KINDS, st.sampled_from(LEAVES), st.data())
def test_fields_with_a_default_may_be_added(kind: _Kind, added: _Kind, data: st.DataObject) -> None:
    more = {"name": "more", "type": ["null", added[0]], "default": None}
    old, new = AvroSchema(kind[0]), AvroSchema({**kind[0], "fields": [*kind[0]["fields"], more]})
    check_compatible(new.info, [old.info], "FULL_TRANSITIVE")
    value = data.draw(kind[1])
    assert new.decoder(old.info)(old.encode(value)) == {**value, "more": None}
    assert old.decoder(new.info)(new.encode({**value, "more": data.draw(added[1])})) == value


# Types whose values Avro may hold as others, or not at all.
_TIMES = st.datetimes(
    timezones=st.none() | st.sampled_from([datetime.UTC, datetime.timezone(datetime.timedelta(hours=2))])
)
DOUBTFUL: tuple[_Kind, ...] = (
    ("float", st.floats() | st.integers()),
    ("double", st.floats() | st.integers() | st.decimals()),
    ("int", st.integers() | st.floats() | st.booleans()),
    ("long", st.integers() | st.floats() | st.decimals()),
    ("boolean", st.booleans() | st.integers() | st.text(max_size=2)),
    ("string", st.text(st.characters(codec=None), max_size=3) | st.binary(max_size=3)),
    *(
        ({"type": "long", "logicalType": f"{zone}timestamp-{unit}"}, _TIMES)
        for zone in ("", "local-")
        for unit in _UNITS
    ),
    ({"type": "int", "logicalType": "time-millis"}, st.times()),
    ({"type": "long", "logicalType": "time-micros"}, st.times(timezones=st.none() | st.just(datetime.UTC))),
    ({"type": "int", "logicalType": "date"}, st.dates() | _TIMES),
    ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, st.decimals(-10_000, 10_000)),
)
# What is taken as Avro stores it is another value in Python: it is refused only where no reader can read it.
STORED: tuple[_Kind, ...] = (
    ({"type": "string", "logicalType": "uuid"}, st.uuids().map(str) | st.text(max_size=3)),
    ({"type": "long", "logicalType": "timestamp-micros"}, LONGS),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, LONGS),
    ({"type": "int", "logicalType": "time-millis"}, st.integers(-1, 90_000_000)),
    ({"type": "int", "logicalType": "date"}, st.integers(-(1 << 33), 1 << 33)),
)


def taken(schema: AvroSchema, value: Any) -> bytes | None:
    """Return the payload of a value; None for one that is refused, by the name of its field."""
    try:
        return schema.encode(value)
    except BadRequestError as error:
        reason = str(error)
    assert re.search(r"\bf[0-9]\b", reason)
    return None


@EXAMPLES
@given(records(st.recursive(st.sampled_from(DOUBTFUL), _wider, max_leaves=3)), st.data())
def test_a_value_is_read_back_equal_or_refused_by_its_field(kind: _Kind, data: st.DataObject) -> None:
    schema, value = AvroSchema(kind[0]), data.draw(kind[1])
    packed = taken(schema, value)
    assert packed is None or are_equal(schema.decoder(schema.info)(packed), value)


@EXAMPLES
@given(records(st.sampled_from(STORED)), st.data())
def test_what_is_given_as_stored_can_be_read_or_is_refused_by_its_field(kind: _Kind, data: st.DataObject) -> None:
    schema, value = AvroSchema(kind[0]), data.draw(kind[1])
    packed = taken(schema, value)
    assert packed is None or schema.encode(schema.decoder(schema.info)(packed)) == packed


@pytest.mark.parametrize(
    ("form", "value", "shown"),
    [
        ("float", 0.1, "x is read back as 0.10000000149011612"),
        ("int", 1 << 31, "x is read back as more than 32 bits"),  # other languages cannot read it
        ("int", 1.5, "x is read back as 1"),
        ({"type": "array", "items": "float"}, [0.5, 1e300], "x[1] is read back as inf"),
        ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, "x is read back as datetime.datetime("),
        ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT.replace(tzinfo=None), "x is read back as"),
        ({"type": "int", "logicalType": "time-millis"}, MOMENT.time(), "x is read back as datetime.time("),
        ({"type": "string", "logicalType": "uuid"}, "no uuid", "x: "),
        ({"type": "bytes", "logicalType": "decimal", "precision": 5, "scale": 2}, Decimal("1.505"), "x: "),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", "x: "),
    ],
)
def test_a_refusal_says_which_field_and_why(form: Any, value: Any, shown: str) -> None:
    schema = AvroSchema({"type": "record", "name": "R", "fields": [{"name": "x", "type": form}]})
    with pytest.raises(BadRequestError) as refused:
        schema.encode({"x": value})
    assert shown in str(refused.value)


def test_arrays_of_numpy_are_taken() -> None:
    schema = AvroSchema(
        {"type": "record", "name": "R", "fields": [{"name": "x", "type": {"type": "array", "items": "int"}}]}
    )
    assert schema.decoder(None)(schema.encode({"x": numpy.array([1, 2])})) == {"x": [1, 2]}


@EXAMPLES
@given(KINDS, st.data())
def test_a_name_that_is_no_field_is_refused(kind: _Kind, data: st.DataObject) -> None:
    with pytest.raises(BadRequestError, match="typo"):
        AvroSchema(kind[0]).encode({**data.draw(kind[1]), "typo": 1})


def test_forms_of_unions_are_taken() -> None:
    two = [{"type": "record", "name": name, "fields": [{"name": "x", "type": "long"}]} for name in ("A", "B")]
    schema = AvroSchema({"type": "record", "name": "R", "fields": [{"name": "u", "type": two}]})
    for value in ({"u": ("B", {"x": 1})}, {"u": {"-type": "B", "x": 1}}):
        assert json.loads(json.dumps(schema.decoder(None)(schema.encode(value)))) == {"u": {"x": 1}}


@EXAMPLES
@given(KINDS, st.data())
def test_a_table_holds_every_value(kind: _Kind, data: st.DataObject) -> None:
    schema, value = AvroSchema(kind[0]), data.draw(kind[1])
    cell = cells_of(schema.info, schema.info)(schema.encode(value))
    (row,) = pa.array([cell], arrow_type(schema.info)).to_pylist(maps_as_pydicts="strict")
    assert are_equal(row, without_uuids(value))


def without_uuids(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_uuids(each) for name, each in value.items()}
    if isinstance(value, list):
        return [without_uuids(each) for each in value]
    return str(value) if isinstance(value, uuid.UUID) else value


NODE = {"type": "record", "name": "Node", "namespace": "a", "fields": [{"name": "next", "type": ["null", "Node"]}]}
MANY = b"\xfe" + b"\xff" * 8 + b"\x01"  # 2^63 - 1 in Avro
OTHER = {"type": "record", "name": "Other", "fields": [{"name": "n", "type": "int"}]}
TREE = {
    "type": "record",
    "name": "Tree",
    "fields": [
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "other", "type": ["null", OTHER]},
        {"name": "others", "type": {"type": "array", "items": "Other"}},
        {"name": "names", "type": {"type": "map", "values": ["double", "float", "string", "Mark"]}},
        {"name": "below", "type": {"type": "array", "items": "Tree"}},
        {"name": "is_last", "type": "boolean"},
    ],
}


@pytest.mark.parametrize(
    ("definition", "packed"),
    [
        (NODE, b"\x02" * 1_000_000 + b"\x00"),  # a byte a level
        (NODE, b"\xff" * 1_000_000),
        ({**NODE, "fields": [{"name": "x", "type": {"type": "array", "items": "null"}}]}, MANY + b"\x00"),
    ],
)
def test_a_value_by_which_the_library_would_not_end_is_an_error(definition: Any, packed: bytes) -> None:
    schema = AvroSchema(definition)
    cells = cells_of(schema.info, schema.info)
    for read in (schema.decoder(None), cells):
        with pytest.raises(HeliographError):
            read(packed)


def test_values_in_values_of_their_own_type_are_read() -> None:
    node: Any = None
    for _ in range(150):
        node = {"next": node}
    leaf: dict[str, Any] = {
        "kind": "B",
        "mark": b"ab",
        "other": None,
        "others": [{"n": -70}],
        "names": {"x": 0.5, "y": "z"},
        "below": [],
        "is_last": True,
    }
    for definition, value in ((NODE, node), (TREE, {**leaf, "below": [leaf, {**leaf, "below": [leaf] * 50}]})):
        schema = AvroSchema(definition)
        packed = schema.encode(value)
        assert schema.decoder(None)(packed) == value
        assert value_check(schema.info.data) is not None
