"""The compatibility of protobuf message types: whether one can read data of another (pure).

The definition is Pulsar's JSON: the file descriptors in base64, and the full name of the root message.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from heliograph.actors.broker.schema.check_budget import (
    NAME_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    VALUES_MAX,
    CheckBudget,
    read_definition,
    too_complex,
)
from heliograph.base.errors import IncompatibleSchemaError

_F = FieldDescriptorProto
# Types within a group read each other's bytes, by protobuf's own rules for updating a message type.
_GROUPS: tuple[frozenset[int], ...] = (
    frozenset({_F.TYPE_INT32, _F.TYPE_UINT32, _F.TYPE_INT64, _F.TYPE_UINT64, _F.TYPE_BOOL, _F.TYPE_ENUM}),
    frozenset({_F.TYPE_SINT32, _F.TYPE_SINT64}),
    frozenset({_F.TYPE_FIXED32, _F.TYPE_SFIXED32}),
    frozenset({_F.TYPE_FIXED64, _F.TYPE_SFIXED64}),
    frozenset({_F.TYPE_STRING, _F.TYPE_BYTES}),
)


@dataclass(frozen=True, slots=True)
class _Definition:
    root: str
    messages: dict[str, DescriptorProto]  # by full name with the leading dot


def check_protobuf(data: bytes) -> None:
    """Raise IncompatibleSchemaError unless the definition is valid."""
    _parse(data)


def protobuf_can_read(reader: bytes, writer: bytes, budget: CheckBudget) -> str:
    """Return why the reader's root message cannot read the writer's, empty if it can.

    Raises:
        SchemaTooComplexError: to find out would take more than the budget.
    """
    new, old = _parse(reader), _parse(writer)
    if new.root != old.root:
        return f"the root message is {new.root[1:]} on one side and {old.root[1:]} on the other"
    waiting, seen = [(new.root, old.root)], {(new.root, old.root)}
    while waiting:
        pair = waiting.pop()
        why, inner = _compare(new, old, *pair)
        if why:
            return why
        budget.step(1 + len(inner) + len(new.messages[pair[0]].field) + len(old.messages[pair[1]].field))
        waiting += [each for each in dict.fromkeys(inner) if each not in seen]
        seen.update(inner)
    return ""


def _compare(new: _Definition, old: _Definition, new_name: str, old_name: str) -> tuple[str, list[tuple[str, str]]]:
    """Return why one message cannot read the other, empty if it can, and the messages in them that it has to read."""
    inner: list[tuple[str, str]] = []
    written = {field.number: field for field in old.messages[old_name].field}
    for field in new.messages[new_name].field:
        other = written.get(field.number)
        if other is None:
            if field.label == _F.LABEL_REQUIRED:
                return f"{new_name[1:]}.{field.name} is required and was not written", inner
            continue
        if not _same_wire(field.type, other.type):
            return f"field {field.number} of {new_name[1:]} changes its type", inner
        if field.type in (_F.TYPE_MESSAGE, _F.TYPE_GROUP):
            inner.append((field.type_name, other.type_name))
        if field.label == _F.LABEL_REQUIRED and other.label != _F.LABEL_REQUIRED:
            return f"{new_name[1:]}.{field.name} becomes required", inner
    return "", inner


def _same_wire(one: int, other: int) -> bool:
    return one == other or any(one in group and other in group for group in _GROUPS)


def _parse(data: bytes) -> _Definition:
    definition = read_definition(data, "protobuf")
    try:
        files = FileDescriptorSet.FromString(base64.b64decode(definition["fileDescriptorSet"], validate=True))
        root = "." + definition["rootMessageTypeName"]
    except (ValueError, KeyError, TypeError, DecodeError) as error:
        why = repr(error)[:REASON_CHARACTERS_MAX]
        raise IncompatibleSchemaError(f"the protobuf schema is invalid: {why}", field="schema") from error
    messages: dict[str, DescriptorProto] = {}
    for file in files.file:
        _collect(f".{file.package}" if file.package else "", list(file.message_type), messages)
    values = sum(1 + len(message.field) + len(message.enum_type) for message in messages.values())
    if values > VALUES_MAX:
        raise too_complex("has too many messages and fields", f"{VALUES_MAX} together")
    for name, message in messages.items():
        for field in message.field:
            if field.type in (_F.TYPE_MESSAGE, _F.TYPE_GROUP) and field.type_name not in messages:
                raise IncompatibleSchemaError(
                    f"{name[1:]} uses {field.type_name}, which is not defined", field="schema"
                )
    if root not in messages:
        raise IncompatibleSchemaError(f"the definition lacks its root message {root[1:]}", field="schema")
    return _Definition(root, messages)


def _collect(prefix: str, found: list[DescriptorProto], messages: dict[str, DescriptorProto]) -> None:
    for message in found:
        name = f"{prefix}.{message.name}"
        if len(name) > NAME_CHARACTERS_MAX:
            raise too_complex("has a message whose full name is too long", f"{NAME_CHARACTERS_MAX} characters")
        messages[name] = message
        _collect(name, list(message.nested_type), messages)
