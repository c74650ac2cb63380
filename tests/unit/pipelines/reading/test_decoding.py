"""Values as columns by the schemas of the registry: types, evolution, and values that do not fit."""

from __future__ import annotations

import base64
import io
import json
import pickle
import struct
from collections.abc import Mapping
from typing import Any

import fastavro
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message_factory import GetMessageClass

from heliograph.base.errors import NotFoundError, ProtocolError, UnsupportedError
from heliograph.pipelines.reading.columns import OnUnreadable, Rows
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.reading.registry import TopicSchemas, schemas_of
from heliograph.pipelines.reading.shapes.descriptors import native_message
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.entry import encode_entry
from heliograph.protocol.schema import SchemaInfo, SchemaType, version_bytes

TOPIC = "persistent://public/default/t"
OLD = {
    "type": "record",
    "name": "Sale",
    "fields": [{"name": "row", "type": "long"}, {"name": "gone", "type": "string"}],
}
NEW = {
    "type": "record",
    "name": "Sale",
    "fields": [
        {"name": "row", "type": "long"},
        {"name": "shop", "type": ["null", "string"], "default": None},
        {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        {"name": "sizes", "type": {"type": "map", "values": "int"}, "default": {}},
        {"name": "when", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}], "default": None},
    ],
}


def avro(definition: Mapping[str, Any], record: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(dict(definition)), record)
    return out.getvalue()


def schema(kind: SchemaType, definition: Any = None, **properties: str) -> SchemaInfo:
    data = b"" if definition is None else json.dumps(definition).encode()
    return SchemaInfo(kind, data, "s", properties)


def decoded(
    versions: Mapping[int, SchemaInfo] | TopicSchemas,
    *messages: tuple[int | None, bytes | None],
    on_unreadable: OnUnreadable = "fail",
    key: bytes | None = None,
) -> list[dict[str, Any]]:
    schemas = versions if isinstance(versions, TopicSchemas) else TopicSchemas(versions)
    decoder = ValueDecoder(pickle.loads(pickle.dumps(schemas)), ("value",), on_unreadable)
    rows = Rows(decoder.reads, on_unreadable)
    for entry_id, (version, value) in enumerate(messages):
        metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, null_value=value is None)
        if version is not None:
            metadata.schema_version = version_bytes(version)
        if key is not None:
            metadata.partition_key, metadata.partition_key_b64_encoded = base64.b64encode(key).decode(), True
        rows.add_entry(TOPIC, -1, 9, entry_id, encode_entry(metadata, value or b""))
    (batch,) = decoder.decoded([rows.take()])
    assert batch.schema == decoder.schema
    found: list[dict[str, Any]] = batch.to_pylist()
    return found


def test_avro_of_any_version_has_the_fields_of_the_newest() -> None:
    versions = {0: schema(SchemaType.AVRO, OLD), 3: schema(SchemaType.AVRO, NEW)}
    full = {"row": 2, "shop": "s", "tags": ["a"], "sizes": {"b": 1}, "when": None}
    first, second, third, fourth = decoded(
        versions, (0, avro(OLD, {"row": 1, "gone": "x"})), (3, avro(NEW, full)), (None, avro(NEW, full)), (3, None)
    )
    assert first == {"row": 1, "shop": None, "tags": [], "sizes": [], "when": None}
    assert second == third == {**full, "sizes": [("b", 1)]}
    assert set(fourth.values()) == {None}  # a tombstone


def test_json_has_the_fields_of_the_newest_version() -> None:
    versions = {0: schema(SchemaType.JSON, OLD), 1: schema(SchemaType.JSON, NEW)}
    first, second = decoded(versions, (0, b'{"row": 1, "gone": "x"}'), (1, b'{"row": 2, "shop": "s", "extra": 1}'))
    assert (first["row"], first["shop"], "gone" in first) == (1, None, False)
    assert (second["row"], second["shop"]) == (2, "s")


BAD: list[tuple[int | None, bytes]] = [
    (0, b"no json"),
    (0, b'{"row": "text"}'),
    (0, b"[]"),
    (7, b'{"row": 1}'),  # no such version
    (0, b"\xff\xfe"),
]


@pytest.mark.parametrize("bad", BAD)
def test_a_value_that_does_not_fit_is_refused_or_left_out_or_kept_beside_the_reason(bad: tuple[int, bytes]) -> None:
    versions = {0: schema(SchemaType.JSON, OLD)}
    good = (0, b'{"row": 1, "gone": "x"}')
    with pytest.raises((ProtocolError, NotFoundError)):
        decoded(versions, good, bad)
    assert [row["row"] for row in decoded(versions, good, bad, good, on_unreadable="skip")] == [1, 1]
    first, second, third = decoded(versions, good, bad, good, on_unreadable="null")
    assert first == third == {"row": 1, "gone": "x", "__error": None, "__badValue": None}
    assert (second["row"], second["__badValue"]) == (None, bad[1])
    assert second["__error"]


def test_a_truncated_avro_value_is_told() -> None:
    versions = {0: schema(SchemaType.AVRO, OLD)}
    (row,) = decoded(versions, (0, avro(OLD, {"row": 1, "gone": "text"})[:-2]), on_unreadable="null")
    assert row["__error"]


@pytest.mark.parametrize(
    ("kind", "stored", "value"),
    [
        (SchemaType.STRING, b"text", "text"),
        (SchemaType.BOOLEAN, b"\x01", True),
        (SchemaType.INT8, b"\xff", -1),
        (SchemaType.INT16, struct.pack(">h", -300), -300),
        (SchemaType.INT32, struct.pack(">i", 1 << 30), 1 << 30),
        (SchemaType.INT64, struct.pack(">q", -1), -1),
        (SchemaType.FLOAT, struct.pack(">f", 1.5), 1.5),
        (SchemaType.DOUBLE, struct.pack(">d", -2.25), -2.25),
    ],
)
def test_primitive_values(kind: SchemaType, stored: bytes, value: object) -> None:
    assert decoded({0: schema(kind)}, (0, stored)) == [{"value": value}]
    (bad,) = decoded(
        {0: schema(kind)}, (0, b"\xff" * 9 if kind is not SchemaType.BOOLEAN else b""), on_unreadable="null"
    )
    assert bad["__error"]


@pytest.mark.parametrize("is_inline", [True, False])
def test_pairs_of_key_and_value(is_inline: bool) -> None:
    value_schema = json.dumps(OLD).encode()
    data = struct.pack(">i", 0) + struct.pack(">i", len(value_schema)) + value_schema
    pair = SchemaInfo(
        SchemaType.KEY_VALUE,
        data,
        "pair",
        {
            "key.schema.type": "STRING",
            "value.schema.type": "AVRO",
            "kv.encoding.type": "INLINE" if is_inline else "SEPARATED",
        },
    )
    value = avro(OLD, {"row": 1, "gone": "x"})
    inline = struct.pack(">i", 3) + b"key" + struct.pack(">i", len(value)) + value
    (row,) = decoded({0: pair}, (0, inline if is_inline else value), key=None if is_inline else b"key")
    assert row == {"key": "key", "value": {"row": 1, "gone": "x"}}


def test_protobuf() -> None:
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="shop", syntax="proto3")
    part = file.message_type.add(name="Part")
    part.field.add(name="name", number=1, type=9, label=1)
    sale = file.message_type.add(name="Sale")
    sale.field.add(name="row", number=1, type=3, label=1)
    sale.field.add(name="parts", number=2, type=11, label=3, type_name=".shop.Part")
    sale.field.add(name="main", number=3, type=11, label=1, type_name=".shop.Part")
    sale.field.add(name="big", number=4, type=4, label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    native = schema(
        SchemaType.PROTOBUF_NATIVE,
        {"fileDescriptorSet": base64.b64encode(files).decode(), "rootMessageTypeName": "shop.Sale"},
    )
    message: Any = GetMessageClass(native_message(native))(row=5, big=(1 << 64) - 1)
    message.parts.add(name="wheel")
    (row,) = decoded({0: native}, (0, message.SerializeToString()))
    assert (row["row"], row["parts"], row["main"], row["big"]) == (5, [{"name": "wheel"}], None, (1 << 64) - 1)
    (bad,) = decoded({0: native}, (0, b"\x0a\xff"), on_unreadable="null")
    assert bad["__badValue"] == b"\x0a\xff"


def test_schemas_that_have_no_columns_are_refused_in_words() -> None:
    def answer(kind: str, definition: Any) -> list[dict[str, Any]]:
        data = base64.b64encode(json.dumps(definition).encode()).decode()
        return [{"version": 0, "type": kind, "name": "s", "data": data, "properties": {}}]

    assert schemas_of(TOPIC, answer("AVRO", OLD)).newest.type is SchemaType.AVRO
    with pytest.raises(NotFoundError, match="has no schema"):
        schemas_of(TOPIC, [])
    with pytest.raises(UnsupportedError, match="numbers of its fields"):
        schemas_of(TOPIC, answer("PROTOBUF", OLD))
    with pytest.raises(UnsupportedError, match="AUTO_CONSUME"):
        schemas_of(TOPIC, answer("AUTO_CONSUME", OLD))
