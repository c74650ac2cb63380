"""Protobuf messages as trees of fields, made from descriptors and encoded without protobuf's checks. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from tests.fuzz import values

VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)
FIELD_NUMBER_MAX = (1 << 29) - 1
Tree = list["Field"]
Pool = Callable[[Random, FieldDescriptor], Any]  # a sensible value of a field, None for any

_F = FieldDescriptor
_FIXED64 = {_F.TYPE_DOUBLE, _F.TYPE_FIXED64, _F.TYPE_SFIXED64}
_FIXED32 = {_F.TYPE_FLOAT, _F.TYPE_FIXED32, _F.TYPE_SFIXED32}


@dataclass
class Field:
    """One field as it is on the wire. ``value`` is an int, bytes, or the fields of a message."""

    number: int
    wire: int
    value: int | bytes | Tree


def tree_of(random: Random, descriptor: Any, pool: Pool, *, share: float = 0.5, depth: int = 4) -> Tree:
    """Return a message that a client could send: required fields are there, of the others a share."""
    tree: Tree = []
    for field in descriptor.fields:
        if not field.is_required and (random.random() > share or not depth):
            continue
        for _ in range(random.randint(0, 3) if field.is_repeated else 1):
            tree.append(_field(random, field, pool, share, depth))
    return tree


def of_message(message: Any) -> Tree:
    tree: Tree = []
    for field, value in message.ListFields():
        for item in value if field.is_repeated else [value]:
            if field.type == _F.TYPE_MESSAGE:
                tree.append(Field(field.number, BYTES, of_message(item)))
            else:
                tree.append(_plain(field, item))
    return tree


def encode(tree: Tree) -> bytes:
    """Return the bytes of the fields, in their order."""
    parts = []
    for field in tree:
        parts.append(varint(field.number << 3 | field.wire))
        value = encode(field.value) if isinstance(field.value, list) else field.value
        if isinstance(value, bytes):
            parts.append(varint(len(value)) + value if field.wire == BYTES else value)
        elif field.wire == FIXED64:
            parts.append(struct.pack("<Q", value % (1 << 64)))
        elif field.wire == FIXED32:
            parts.append(struct.pack("<I", value % (1 << 32)))
        elif field.wire == BYTES:
            parts.append(varint(value % 200))  # a length without what it announces
        else:
            parts.append(varint(value))
    return b"".join(parts)


def varint(value: int) -> bytes:
    """Return a number as protobuf writes it; a negative one takes ten bytes."""
    value %= 1 << 64
    packed = bytearray()
    while value > 0x7F:
        packed.append(value & 0x7F | 0x80)
        value >>= 7
    packed.append(value)
    return bytes(packed)


def mutated(random: Random, tree: Tree) -> Tree:
    """Return the message with one to three fields that no encoder writes. The argument may be changed."""
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        places = _places(tree)
        if not places:
            return [Field(random.randint(1, 60), VARINT, values.number(random))]
        within, at = random.choice(places)
        field = within[at]
        match random.randrange(9):
            case 0:
                del within[at]
            case 1:
                within.insert(random.randrange(len(within) + 1), field)
            case 2:
                within.insert(at, Field(random.choice((0, 99, FIELD_NUMBER_MAX)), random.randrange(8), b"\x01"))
            case 3:
                within[at] = Field(field.number, random.randrange(8), field.value)
            case 4 if isinstance(field.value, list):
                within[at] = Field(field.number, BYTES, values.octets(random))
            case 5 if field.wire == VARINT:
                within[at] = Field(field.number, VARINT, b"\xff" * random.randint(9, 11) + b"\x01")  # too long
            case 6:
                within[at : at + 1] = [field] * random.choice((2, 3, 1_000))
            case _:
                within[at] = _extreme(random, field)
    return tree


def _extreme(random: Random, field: Field) -> Field:
    if field.wire == BYTES and not isinstance(field.value, list):
        return Field(field.number, BYTES, values.octets(random))
    if isinstance(field.value, list):
        return Field(field.number, BYTES, [])
    return Field(field.number, field.wire, values.number(random))


def _places(tree: Tree) -> list[tuple[Tree, int]]:
    found = [(tree, at) for at in range(len(tree))]
    for field in tree[:50]:
        if isinstance(field.value, list):
            found += _places(field.value)
    return found


def _field(random: Random, field: FieldDescriptor, pool: Pool, share: float, depth: int) -> Field:
    if field.type == _F.TYPE_MESSAGE:
        return Field(field.number, BYTES, tree_of(random, field.message_type, pool, share=share, depth=depth - 1))
    value = pool(random, field)
    return _plain(field, _any(random, field) if value is None else value)


def _any(random: Random, field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return random.choice(list(field.enum_type.values_by_number))
    if field.type == _F.TYPE_BOOL:
        return random.random() < 0.5
    if field.type == _F.TYPE_STRING:
        return values.text(random).encode("utf-8", "replace").decode()
    if field.type == _F.TYPE_BYTES:
        return values.octets(random)
    if field.type in _FIXED64:
        return random.choice(values.FLOATS)
    return random.choice((0, 1, 2, 3, random.choice(values.UNSIGNED)))


def _plain(field: FieldDescriptor, value: Any) -> Field:
    if field.type in _FIXED64:
        bits = struct.unpack("<Q", struct.pack("<d", value))[0] if isinstance(value, float) else int(value)
        return Field(field.number, FIXED64, bits)
    if field.type in _FIXED32:
        return Field(field.number, FIXED32, struct.unpack("<I", struct.pack("<f", value))[0])
    if isinstance(value, str):
        return Field(field.number, BYTES, value.encode())
    if isinstance(value, bytes):
        return Field(field.number, BYTES, value)
    return Field(field.number, VARINT, int(value))
