"""The cells that values of any schema become."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.client.schemas.decoding import key_value_schemas, plain_decoder, require_same_type
from heliograph.pipelines.reading.shapes.avro import TIMESTAMP_MS, avro_reader, avro_shape
from heliograph.pipelines.reading.shapes.descriptors import native_message, registered_message
from heliograph.pipelines.reading.shapes.protobuf import message_shape
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH
from heliograph.protocol.schema import SchemaInfo, SchemaType

_T = SchemaType
_PRIMITIVES: Mapping[SchemaType, pa.DataType] = {
    _T.STRING: pa.string(),
    _T.BOOLEAN: pa.bool_(),
    _T.INT8: pa.int8(),
    _T.INT16: pa.int16(),
    _T.INT32: pa.int32(),
    _T.INT64: pa.int64(),
    _T.FLOAT: pa.float32(),
    _T.DOUBLE: pa.float64(),
    _T.DATE: TIMESTAMP_MS,
    _T.TIMESTAMP: TIMESTAMP_MS,
}


def arrow_type(schema: SchemaInfo, recursion_depth: int = RECURSION_DEPTH) -> pa.DataType:
    """Return the Arrow type of the values of a schema: a struct for records.

    Args:
        recursion_depth: how often a record may stand in itself as a struct; deeper ones are JSON.

    Raises:
        UnsupportedError: its messages cannot be decoded.
        BadRequestError: its definition is malformed.
    """
    try:
        if schema.type in _PRIMITIVES:
            return _PRIMITIVES[schema.type]
        if schema.type in (_T.AVRO, _T.JSON):
            return avro_shape(json.loads(schema.data), recursion_depth).kind
        if schema.type is _T.PROTOBUF_NATIVE:
            return message_shape(native_message(schema), recursion_depth).kind
        if schema.type is _T.PROTOBUF:
            return message_shape(registered_message(schema)).kind
        if schema.type is _T.KEY_VALUE:
            key, value = (arrow_type(one, recursion_depth) for one in key_value_schemas(schema))
            return pa.struct([pa.field("key", key), pa.field("value", value)])
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise BadRequestError(f"the schema {schema.name!r} is malformed: {error}", field="schema") from error
    if schema.is_none:
        return pa.binary()
    raise UnsupportedError(f"messages with a schema of type {schema.type.name} cannot be decoded", field="schema")


def cells_of(written: SchemaInfo, shown: SchemaInfo, recursion_depth: int = RECURSION_DEPTH) -> Callable[[bytes], Any]:
    """Return the function that makes cells of values that are no pairs; on foreign bytes it may raise anything.

    Messages of Protobuf are read by the numbers of the schema that is shown, as stock consumers read them.

    Raises:
        ProtocolError: the schemas are of different types.
        ResourceError: a package that decodes the values is not installed; names it.
    """
    require_same_type(written, shown)
    if shown.type is _T.AVRO:
        return avro_reader(written.data, shown.data, avro_shape(json.loads(shown.data), recursion_depth))
    if shown.type is _T.JSON:
        shape = avro_shape(json.loads(shown.data), recursion_depth)
        return json.loads if shape.is_direct else lambda value: shape.optional(json.loads(value))
    if shown.type in (_T.PROTOBUF, _T.PROTOBUF_NATIVE):
        is_native = shown.type is _T.PROTOBUF_NATIVE
        message = native_message(shown) if is_native else registered_message(shown)
        made, read = message_shape(message, recursion_depth, has_defaults=not is_native), GetMessageClass(message)
        return lambda value: made.convert(read.FromString(value))
    return plain_decoder(written, shown)
