"""The schemas of a topic as tables need them: all versions, and how the caller wants them read. No I/O."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from google.protobuf.message import Message as ProtobufMessage

from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.pipelines.reading.shapes.descriptors import described, descriptor_of
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH, check_recursion_depth
from heliograph.pipelines.reading.shapes.values import arrow_type
from heliograph.protocol.schema import SchemaInfo, SchemaType

REGISTRY = "registry"  # as callers name the schemas of the topic

GivenDescriptor = bytes | type[ProtobufMessage] | None  # as callers pass ``protobuf_descriptor``


@dataclass(frozen=True)
class RegistryRead:
    """How values are read by the registry. Picklable.

    Args:
        files: the definition of messages of type PROTOBUF as a serialized FileDescriptorSet; empty: none is given.
        message: the full name of the message in it; empty: the one with the name in the registry.
        recursion_depth: how often a record may stand in itself as a struct; deeper ones are JSON.
    """

    files: bytes = b""
    message: str = ""
    recursion_depth: int = RECURSION_DEPTH

    @classmethod
    def of(cls, protobuf_descriptor: GivenDescriptor = None, recursion_depth: int = RECURSION_DEPTH) -> RegistryRead:
        """Return the read that a caller asks for.

        Raises:
            BadRequestError: the descriptor is none, or the depth is out of bounds.
        """
        return cls(*descriptor_of(protobuf_descriptor), check_recursion_depth(recursion_depth))


USUAL = RegistryRead()


def check_read(schema: object, read: RegistryRead) -> None:
    """Do nothing if ``schema`` asks for the registry, or nothing is said about how it is read.

    Raises:
        BadRequestError: something is.
    """
    if read != USUAL and not is_registry(schema):
        raise BadRequestError(
            "protobuf_descriptor and recursion_depth are for schema='registry'", field="schema", limit=REGISTRY
        )


def is_registry(schema: object) -> bool:
    """Return whether a caller asks for the schemas of the topic."""
    return isinstance(schema, str) and schema == REGISTRY


@dataclass(frozen=True)
class TopicSchemas:
    """All versions of a topic's schema. Picklable.

    Args:
        versions: the schemas by version; at least one.
        recursion_depth: how often a record may stand in itself as a struct; deeper ones are JSON.
    """

    versions: Mapping[int, SchemaInfo] = field(default_factory=dict)
    recursion_depth: int = RECURSION_DEPTH

    @property
    def newest(self) -> SchemaInfo:
        """Return the newest version, which gives the table its columns."""
        return self.versions[max(self.versions)]

    @property
    def kind(self) -> pa.DataType:
        """Return the Arrow type of the values.

        Raises:
            UnsupportedError: the messages cannot be decoded.
            BadRequestError: the newest definition is malformed.
        """
        return arrow_type(self.newest, self.recursion_depth)

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


def schemas_of(topic: str, answers: Sequence[Mapping[str, Any]], read: RegistryRead = USUAL) -> TopicSchemas:
    """Return the schemas of a topic from the answer of ``admin.schemas.versions``.

    Raises:
        NotFoundError: the topic has no schema.
        BadRequestError: the caller's descriptor is of other messages than the topic's.
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
    schemas = TopicSchemas(found, read.recursion_depth)
    if read.files:
        # Messages of Protobuf are read by the newest definition, whichever version they were written with.
        newest = described(schemas.newest, read.files, read.message)
        same = {
            one: newest if schema.type is SchemaType.PROTOBUF else described(schema, read.files, read.message)
            for one, schema in found.items()
            if schema.type is schemas.newest.type
        }
        schemas = TopicSchemas(found | same, read.recursion_depth)
    assert schemas.kind is not None, "a schema without a form in tables is refused"
    return schemas
