"""The schema of written rows if the topic has one already."""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from heliograph.base.errors import BadRequestError, NotFoundError, UnsupportedError
from heliograph.client.schemas.records import AvroSchema, JsonSchema
from heliograph.pipelines.reading.registry import USUAL, RegistryRead
from heliograph.pipelines.reading.shapes.descriptors import described
from heliograph.pipelines.writing.messages import MessageSchema
from heliograph.pipelines.writing.records import RecordSchema
from heliograph.protocol.schema import SchemaInfo, SchemaType

RowSchema: TypeAlias = RecordSchema | MessageSchema


def schema_of_topic(topic: str, versions: Sequence[Mapping[str, Any]], read: RegistryRead = USUAL) -> RowSchema:
    """Return the newest schema that a topic has, from the answer of ``admin.schemas.versions``.

    Args:
        read: with the definition of messages of type PROTOBUF.

    Raises:
        NotFoundError: it has none.
        BadRequestError: the given definition differs from the topic's, or the topic's own definition is malformed.
        UnsupportedError: the schema is none of records or messages, or PROTOBUF without a definition.
    """
    if not versions:
        raise NotFoundError(f"{topic} has no schema in the registry", field="schema")
    answer = versions[-1]
    data = base64.b64decode(answer["data"])
    if read.files and answer["type"] != "PROTOBUF":
        raise UnsupportedError(
            f"protobuf_descriptor is given, and {topic} has a schema of type {answer['type']}",
            field="protobuf_descriptor",
            limit="PROTOBUF",
        )
    if answer["type"] in ("AVRO", "JSON"):
        definition = data.decode()
        return RecordSchema(AvroSchema(definition) if answer["type"] == "AVRO" else JsonSchema(definition))
    if answer["type"] not in ("PROTOBUF", "PROTOBUF_NATIVE"):
        raise UnsupportedError(
            f"rows are not written with a schema of type {answer['type']}",
            field="schema",
            limit="AVRO, JSON, PROTOBUF, PROTOBUF_NATIVE",
        )
    info = SchemaInfo(SchemaType[answer["type"]], data, answer["name"], dict(answer["properties"] or {}))
    if info.type is SchemaType.PROTOBUF_NATIVE:
        return _messages(info, info)
    if not read.files:
        raise UnsupportedError(
            f"{topic} has a schema of type PROTOBUF, which does not define its messages: give protobuf_descriptor",
            field="schema",
        )
    return _messages(info, described(info, read.files, read.message))


def _messages(info: SchemaInfo, native: SchemaInfo) -> MessageSchema:
    try:
        return MessageSchema(info, native)
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise BadRequestError(f"the schema {info.name!r} is malformed: {error}", field="schema") from error
