"""The schemas of a topic as tables need them: all versions, and the Arrow type of the newest. No I/O."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from heliograph.base.errors import BadRequestError, NotFoundError, UnsupportedError
from heliograph.client.schemas.decoding import key_value_schemas, root_message
from heliograph.protocol.schema import SchemaInfo, SchemaType

DEPTH_MAX = 32  # of records in records (I15)

_T = SchemaType
_TIMESTAMP_MS = pa.timestamp("ms", tz="UTC")
PRIMITIVES: Mapping[SchemaType, pa.DataType] = {
    _T.STRING: pa.string(),
    _T.BOOLEAN: pa.bool_(),
    _T.INT8: pa.int8(),
    _T.INT16: pa.int16(),
    _T.INT32: pa.int32(),
    _T.INT64: pa.int64(),
    _T.FLOAT: pa.float32(),
    _T.DOUBLE: pa.float64(),
    _T.DATE: _TIMESTAMP_MS,
    _T.TIMESTAMP: _TIMESTAMP_MS,
}
_AVRO: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_AVRO_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": _TIMESTAMP_MS,
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
}
_F = FieldDescriptor
_PROTOBUF: Mapping[int, pa.DataType] = {
    _F.CPPTYPE_INT32: pa.int32(),
    _F.CPPTYPE_INT64: pa.int64(),
    _F.CPPTYPE_UINT32: pa.int64(),
    _F.CPPTYPE_UINT64: pa.decimal128(20, 0),
    _F.CPPTYPE_DOUBLE: pa.float64(),
    _F.CPPTYPE_FLOAT: pa.float32(),
    _F.CPPTYPE_BOOL: pa.bool_(),
    _F.CPPTYPE_ENUM: pa.string(),
}


@dataclass(frozen=True)
class TopicSchemas:
    """All versions of a topic's schema. Picklable.

    Args:
        versions: the schemas by version; at least one.
    """

    versions: Mapping[int, SchemaInfo] = field(default_factory=dict)

    @property
    def newest(self) -> SchemaInfo:
        """Return the newest version, which gives the table its columns."""
        return self.versions[max(self.versions)]

    def written_with(self, version: int | None) -> SchemaInfo:
        """Return the schema of a message; the newest for a message that names none.

        Raises:
            NotFoundError: the registry has no such version.
        """
        if version is None:
            return self.newest
        if version not in self.versions:
            raise NotFoundError(f"the topic has no version {version} of its schema")
        return self.versions[version]


def schemas_of(topic: str, answers: Sequence[Mapping[str, Any]]) -> TopicSchemas:
    """Return the schemas of a topic from the answer of ``admin.schemas.versions``.

    Raises:
        NotFoundError: the topic has no schema.
        UnsupportedError: messages of its type cannot be decoded.
    """
    found = {
        int(one["version"]): SchemaInfo(
            SchemaType.named(one["type"]), base64.b64decode(one["data"]), one["name"], dict(one["properties"] or {})
        )
        for one in answers
    }
    if not found:
        raise NotFoundError(f"{topic} has no schema in the registry", field="schema")
    schemas = TopicSchemas(found)
    arrow_type(schemas.newest)
    return schemas


def arrow_type(schema: SchemaInfo) -> pa.DataType:
    """Return the Arrow type of the values of a schema: a struct for records.

    Raises:
        UnsupportedError: its messages cannot be decoded.
        BadRequestError: its definition is malformed.
    """
    try:
        if schema.type in PRIMITIVES:
            return PRIMITIVES[schema.type]
        if schema.type in (_T.AVRO, _T.JSON):
            return _avro_type(json.loads(schema.data), {}, 0)
        if schema.type is _T.PROTOBUF_NATIVE:
            return _message_type(root_message(schema), 0)
        if schema.type is _T.KEY_VALUE:
            key, value = key_value_schemas(schema)
            return pa.struct([pa.field("key", arrow_type(key)), pa.field("value", arrow_type(value))])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise BadRequestError(f"the schema {schema.name!r} is malformed: {error}", field="schema") from error
    if schema.is_none:
        return pa.binary()
    raise UnsupportedError(f"messages with a schema of type {schema.type.name} cannot be decoded", field="schema")


def _avro_type(schema: Any, named: dict[str, pa.DataType], depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise UnsupportedError("a schema that contains itself has no columns", field="schema", limit=f"{DEPTH_MAX}")
    if isinstance(schema, list):
        others = [one for one in schema if one != "null"]
        if len(others) == 1:
            return _avro_type(others[0], named, depth + 1)
        raise UnsupportedError("a union of several types is no column", field="schema")
    if isinstance(schema, str):
        return _AVRO[schema] if schema in _AVRO else _avro_type(named[schema], named, depth + 1)
    kind = schema["type"]
    if schema.get("logicalType") in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[schema["logicalType"]]
    if schema.get("logicalType") == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    if "name" in schema:
        named[schema["name"]] = named[f"{schema.get('namespace', '')}.{schema['name']}"] = schema
    if kind == "record":
        return pa.struct([pa.field(one["name"], _avro_type(one["type"], named, depth + 1)) for one in schema["fields"]])
    if kind == "array":
        return pa.list_(_avro_type(schema["items"], named, depth + 1))
    if kind == "map":
        return pa.map_(pa.string(), _avro_type(schema["values"], named, depth + 1))
    if kind == "fixed":
        return pa.binary()
    return _avro_type(kind, named, depth + 1)


def _message_type(message: Descriptor, depth: int) -> pa.DataType:
    if depth > DEPTH_MAX:
        raise UnsupportedError("a message that contains itself has no columns", field="schema", limit=f"{DEPTH_MAX}")
    return pa.struct([pa.field(one.name, _field_type(one, depth)) for one in message.fields])


def _field_type(one: FieldDescriptor, depth: int) -> pa.DataType:
    if one.message_type is not None and one.message_type.GetOptions().map_entry:
        key, value = one.message_type.fields
        return pa.map_(_scalar_type(key, depth), _scalar_type(value, depth))
    scalar = _scalar_type(one, depth)
    return pa.list_(scalar) if one.is_repeated else scalar


def _scalar_type(one: FieldDescriptor, depth: int) -> pa.DataType:
    if one.message_type is not None:
        return _message_type(one.message_type, depth + 1)
    if one.cpp_type == _F.CPPTYPE_STRING:
        return pa.binary() if one.type == _F.TYPE_BYTES else pa.string()
    return _PROTOBUF[one.cpp_type]
