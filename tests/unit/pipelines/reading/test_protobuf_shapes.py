"""Schemas of type PROTOBUF: what is read without the definition of the messages, with it, and written by it."""

from __future__ import annotations

import base64
import json
import pickle
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, struct_pb2, type_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet, SourceCodeInfo, UninterpretedOption
from google.protobuf.json_format import MessageToDict

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.pipelines.reading.registry import GivenDescriptor, RegistryRead, TopicSchemas, schemas_of
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.topic_schema import schema_of_topic
from heliograph.pipelines.writing.values import RowValues
from heliograph.protocol.schema import SchemaInfo, SchemaType
from tests.unit.pipelines.reading.registered import LOCATION, OPTION, STRUCT, TYPE, java_schema
from tests.unit.pipelines.reading.test_decoding import decoded

Type: Any = type_pb2.Type  # whose constructor takes dicts, which its stubs do not know
Option: Any = UninterpretedOption
WITHOUT_DEFINITION = ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
TOPIC = "persistent://public/default/t"


def answers(*versions: SchemaInfo) -> list[dict[str, Any]]:
    """Return what the administration tells of a topic's schemas."""
    return [
        {
            "version": version,
            "type": one.type.name,
            "name": one.name,
            "data": base64.b64encode(one.data).decode(),
            "properties": dict(one.properties),
        }
        for version, one in enumerate(versions)
    ]


def rows(info: SchemaInfo, *messages: Any, given: GivenDescriptor = None, depth: int = 1) -> list[dict[str, Any]]:
    schemas = schemas_of(TOPIC, answers(info), RegistryRead.of(given, depth))
    return decoded(schemas, *((0, one.SerializeToString()) for one in messages))


def test_top_level_fields_need_no_definition() -> None:
    name = UninterpretedOption.NamePart(name_part="n", is_extension=True)
    option = UninterpretedOption(
        name=[name],
        identifier_value="text \N{SNOWMAN}",
        positive_int_value=(1 << 64) - 1,
        negative_int_value=-5,
        double_value=1.5,
        string_value=b"\xff",
    )
    first, second = rows(OPTION, option, UninterpretedOption())
    assert first == {
        "name": [name.SerializeToString()],
        "identifier_value": "text \N{SNOWMAN}",
        "positive_int_value": Decimal((1 << 64) - 1),
        "negative_int_value": -5,
        "double_value": 1.5,
        "string_value": b"\xff",
        "aggregate_value": "",
    }
    assert (second["identifier_value"], second["positive_int_value"], second["string_value"]) == ("", 0, b"")


def test_repeated_fields_are_read_packed_and_not() -> None:
    packed = SourceCodeInfo.Location(path=[1, -2, 300], span=[4], leading_detached_comments=["a", ""])
    assert rows(LOCATION, packed)[0]["path"] == [1, -2, 300]
    schemas = TopicSchemas({0: LOCATION})
    (row,) = decoded(schemas, (0, b"\x08\x07\x08\x08\x32\x01a"))
    assert (row["path"], row["span"], row["leading_detached_comments"]) == ([7, 8], [], ["a"])
    assert (row["leading_comments"], row["trailing_comments"]) == ("", "")


def test_an_enum_is_a_number_and_a_message_is_bytes() -> None:
    context = {"file_name": "f"}
    value = Type(name="n", syntax="SYNTAX_PROTO3", source_context=context, fields=[{"name": "x"}])
    first, second = rows(TYPE, value, Type())
    assert (first["syntax"], first["source_context"]) == (1, value.source_context.SerializeToString())
    assert first["fields"] == [value.fields[0].SerializeToString()]
    assert (second["syntax"], second["source_context"], second["fields"]) == (None, None, [])


def test_every_type_of_a_field() -> None:
    kinds = [
        one for one, _ in FieldDescriptorProto.Type.items() if one not in ("TYPE_GROUP", "TYPE_MESSAGE", "TYPE_ENUM")
    ]
    defaults: dict[str, Any] = {"TYPE_BOOL": True, "TYPE_STRING": "d", "TYPE_BYTES": "\x00\xff"}
    defaults |= {"TYPE_FLOAT": 1.5, "TYPE_DOUBLE": -2.5, "TYPE_FIXED32": -1, "TYPE_UINT64": -1}
    file = descriptor_pb2.FileDescriptorProto(name="all.proto", syntax="proto2")
    message = file.message_type.add(name="All")
    fields = []
    for number, kind in enumerate(kinds, 1):
        message.field.add(name=kind.lower(), number=number, type=kind, label=1)
        fields.append((number, kind.lower(), kind.removeprefix("TYPE_"), ("null", defaults.get(kind, 7))))
    info = java_schema("All", *fields)
    (row,) = decoded(TopicSchemas({0: info}), (0, b""))
    wanted = {kind.lower(): defaults.get(kind, 7) for kind in kinds}
    wanted |= {"type_bytes": b"\x00\xff", "type_fixed32": (1 << 32) - 1, "type_uint64": (1 << 64) - 1}
    assert row == wanted
    native = schemas_of(TOPIC, answers(info), RegistryRead.of(FileDescriptorSet(file=[file]).SerializeToString()))
    assert native.kind == TopicSchemas({0: info}).kind


def test_with_the_definition_messages_are_structs_and_enums_names() -> None:
    value = Type(name="n", syntax="SYNTAX_PROTO3", fields=[{"name": "x", "kind": "TYPE_BOOL", "number": 3}])
    files = FileDescriptorSet()
    for file in ("google/protobuf/any.proto", "google/protobuf/source_context.proto", "google/protobuf/type.proto"):
        type_pb2.DESCRIPTOR.pool.FindFileByName(file).CopyToProto(files.file.add())
    for given in (type_pb2.Type, files.SerializeToString()):
        (row,) = rows(TYPE, value, given=given)
        assert (row["name"], row["syntax"], row["source_context"]) == ("n", "SYNTAX_PROTO3", None)
        assert (row["fields"][0]["name"], row["fields"][0]["kind"], row["fields"][0]["number"]) == ("x", "TYPE_BOOL", 3)


def test_a_message_in_itself_is_json_below_the_depth() -> None:
    value = struct_pb2.Struct()
    value.update({"a": {"b": {"c": 1}}, "l": [1, "x"]})
    (row,) = rows(STRUCT, value, given=struct_pb2.Struct)
    cells = dict(row["fields"])
    assert json.loads(cells["a"]["struct_value"]) == {"b": {"c": 1}}
    assert [json.loads(one) for one in cells["l"]["list_value"]["values"]] == [1, "x"]
    (row,) = rows(STRUCT, value, given=struct_pb2.Struct, depth=2)
    assert json.loads(dict(dict(row["fields"])["a"]["struct_value"]["fields"])["b"]["struct_value"]) == {"c": 1}


def test_the_newest_version_gives_the_columns() -> None:
    old = java_schema("Location", (3, "leading_comments", "STRING", ("string", "")))
    value = SourceCodeInfo.Location(leading_comments="a", path=[1]).SerializeToString()
    first, second = decoded(schemas_of(TOPIC, answers(old, LOCATION)), (0, value), (1, value))
    assert first == second
    assert first["path"] == [1]
    given = RegistryRead.of(SourceCodeInfo.Location)
    assert decoded(schemas_of(TOPIC, answers(old, LOCATION), given), (0, value))[0]["leading_comments"] == "a"


def test_what_does_not_fit_is_a_bad_row() -> None:
    bad = [b"\x0a\xff", b"\x1a\x01\xff", b"\xff"]
    for given in (None, SourceCodeInfo.Location):
        schemas = schemas_of(TOPIC, answers(LOCATION), RegistryRead.of(given))
        found = decoded(schemas, *((0, one) for one in bad), on_unreadable="null")
        assert [row["__badValue"] for row in found] == bad
        assert all(row["__error"] for row in found)


@pytest.mark.parametrize("given", [None, OPTION])
def test_pairs_with_messages(given: Any) -> None:
    data = struct.pack(">i", 0) + struct.pack(">i", len(OPTION.data)) + OPTION.data
    properties = {"key.schema.type": "STRING", "value.schema.type": "PROTOBUF"}
    properties["value.schema.properties"] = json.dumps(dict(OPTION.properties))
    pair = SchemaInfo(SchemaType.KEY_VALUE, data, "pair", properties)
    value = Option(identifier_value="i", name=[{"name_part": "n", "is_extension": False}])
    packed = value.SerializeToString()
    stored = struct.pack(">i", 1) + b"k" + struct.pack(">i", len(packed)) + packed
    read = RegistryRead.of(None if given is None else UninterpretedOption)
    (row,) = decoded(schemas_of(TOPIC, answers(pair), read), (0, stored))
    assert (row["key"], row["value"]["identifier_value"]) == ("k", "i")
    part = value.name[0].SerializeToString() if given is None else {"name_part": "n", "is_extension": False}
    assert row["value"]["name"] == [part]


def test_definitions_that_are_refused() -> None:
    def refused(given: Any, info: SchemaInfo = LOCATION) -> str:
        with pytest.raises((BadRequestError, UnsupportedError)) as caught:
            schemas_of(TOPIC, answers(info), RegistryRead.of(given))
        return str(caught.value)

    nothing = descriptor_pb2.FileDescriptorProto(name="nothing.proto")
    assert "has no message 'Location'" in refused(FileDescriptorSet(file=[nothing]).SerializeToString())
    assert "of 0 bytes" in refused(b"")
    assert "is not the topic's: field 2" in refused(UninterpretedOption)
    assert "cannot be read" in refused(b"\xff\xff")
    assert "protobuf_descriptor is 'text'" in refused("text")
    assert "type AVRO" in refused(SourceCodeInfo.Location, SchemaInfo(SchemaType.AVRO, LOCATION.data))
    no_import = FileDescriptorSet()
    type_pb2.DESCRIPTOR.CopyToProto(no_import.file.add())
    assert "with all that they import" in refused(no_import.SerializeToString(), TYPE)
    assert "is a group" in refused(None, java_schema("G", (1, "g", "GROUP", ("null", None))))


def test_rows_become_messages() -> None:
    record = pickle.loads(pickle.dumps(schema_of_topic(TOPIC, answers(TYPE), RegistryRead.of(type_pb2.Type))))
    fields = [{"kind": "TYPE_BOOL", "number": 2, "name": "x", "options": [{"name": "o", "value": None}]}, {"name": "y"}]
    table = pa.table(
        {
            "name": ["a", None],
            "fields": pa.array([fields, []]),
            "syntax": ["SYNTAX_PROTO3", None],
            "oneofs": [["p", "q"], None],
            "source_context": [{"file_name": "f"}, None],
        }
    )
    record.check(table.column_names)
    first, second = RowValues(WrittenColumns.named(None), record).of(table, 0)
    wanted = Type(name="a", syntax="SYNTAX_PROTO3", oneofs=["p", "q"], source_context={"file_name": "f"})
    wanted.fields.add(name="x", kind="TYPE_BOOL", number=2).options.add(name="o")
    wanted.fields.add(name="y")
    assert type_pb2.Type.FromString(first or b"") == wanted
    assert second == b""
    (row,) = rows(TYPE, wanted, given=type_pb2.Type)
    again = RowValues(WrittenColumns.named(None), record).of(pa.Table.from_pylist([row]), 0)
    assert type_pb2.Type.FromString(again[0] or b"") == wanted


def test_json_of_a_message_in_itself_is_written() -> None:
    value = struct_pb2.Struct()
    value.update({"a": {"b": 1}, "l": [True]})
    schemas = schemas_of(TOPIC, answers(STRUCT), RegistryRead.of(struct_pb2.Struct))
    (row,) = decoded(schemas, (0, value.SerializeToString()))
    record = schema_of_topic(TOPIC, answers(STRUCT), RegistryRead.of(struct_pb2.Struct))
    table = pa.Table.from_pylist([row], schema=pa.schema(list(schemas.kind)))
    (packed,) = RowValues(WrittenColumns.named(None), record).of(table, 0)
    assert MessageToDict(struct_pb2.Struct.FromString(packed or b"")) == MessageToDict(value)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="give protobuf_descriptor"):
        schema_of_topic(TOPIC, answers(TYPE))
    with pytest.raises(UnsupportedError, match="has a schema of type AVRO"):
        schema_of_topic(TOPIC, answers(SchemaInfo(SchemaType.AVRO, TYPE.data)), RegistryRead.of(type_pb2.Type))
    record = schema_of_topic(TOPIC, answers(TYPE), RegistryRead.of(type_pb2.Type))
    with pytest.raises(BadRequestError, match="no field 'other'"):
        record.check(["other"])
    values = RowValues(WrittenColumns.named(None), record)
    with pytest.raises(BadRequestError, match=r"column 'syntax', row 1.*SYNTAX_PROTO9"):
        values.of(pa.table({"syntax": ["SYNTAX_PROTO2", "SYNTAX_PROTO9"]}), 0)
    with pytest.raises(BadRequestError, match="column 'fields'"):
        values.of(pa.table({"fields": [1]}), 0)
