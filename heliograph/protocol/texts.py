"""The texts of a protobuf message. Protobuf does not check those of proto2: one that is not UTF-8 is read as bytes.

The fields that can hold a text are found once for each type of message, so that messages without any cost nothing.
"""

from __future__ import annotations

import functools
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import Message

Descriptor = Any  # protobuf has one class in Python and one in C, and its stubs name both


def fault_of_texts(message: Message) -> str:
    """Return the name of a field, of the message or of one inside it, whose text is not UTF-8; "" if there is none."""
    for name, is_repeated, inner in _fields_with_texts(message.DESCRIPTOR):
        if inner is not None:
            if is_repeated:
                found: Any = getattr(message, name)
            else:
                found = (getattr(message, name),) if message.HasField(name) else ()
            for each in found:
                if fault := fault_of_texts(each):
                    return f"{name}.{fault}"
        elif is_repeated:
            if not all(type(text) is str for text in getattr(message, name)):
                return name
        elif type(getattr(message, name)) is not str:
            return name
    return ""


def holds_texts(descriptor: Descriptor) -> bool:
    return bool(_fields_with_texts(descriptor))


@functools.cache
def _fields_with_texts(descriptor: Descriptor) -> tuple[tuple[str, bool, Descriptor | None], ...]:
    """Return name, whether it is repeated, and the type of the message in it, of each field that holds texts."""
    repeated = names_of_repeated(descriptor)
    return tuple(
        (field.name, field.name in repeated, field.message_type)
        for field in descriptor.fields
        if _holds_texts(field, set())
    )


def names_of_repeated(descriptor: Descriptor) -> set[str]:
    """Return the names of the repeated fields; their own property for it is not the same in protobuf 6 and 7."""
    described = DescriptorProto()
    descriptor.CopyToProto(described)
    return {field.name for field in described.field if field.label == FieldDescriptorProto.LABEL_REPEATED}


def _holds_texts(field: FieldDescriptor, seen: set[str]) -> bool:
    """``seen`` are the types of messages on the way here: a message may hold one of its own type."""
    if field.message_type is None or field.message_type.full_name in seen:
        return field.type == FieldDescriptor.TYPE_STRING
    seen.add(field.message_type.full_name)
    return any(_holds_texts(inner, seen) for inner in field.message_type.fields)
