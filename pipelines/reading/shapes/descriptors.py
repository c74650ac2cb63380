"""Which Protobuf message a schema of the registry describes.

PROTOBUF_NATIVE stores the files that define it. PROTOBUF, which Java's ``Schema.PROTOBUF(Class)`` registers, stores an
Avro record of the same shape and, in a property, the numbers and types of its fields, but not those of messages in it,
and not the numbers of enums. A caller who has the definition can give it.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.client.schemas.decoding import key_value_schemas
from heliograph.protocol.schema import SchemaInfo, SchemaType

PARSING_INFO = "__PARSING_INFO__"  # the property with the numbers of fields
DESCRIPTOR_BYTES_MAX = 4 << 20  # of the files that a caller gives (I15)

_F = FieldDescriptorProto
_TEXT_TYPES = ("STRING", "BYTES")
_WITHOUT_DEFAULT = ("ENUM", "MESSAGE")


def native_message(schema: SchemaInfo) -> Descriptor:
    """Return the message that a schema of type PROTOBUF_NATIVE describes.

    Raises:
        ValueError, KeyError, TypeError: it is malformed.
    """
    fields = json.loads(schema.data)
    files = FileDescriptorSet.FromString(base64.b64decode(fields["fileDescriptorSet"]))
    return _pool_of(files).FindMessageTypeByName(fields["rootMessageTypeName"])


def registered_message(schema: SchemaInfo) -> Descriptor:
    """Return the known shape of the message of a schema of type PROTOBUF.

    Messages in it are fields of bytes, and enums are numbers. A field that may be missing has the default that the
    registry names; those of enums are not known.

    Raises:
        UnsupportedError: the registry does not tell the numbers of fields, or a field is a group.
        ValueError, KeyError, TypeError: the schema is malformed.
    """
    defaults = {one["name"]: one.get("default") for one in json.loads(schema.data)["fields"]}
    file = FileDescriptorProto(name="registered.proto", syntax="proto2")
    message = file.message_type.add(name="Registered")
    for told in _told_fields(schema):
        kind, name = told["type"], told["name"]
        if kind == "GROUP":
            raise UnsupportedError(
                f"the field {name!r} is a group, whose fields' numbers are not in the registry: give "
                "protobuf_descriptor",
                field="schema",
            )
        one = message.field.add(name=name, number=told["number"], label=_F.LABEL_OPTIONAL)
        one.type = {"MESSAGE": _F.TYPE_BYTES, "ENUM": _F.TYPE_INT32}.get(kind) or _F.Type.Value(f"TYPE_{kind}")
        if told["label"] == "LABEL_REPEATED":
            one.label = _F.LABEL_REPEATED
        elif kind not in _WITHOUT_DEFAULT and defaults.get(name) is not None:
            one.default_value = _default_text(kind, defaults[name])
    return _pool_of(FileDescriptorSet(file=[file])).FindMessageTypeByName("Registered")


def _told_fields(schema: SchemaInfo) -> list[dict[str, Any]]:
    told = schema.properties.get(PARSING_INFO)
    if told is None:
        raise UnsupportedError(
            f"the schema {schema.name!r} of type PROTOBUF lacks the numbers of its fields: give protobuf_descriptor",
            field="schema",
        )
    return list(json.loads(told))


def _default_text(kind: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if kind == "BYTES":  # Avro writes bytes as the characters of the same numbers, and Protobuf escapes them
        return "".join(f"\\{byte:03o}" for byte in value.encode("latin-1"))
    if kind.startswith(("UINT", "FIXED")):  # Java has no unsigned numbers
        return str(value % (1 << (64 if kind.endswith("64") else 32)))
    return str(value) if kind in _TEXT_TYPES or kind in ("FLOAT", "DOUBLE") else str(int(value))


def descriptor_of(given: bytes | type[ProtobufMessage] | None) -> tuple[bytes, str]:
    """Return the definition that a caller gives, as a serialized FileDescriptorSet and the full name of its message.

    Args:
        given: such a set, whose message is then found by name (the name is empty), or a generated class.

    Raises:
        BadRequestError: it is none of these, or too large.
    """
    if given is None:
        return b"", ""
    if isinstance(given, type) and issubclass(given, ProtobufMessage):
        found: dict[str, FileDescriptorProto] = {}
        _add_files(given.DESCRIPTOR.file, found)
        files, name = FileDescriptorSet(file=found.values()).SerializeToString(), given.DESCRIPTOR.full_name
    elif isinstance(given, bytes):
        files, name = given, ""
    else:
        raise BadRequestError(
            f"protobuf_descriptor is {given!r}",
            field="protobuf_descriptor",
            limit="the bytes of a FileDescriptorSet, or a generated class",
        )
    if not 0 < len(files) <= DESCRIPTOR_BYTES_MAX:
        raise BadRequestError(
            f"a protobuf_descriptor of {len(files)} bytes",
            field="protobuf_descriptor",
            limit=f"1 to {DESCRIPTOR_BYTES_MAX} bytes",
        )
    return files, name


def _add_files(file: Any, found: dict[str, FileDescriptorProto]) -> None:
    if file.name not in found:
        found[file.name] = packed = FileDescriptorProto()
        file.CopyToProto(packed)
        for one in file.dependencies:
            _add_files(one, found)


def described(schema: SchemaInfo, files: bytes, name: str) -> SchemaInfo:
    """Return a schema with its messages of type PROTOBUF as PROTOBUF_NATIVE, by the definition that a caller gives.

    Args:
        files, name: as ``descriptor_of`` returns them.

    Raises:
        BadRequestError: the definition has no such message, or none whose fields are those of the registry.
        UnsupportedError: the schema has no message of type PROTOBUF.
    """
    if schema.type is SchemaType.PROTOBUF:
        root = _chosen(schema, files, name)
        data = {"fileDescriptorSet": base64.b64encode(files).decode(), "rootMessageTypeName": root.full_name}
        return SchemaInfo(SchemaType.PROTOBUF_NATIVE, json.dumps(data).encode(), schema.name, schema.properties)
    if schema.type is SchemaType.KEY_VALUE:
        parts = key_value_schemas(schema)
        if SchemaType.PROTOBUF in [one.type for one in parts]:
            made = [described(one, files, name) if one.type is SchemaType.PROTOBUF else one for one in parts]
            types = {f"{part}.schema.type": one.type.name for part, one in zip(("key", "value"), made, strict=True)}
            data_of_parts = b"".join(struct.pack(">i", len(one.data)) + one.data for one in made)
            return SchemaInfo(schema.type, data_of_parts, schema.name, {**schema.properties, **types})
    raise UnsupportedError(
        f"protobuf_descriptor is given, and the topic has a schema of type {schema.type.name}",
        field="protobuf_descriptor",
        limit="PROTOBUF",
    )


def _chosen(schema: SchemaInfo, files: bytes, name: str) -> Descriptor:
    try:
        packed = FileDescriptorSet.FromString(files)
        pool = _pool_of(packed)
        wanted = str(json.loads(schema.data)["name"]).rpartition(".")[2]
        names = [name] if name else [one for one in _message_names(packed) if one.rpartition(".")[2] == wanted]
        found = [pool.FindMessageTypeByName(one) for one in names]
    except (DecodeError, ValueError, KeyError, TypeError) as error:
        raise BadRequestError(
            f"the files of protobuf_descriptor, with all that they import, cannot be read: {error}",
            field="protobuf_descriptor",
        ) from error
    if not found:
        raise BadRequestError(
            f"protobuf_descriptor has no message {wanted!r}", field="protobuf_descriptor", limit=wanted
        )
    misfits = [_misfit(schema, one) for one in found]
    fitting = [one for one, misfit in zip(found, misfits, strict=True) if misfit is None]
    if not fitting:
        raise BadRequestError(f"protobuf_descriptor is not the topic's: {misfits[0]}", field="protobuf_descriptor")
    if len(fitting) > 1:
        raise BadRequestError(
            f"protobuf_descriptor has several messages {wanted!r}: give the generated class",
            field="protobuf_descriptor",
            limit=", ".join(one.full_name for one in fitting),
        )
    return fitting[0]


def _misfit(schema: SchemaInfo, message: Descriptor) -> str | None:
    """Return the difference of a message from the registry's; fields may have been added or removed since."""
    if PARSING_INFO not in schema.properties:
        return None
    fields: Mapping[int, FieldDescriptor] = message.fields_by_number
    for told in _told_fields(schema):
        one = fields.get(told["number"])
        if one is None:
            continue
        kind = _F.Type.Name(one.type).removeprefix("TYPE_")  # type: ignore[arg-type]  # its stubs know no descriptors
        if (one.name, kind) != (told["name"], told["type"]):
            return (
                f"field {told['number']} of the registry is {told['name']!r} of type {told['type']}, and that of "
                f"{message.full_name} is {one.name!r} of type {kind}"
            )
    return None


def _message_names(files: FileDescriptorSet) -> Iterator[str]:
    for file in files.file:
        yield from _names_in(file.message_type, f"{file.package}." if file.package else "")


def _names_in(messages: Iterable[Any], before: str) -> Iterator[str]:
    for one in messages:
        yield before + one.name
        yield from _names_in(one.nested_type, f"{before}{one.name}.")


def _pool_of(files: FileDescriptorSet) -> DescriptorPool:
    """Return the files as descriptors, each after its imports.

    Raises:
        ValueError, TypeError: they import each other, or one that is missing.
    """
    pool, waiting = DescriptorPool(), list(files.file)
    while waiting:
        ready = [file for file in waiting if not {other.name for other in waiting} & set(file.dependency)]
        if not ready:
            raise ValueError("its files import each other")
        for file in ready:
            pool.Add(file)
            waiting.remove(file)
    return pool
