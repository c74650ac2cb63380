"""Values with a schema: every kind comes back, is registered, is refused where it does not fit, and evolves."""

from __future__ import annotations

import builtins
import dataclasses
import datetime
import enum
import io
import json
import math
import pickle
import re
import types
from decimal import Decimal
from typing import Any, Literal, Optional

import fastavro
import numpy as np
import pulsar
import pyarrow as pa
import pytest
from pydantic import BaseModel, ConfigDict, Field

import heliograph
from heliograph.base.errors import BadRequestError, IncompatibleSchemaError, ProtocolError, ResourceError
from heliograph.client.schemas.choice import schema_of
from heliograph.client.schemas.models import ModelSchema
from heliograph.client.schemas.records import AvroSchema, JsonSchema

SECONDS = 60
SALE = {"type": "record", "name": "Sale", "fields": [{"name": "row", "type": "long"}]}
SHOP = {"name": "shop", "type": "string", "default": "?"}
WIDER = {"type": "record", "name": "Sale", "fields": [{"name": "row", "type": "long"}, SHOP]}
OTHER = {"type": "record", "name": "Sale", "fields": [{"name": "row", "type": {"type": "array", "items": "int"}}]}


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Place(BaseModel):
    city: str


class Order(BaseModel):
    number: int
    price: float
    note: str | None = None
    size: Size = Size.SMALL
    tags: list[str] = []
    counts: dict[str, int] = Field(default_factory=dict)
    at: datetime.datetime | None = None
    home: Place | None = None
    work: Place | None = None
    kind: Literal["a", "b"] = "a"
    named: str = Field(default="x", alias="the_name")


class WiderOrder(Order):
    shop: str = "unknown"


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0
    label: Optional[str] = "none"  # noqa: UP045 - both forms are users'


def there_and_back(client: heliograph.Client, topic: str, schema: Any, *values: Any) -> list[heliograph.Message]:
    with client.producer(topic, schema=schema) as producer:
        producer.send(values[0], key="k")
        producer.send_many(values[1:])
    with client.reader(topic, "earliest", schema=schema) as reader:
        return [reader.receive(SECONDS) for _ in values]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (bytes, [b"a", b"b"]),
        (str, ["ä", ""]),
        (dict, [{"a": [1, None]}, {}]),
        (JsonSchema(SALE), [{"row": 1}, {"row": 2}]),
        (AvroSchema(json.dumps(SALE)), [{"row": 1}, {"row": 2}]),
        (Order, [Order(number=1, price=2.5, at=datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)),
                 Order(number=2, price=0, size=Size.LARGE, home=Place(city="B"), the_name="n")]),
        (Point, [Point(1), Point(2, 0.5, None)]),
    ],
)  # fmt: skip
def test_values_come_back(client: heliograph.Client, request: Any, schema: Any, values: list[Any]) -> None:
    messages = there_and_back(client, f"values-{request.node.callspec.indices['schema']}", schema, *values, None)
    assert [message.value for message in messages[:-1]] == values
    assert messages[-1].value is None, "a null value"
    assert [each.value for each in pickle.loads(pickle.dumps(messages[:-1]))] == values
    is_registered = schema not in (bytes, dict)
    assert [message.schema_version for message in messages] == [0 if is_registered else None] * 3


def test_arrays_and_tables_come_back_and_name_their_format(client: heliograph.Client) -> None:
    arrays = [np.arange(6, dtype="<f4").reshape(2, 3), np.array(7), np.zeros((0, 3), dtype="int8")]
    messages = there_and_back(client, "arrays", np.ndarray, *arrays)
    for message, array in zip(messages, arrays, strict=True):
        np.testing.assert_array_equal(message.value, array)
        assert message.value.dtype == array.dtype
        assert message.properties == {"content-type": "application/x-npy"}
    table = pa.table({"a": [1, 2], "b": ["x", None]})
    empty = table.schema.empty_table()
    messages = there_and_back(client, "tables", pa.Table, table, empty)
    assert [message.value for message in messages] == [table, empty]
    assert messages[1].properties == {"content-type": "application/vnd.apache.arrow.stream"}
    batches = [table.to_batches()[0], pa.RecordBatch.from_pylist([], schema=table.schema)]
    assert [each.value for each in there_and_back(client, "batches", pa.RecordBatch, *batches)] == batches


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (str, b"bytes"),
        (str, "\ud800"),
        (dict, {1, 2}),
        (dict, float("nan")),
        (dict, {"a": (1, 2)}),
        (dict, {1: "a"}),
        (dict, {"a": 1 << 64, "b": {3}}),
        (AvroSchema(SALE), {"row": "text"}),
        (AvroSchema(SALE), {"row": 1, "shop": "no field"}),
        (Order, WiderOrder(number=1, price=1)),
        (Order, Point(1)),
        (Order, Order.model_construct(number="text", price=1.0)),
        (np.ndarray, [1]),
        (np.ndarray, np.array([object()])),
        (pa.Table, pa.table({"a": [1]}).to_batches()[0]),
    ],
)
def test_a_value_that_does_not_fit_is_refused_before_it_is_sent(
    client: heliograph.Client, request: Any, schema: Any, value: Any
) -> None:
    topic = f"unfit-{request.node.callspec.indices['schema']}"
    with client.producer(topic, schema=schema) as producer:
        with pytest.raises(BadRequestError):
            producer.send(value)
        with pytest.raises(BadRequestError):
            producer.send_many([value])
        assert producer.last_sequence_id == -1


@pytest.mark.parametrize("given", [int, "text", list, 7, object()])
def test_what_is_no_schema_is_refused(client: heliograph.Client, given: Any) -> None:
    with pytest.raises(BadRequestError, match="is no schema"):
        client.producer("t", schema=given)


@pytest.mark.parametrize("definition", ["{", '"long"', {"type": "record"}, {"a": {1}}])
def test_a_definition_of_no_record_is_refused(definition: Any) -> None:
    with pytest.raises(BadRequestError):
        AvroSchema(definition)


def test_an_incompatible_schema_is_refused_when_a_handle_opens(client: heliograph.Client) -> None:
    with client.producer("guarded", schema=AvroSchema(SALE)) as producer:
        producer.send({"row": 1})
    with pytest.raises(IncompatibleSchemaError), client.producer("guarded", schema=AvroSchema(OTHER)) as producer:
        producer.send({"row": [1]})
    with pytest.raises(IncompatibleSchemaError):
        client.consumer("guarded", "s", schema=JsonSchema(SALE))
    with pytest.raises(IncompatibleSchemaError):
        client.reader("guarded", schema=Point)


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_each_message_is_decoded_by_its_own_version(client: heliograph.Client, kind: Any) -> None:
    topic = f"evolving-{kind.__name__}"
    client.producer(topic, schema=kind(SALE)).send({"row": 1})
    client.producer(topic, schema=kind(WIDER)).send({"row": 2, "shop": "s"})
    shown = []
    for definition in (SALE, WIDER):
        with client.reader(topic, "earliest", schema=kind(definition)) as reader:
            messages = [reader.receive(SECONDS) for _ in range(2)]
        assert [message.schema_version for message in messages] == [0, 1]
        shown.append([message.value for message in messages])
    if kind is AvroSchema:
        assert shown == [[{"row": 1}, {"row": 2}], [{"row": 1, "shop": "?"}, {"row": 2, "shop": "s"}]]


def test_models_evolve_by_defaults(client: heliograph.Client) -> None:
    client.producer("models", schema=Order).send(Order(number=1, price=1))
    client.producer("models", schema=WiderOrder).send(WiderOrder(number=2, price=2, shop="s"))
    with client.reader("models", "earliest", schema=WiderOrder) as reader:
        assert [reader.receive(SECONDS).value.shop for _ in range(2)] == ["unknown", "s"]
    with client.reader("models", "earliest", schema=Order) as reader:
        assert [reader.receive(SECONDS).value.number for _ in range(2)] == [1, 2]


def test_a_payload_that_does_not_fit_fails_only_its_own_value(client: heliograph.Client) -> None:
    client.producer("mixed", schema=Point).open()
    with client.producer("mixed") as raw:
        raw.send_many([b"{", b'{"x": 1}', b"\x93NUMPY"])
    with client.consumer("mixed", "s", initial_position="earliest", schema=Point) as consumer:
        messages = consumer.receive_many(3, SECONDS)
        with pytest.raises(ProtocolError):
            _ = messages[0].value
        with pytest.raises(ProtocolError):
            _ = pickle.loads(pickle.dumps(messages[0])).value
        assert messages[0].data == b"{"
        assert messages[1].value == Point(1)
        consumer.ack_many(messages)
    client.producer("mixed", schema=Point).send(Point(2))
    with client.reader("mixed", "earliest", schema=np.ndarray) as reader, pytest.raises(ProtocolError):
        _ = reader.receive(SECONDS).value


def test_a_pickled_array_is_not_loaded() -> None:
    out = io.BytesIO()
    np.save(out, np.array([object()]), allow_pickle=True)
    found = schema_of(np.ndarray)
    assert found is not None
    with pytest.raises(ProtocolError):
        found.decoder(None)(out.getvalue())


def test_handles_with_a_schema_are_picklable(client: heliograph.Client) -> None:
    schemas: list[Any] = [str, dict, Order, Point, AvroSchema(SALE), JsonSchema(SALE), np.ndarray]
    for at, schema in enumerate(schemas):
        handles: Any = client.producer(f"p{at}", schema=schema), client.reader(f"p{at}", schema=schema)
        for one, copy in zip(handles, pickle.loads(pickle.dumps(handles)), strict=True):
            assert copy.options == one.options


def test_models_are_avro_records_to_the_registry() -> None:
    parsed = json.loads(ModelSchema(Order).info.data)
    fastavro.parse_schema(parsed)
    fields = {field.pop("name"): field for field in parsed["fields"]}
    place = {"type": "record", "name": "Place", "fields": [{"name": "city", "type": "string"}]}
    assert fields == {
        "number": {"type": "long"},
        "price": {"type": "double"},
        "note": {"type": ["null", "string"], "default": None},
        "size": {"type": "string", "default": "small"},
        "tags": {"type": {"type": "array", "items": "string"}, "default": []},
        "counts": {"type": {"type": "map", "values": "long"}, "default": {}},
        "at": {"type": ["null", "string"], "default": None},
        "home": {"type": ["null", place], "default": None},
        "work": {"type": ["null", "Place"], "default": None},
        "kind": {"type": "string", "default": "a"},
        "the_name": {"type": "string", "default": "x"},
    }
    assert json.loads(ModelSchema(Point).info.data)["fields"] == [
        {"name": "x", "type": "long"},
        {"name": "y", "type": "double", "default": 0.0},
        {"name": "label", "type": ["string", "null"], "default": "none"},
    ]


class Row(BaseModel):
    when: datetime.date = datetime.date(2026, 1, 2)
    cost: Decimal = Decimal("1.5")
    tags: list[str] = Field(default_factory=lambda: ["a", "b"])
    codes: set[int] = {7}
    raw: bytes = b"text"
    home: Place = Place(city="B")
    made: datetime.datetime = Field(default_factory=lambda: datetime.datetime.now(datetime.UTC))
    either: int | str = "none"


def test_defaults_stand_in_the_definition_as_values_stand_in_json() -> None:
    fields = {field["name"]: field for field in json.loads(ModelSchema(Row).info.data)["fields"]}
    assert {name: field["default"] for name, field in fields.items() if "default" in field} == {
        "when": "2026-01-02",
        "cost": "1.5",
        "tags": ["a", "b"],
        "codes": [7],
        "raw": "text",
        "home": {"city": "B"},
        "either": "none",
        "made": None,  # another one each time
    }
    assert fields["made"]["type"] == ["null", "string"]
    assert fields["either"]["type"] == ["string", "long"], "a default of a union is of its first type"
    fastavro.parse_schema(json.loads(ModelSchema(Row).info.data))


class Loss(BaseModel):
    value: float = 0
    many: list[float | None] = []
    exact: Decimal = Decimal(0)


class Lenient(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    value: float


@dataclasses.dataclass
class Nested:
    inside: dict[str, Loss]


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Loss(value=math.nan), "value"),
        (Loss(value=-math.inf), "value"),
        (Loss(many=[1.0, None, math.nan]), "many[2]"),
        (Loss.model_construct(value=0.0, many=[], exact=Decimal("NaN")), "exact"),
        (Nested({"a": Loss(value=math.inf)}), "inside['a'].value"),
    ],
)
def test_numbers_that_json_does_not_have_are_refused_by_the_name_of_their_field(value: Any, path: str) -> None:
    with pytest.raises(BadRequestError, match=re.escape(f"{path} is not finite")):
        ModelSchema(type(value)).encode(value)


def test_a_class_that_writes_infinity_as_it_reads_it_keeps_it(client: heliograph.Client) -> None:
    client.producer("lenient", schema=Lenient).send(Lenient(value=math.inf))
    with client.reader("lenient", "earliest", schema=Lenient) as reader:
        assert reader.receive(SECONDS).value == Lenient(value=math.inf)


def test_a_class_that_no_record_describes_is_refused() -> None:
    @dataclasses.dataclass
    class Odd:
        function: types.FunctionType

    with pytest.raises(BadRequestError):
        schema_of(Odd)


def test_stock_clients_read_and_write_the_same(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    class Their(pulsar.schema.Record):  # type: ignore[misc]
        x = pulsar.schema.Integer()
        y = pulsar.schema.Double()

    client.producer("stock-schema", schema=Point).send(Point(3, 0.5))
    stock = pulsar.Client(cluster.service_url)
    try:
        raw = stock.create_reader("stock-schema", pulsar.MessageId.earliest)
        assert json.loads(raw.read_next(SECONDS * 1000).data()) == {"x": 3, "y": 0.5, "label": "none"}
        theirs = stock.create_producer("stock-theirs", schema=pulsar.schema.JsonSchema(Their))
        theirs.send(Their(x=1, y=2.0))
    finally:
        stock.close()
    with client.reader("stock-theirs", "earliest", schema=dict) as reader:
        assert reader.receive(SECONDS).value == {"x": 1, "y": 2.0}


@pytest.mark.parametrize(
    ("package", "use"),
    [
        ("fastavro", lambda: AvroSchema(SALE)),
        ("numpy", lambda: schema_of(np.ndarray).encode(np.zeros(1))),  # type: ignore[union-attr]
        ("pyarrow", lambda: schema_of(pa.Table).decoder(None)),  # type: ignore[union-attr]
    ],
)
def test_a_package_that_lacks_names_its_extra(monkeypatch: pytest.MonkeyPatch, package: str, use: Any) -> None:
    real = builtins.__import__

    def missing(name: str, *rest: Any) -> Any:
        if name == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ResourceError, match=rf"needs {package}: pip install 'heliograph-ray\[spark\]'"):
        use()
