"""The compatibility of schemas: whether data written under one can be read under another (pure).

The strategies are Pulsar's. Under BACKWARD, readers of the new schema can read what was written under the old one;
under FORWARD it is the other way round; FULL is both. The TRANSITIVE ones compare with every earlier version, the
others with the latest only.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import avro.errors
import avro.schema

from heliograph.actors.broker.schema.avro_compatibility import avro_can_read
from heliograph.actors.broker.schema.check_budget import (
    NAME_CHARACTERS_MAX,
    REASON_CHARACTERS_MAX,
    CheckBudget,
    read_definition,
    too_complex,
)
from heliograph.actors.broker.schema.protobuf_compatibility import check_protobuf, protobuf_can_read
from heliograph.base.errors import IncompatibleSchemaError
from heliograph.protocol.schema import SchemaInfo, SchemaType, without_logical_types

_AVRO_TYPES = {SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF}
_LENGTH = struct.Struct(">i")
_NAMES = ("name", "namespace")


def check_definition(schema: SchemaInfo) -> None:
    """Raise IncompatibleSchemaError unless the definition is valid for its type.

    This may take a second, as ``check_compatible`` may take several: neither is called on an event loop.
    """
    if schema.type in _AVRO_TYPES:
        _avro(schema.data)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        check_protobuf(schema.data)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in _halves(schema):
            check_definition(part)
    elif schema.type in (SchemaType.NONE, SchemaType.AUTO_CONSUME):
        raise IncompatibleSchemaError(f"{schema.type.name} is not a schema that can be stored", field="schema")


def check_compatible(new: SchemaInfo, existing: Sequence[SchemaInfo], strategy: str) -> None:
    """Raise IncompatibleSchemaError with the reason unless the strategy allows ``new`` after ``existing``.

    Args:
        new: a schema that ``check_definition`` has passed, or that is stored.
        existing: the earlier versions, oldest first.
        strategy: one of Pulsar's names, see ``actors/broker/namespaces/policies.py``.

    Raises:
        SchemaTooComplexError: the comparison would take more than a ``CheckBudget``; the strategy was not applied.
    """
    if strategy == "ALWAYS_COMPATIBLE" or not existing:
        return
    if strategy == "ALWAYS_INCOMPATIBLE":
        raise IncompatibleSchemaError("the topic's schema is fixed (ALWAYS_INCOMPATIBLE)", field="schema")
    compared = existing if strategy.endswith("_TRANSITIVE") else existing[-1:]
    direction = strategy.removesuffix("_TRANSITIVE")
    budget = CheckBudget()
    for old in compared:
        if direction in ("BACKWARD", "FULL"):
            _check_reads(new, old, strategy, budget)
        if direction in ("FORWARD", "FULL"):
            _check_reads(old, new, strategy, budget)
        budget.check_time()


def _check_reads(reader: SchemaInfo, writer: SchemaInfo, strategy: str, budget: CheckBudget) -> None:
    why = _cannot_read(reader, writer, budget)
    if why:
        why = why[:REASON_CHARACTERS_MAX]
        raise IncompatibleSchemaError(f"the schemas are not compatible ({strategy}): {why}", field="schema")


def _cannot_read(reader: SchemaInfo, writer: SchemaInfo, budget: CheckBudget) -> str:
    if reader.type is not writer.type:
        return f"the type is {reader.type.name} on one side and {writer.type.name} on the other"
    if reader.type in _AVRO_TYPES:
        return avro_can_read(_avro(reader.data, is_stored=True), _avro(writer.data, is_stored=True), budget)
    if reader.type is SchemaType.PROTOBUF_NATIVE:
        return protobuf_can_read(reader.data, writer.data, budget)
    if reader.type is SchemaType.KEY_VALUE:
        halves = zip(("key", "value"), _halves(reader), _halves(writer), strict=True)
        reasons = [f"{side}: {why}" for side, one, other in halves if (why := _cannot_read(one, other, budget))]
        return "; ".join(reasons)
    return ""


def _avro(data: bytes, *, is_stored: bool = False) -> avro.schema.Schema:
    definition = read_definition(data, "Avro", is_stored=is_stored)
    _check_names(definition)
    try:
        # Logical types decide nothing, and the library warns of those that it lacks.
        text = json.dumps(without_logical_types(definition))
        return avro.schema.parse(text, validate_names=False)  # older Java clients have "$" in names
    except (ValueError, avro.errors.AvroException, RecursionError) as error:
        why = str(error)[:REASON_CHARACTERS_MAX]
        raise IncompatibleSchemaError(f"the Avro schema is invalid: {why}", field="schema") from error


def _check_names(value: Any) -> None:
    """Raise SchemaTooComplexError for a long name: each full name repeats those around it."""
    if isinstance(value, dict):
        for name in _NAMES:
            if isinstance(value.get(name), str) and len(value[name]) > NAME_CHARACTERS_MAX:
                raise too_complex(f"has a {name} that is too long", f"{NAME_CHARACTERS_MAX} characters")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_names(inner)


def _halves(schema: SchemaInfo) -> tuple[SchemaInfo, SchemaInfo]:
    """Return the schemas of the key and of the value of a KEY_VALUE schema."""
    parts, rest = [], schema.data
    for side in ("key", "value"):
        if len(rest) < _LENGTH.size:
            raise IncompatibleSchemaError("the key-value schema is invalid: it ends early", field="schema")
        length = max(_LENGTH.unpack_from(rest)[0], 0)  # -1: no data
        data, rest = rest[_LENGTH.size : _LENGTH.size + length], rest[_LENGTH.size + length :]
        if len(data) < length:
            raise IncompatibleSchemaError("the key-value schema is invalid: it ends early", field="schema")
        kind = schema.properties.get(f"{side}.schema.type", "BYTES")
        name = schema.properties.get(f"{side}.schema.name", "")
        kind_of_half = SchemaType.__members__.get(kind, SchemaType.NONE)
        if kind_of_half is SchemaType.KEY_VALUE:
            raise IncompatibleSchemaError("a key-value schema inside another is not supported", field="schema")
        parts.append(SchemaInfo(kind_of_half, data, name))
    return parts[0], parts[1]
