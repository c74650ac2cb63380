"""Text, JSON and Avro as values."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.base.guard.json_text import parse_json
from heliograph.client.schemas.decoding import checked, decoder_of, tagged
from heliograph.client.schemas.reading_back import avro_difference, difference, fault_of
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.protocol.schema import SchemaInfo, SchemaType

REASON_CHARACTERS_MAX = 1_000

_INT = "heliograph-int"  # a logical type by which ints that are none in other languages are found
_JSON_TYPES = (str, int, float, bool, type(None))  # of values without parts


def definition_bytes(definition: Mapping[str, Any] | str) -> bytes:
    """Return the text of a record's definition as the registry stores it.

    Raises:
        BadRequestError: It is not JSON, or not of a record.
    """
    try:
        read = (
            parse_json(definition, "the definition", "schema", is_stored=True)
            if isinstance(definition, str)
            else definition
        )
        packed = json.dumps(read, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise BadRequestError(f"the definition is not JSON: {error}", field="schema") from error
    if not isinstance(read, Mapping) or read.get("type") != "record":
        raise BadRequestError("the definition is not of an Avro record", field="schema")
    return packed


@dataclasses.dataclass(frozen=True, slots=True)
class TextSchema(Schema[str]):
    """Text as UTF-8, of Pulsar's type STRING."""

    @property
    @override
    def info(self) -> SchemaInfo:
        return SchemaInfo(SchemaType.STRING, name="String")

    @override
    def encode(self, value: Any) -> bytes:
        if not isinstance(value, str):
            raise BadRequestError(f"a value must be str, not {type(value).__name__}", field="value")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise BadRequestError(f"the text cannot be encoded: {error}", field="value") from error

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        decode = decoder_of(written or self.info, self.info)
        return lambda value: decode(value, None)


class JsonSchema(Schema[Any]):
    """JSON: values are what ``json`` makes of their text, such as dicts.

    Args:
        definition: An Avro record that describes the fields, as a mapping or as JSON text. The topic's registry stores
            it as Pulsar's type JSON, and refuses what is not compatible; single values are not compared with it. None
            registers nothing.

    Raises:
        BadRequestError: The definition is not of a record.
    """

    def __init__(self, definition: Mapping[str, Any] | str | None = None) -> None:
        self._definition = b"" if definition is None else definition_bytes(definition)

    @property
    @override
    def info(self) -> SchemaInfo | None:
        if not self._definition:
            return None
        return SchemaInfo(SchemaType.JSON, self._definition, json.loads(self._definition).get("name", ""))

    @override
    def encode(self, value: Any) -> bytes:
        try:
            packed = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
            read = json.loads(packed)
            fault = None if read == value else difference(value, read)
        except (TypeError, ValueError, RecursionError) as error:
            fault = None if isinstance(error, RecursionError) else fault_of(value, _JSON_TYPES)
            raise BadRequestError(fault or f"the value has no form in JSON: {error}", field="value") from error
        if fault is not None:
            raise BadRequestError(fault, field="value")
        return packed

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        if self.info is None:
            return checked(json.loads)
        decode = decoder_of(written or self.info, self.info)
        return lambda value: decode(value, None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonSchema) and other._definition == self._definition

    def __hash__(self) -> int:
        return hash(self._definition)

    def __repr__(self) -> str:
        return f"JsonSchema({self._definition.decode()})"


class AvroSchema(Schema[dict[str, Any]]):
    """Dicts in Avro's binary form, of Pulsar's type AVRO. It needs the package fastavro.

    A message is decoded with the version of the schema that it was written with, into the fields of this one. A value
    that this would not give back as it was is refused: 0.1 in a float, microseconds in milliseconds. Numbers, text and
    bytes are also taken for what Avro stores as those, such as milliseconds for a ``timestamp-millis``.

    Args:
        definition: The Avro record, as a mapping or as JSON text.

    Raises:
        BadRequestError: The definition is not of a valid record.
        ResourceError: fastavro is not installed; names what installs it.
    """

    def __init__(self, definition: Mapping[str, Any] | str) -> None:
        self._definition = definition_bytes(definition)
        self._encode = _avro_encoder(self._definition)

    @property
    @override
    def info(self) -> SchemaInfo:
        return SchemaInfo(SchemaType.AVRO, self._definition, json.loads(self._definition).get("name", ""))

    @override
    def encode(self, value: Any) -> bytes:
        try:
            return self._encode(value)
        except Exception as error:  # fastavro raises whatever a foreign value leads it to
            why = str(error)[:REASON_CHARACTERS_MAX]  # it may quote the value
            name = _misfit(self._definition, value)
            if name is not None and not re.search(rf"\b{re.escape(name)}\b", why):
                why = f"{name}: {why}"
            raise BadRequestError(f"the value does not fit its Avro schema: {why}", field="value") from error

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        decode = decoder_of(written or self.info, self.info)
        return lambda value: decode(value, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return AvroSchema, (self._definition.decode(),)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSchema) and other._definition == self._definition

    def __hash__(self) -> int:
        return hash(self._definition)

    def __repr__(self) -> str:
        return f"AvroSchema({self._definition.decode()})"


def _avro_encoder(definition: bytes) -> Callable[[Any], bytes]:
    from heliograph.base.version import extra_required

    with extra_required():
        import fastavro
        from fastavro.read import LOGICAL_READERS
    try:
        parsed = fastavro.parse_schema(json.loads(definition))
    except Exception as error:
        raise BadRequestError(f"the definition is no Avro record: {error}", field="schema") from error

    readable = fastavro.parse_schema(tagged(json.loads(definition), {"int": _INT}))
    LOGICAL_READERS[f"int-{_INT}"] = lambda value, *_: value if -(1 << 31) <= value < 1 << 31 else None

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, parsed, value, strict_allow_default=True)
        except Exception:  # it has names that are no fields, or lacks what may be null
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, value)
        out.seek(0)
        read = fastavro.schemaless_reader(out, readable, None)
        fault = None if _are_equal(value, read) else avro_difference(value, read)
        if fault is not None:
            raise ValueError(fault)
        return out.getvalue()

    return encode


def _are_equal(value: Any, read: Any) -> bool:
    try:
        return bool(value == read)
    except ValueError:  # it holds an array
        return False


def _misfit(definition: bytes, value: Any) -> str | None:
    """Return the first field of a record that cannot be written and read back alone; None if that is not known."""
    whole = json.loads(definition)
    for field in whole["fields"] if isinstance(value, Mapping) else ():
        name = field["name"]
        try:
            encode = _avro_encoder(json.dumps({**whole, "fields": [field]}).encode())
        except BadRequestError:
            continue  # it names a type of another field
        try:
            encode({name: value[name]} if name in value else {})
        except Exception:
            return str(name)
    return None
