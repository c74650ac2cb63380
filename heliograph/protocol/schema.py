"""The schemas of commands: a name, a type, a definition and properties. The definition is not parsed here."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heliograph.base.errors import BadRequestError
from heliograph.protocol import pulsar_pb2 as pb

SCHEMA_BYTES_MAX = 512 << 10  # of one definition, which is stored in one node of the metadata store
NAME_BYTES_MAX = 1 << 10  # of the name of a schema, in UTF-8
PROPERTIES_BYTES_MAX = 64 << 10  # of its properties, names and values in UTF-8
JSON_TEXT = {"type": "string", "contentMediaType": "application/json"}  # in definitions of JSON: any value of it
_VERSION = struct.Struct(">q")


class SchemaType(enum.Enum):
    """The types of schemas, with Pulsar's names and numbers."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21

    @classmethod
    def named(cls, name: str) -> SchemaType:
        """Return the type of a name; ``BYTES`` is NONE.

        Raises:
            BadRequestError.
        """
        if name == "BYTES":
            return cls.NONE
        try:
            return cls[name]
        except KeyError:
            raise BadRequestError(
                f"there is no schema type {name!r}", field="type", limit=", ".join(cls.__members__)
            ) from None


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """One schema.

    Args:
        type: the type of the definition; primitive types have no data.
        data: the definition: Avro's JSON for AVRO, JSON and PROTOBUF, a descriptor in JSON for PROTOBUF_NATIVE.
        properties: stored with the schema, and not compared.
    """

    type: SchemaType
    data: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_none(self) -> bool:
        """Whether the messages are bytes without a schema."""
        return self.type is SchemaType.NONE


def from_wire(schema: pb.Schema) -> SchemaInfo:
    """Return the schema of a command.

    Raises:
        BadRequestError: its type is none of ``SchemaType``.
    """
    if not schema.HasField("type"):  # protobuf leaves a type out that pulsar.proto does not have, such as EXTERNAL
        raise BadRequestError(
            "the type of the schema is not known to this version", field="type", limit=", ".join(SchemaType.__members__)
        )
    properties = {pair.key: pair.value for pair in schema.properties}
    return SchemaInfo(SchemaType(schema.type), schema.schema_data, schema.name, properties)


def check_size(schema: SchemaInfo) -> None:
    """Raise BadRequestError if the definition, the name or the properties of a schema are too large to be stored."""
    properties_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in schema.properties.items())
    sizes = (
        ("schema", "the definition of the schema", len(schema.data), SCHEMA_BYTES_MAX),
        ("name", "the name of the schema", len(schema.name.encode()), NAME_BYTES_MAX),
        ("properties", "the properties of the schema", properties_bytes, PROPERTIES_BYTES_MAX),
    )
    for field_name, what, size, most in sizes:
        if size > most:
            raise BadRequestError(f"{what} has {size} bytes", field=field_name, limit=f"{most} bytes")


def to_wire(schema: SchemaInfo) -> pb.Schema:
    """Return a schema in the form of commands."""
    pairs = [pb.KeyValue(key=key, value=value) for key, value in schema.properties.items()]
    return pb.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=pb.Schema.Type.Name(schema.type.value),
        properties=pairs,
    )


def version_bytes(version: int) -> bytes:
    """Encode a version in the form of commands and message metadata."""
    return _VERSION.pack(version)


def version_of(data: bytes) -> int:
    """Decode a version.

    Raises:
        BadRequestError: the bytes have another size than a version.
    """
    if len(data) != _VERSION.size:
        raise BadRequestError(f"a schema version has {_VERSION.size} bytes, not {len(data)}", field="schemaVersion")
    version: int = _VERSION.unpack(data)[0]
    return version


def without_logical_types(value: Any) -> Any:
    """Return a definition of Avro without its logical types, so that values are shown as they are stored."""
    if isinstance(value, list):
        return [without_logical_types(each) for each in value]
    if not isinstance(value, dict):
        return value
    dropped = "logicalType" if "type" in value else None
    return {
        key: each if key == "default" else without_logical_types(each) for key, each in value.items() if key != dropped
    }
