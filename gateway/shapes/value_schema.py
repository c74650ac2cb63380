"""The schema that a request or a WebSocket names for its values, as Pulsar's SchemaInfo in JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typing_extensions import override

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.base.guard.json_text import parse_json
from heliograph.client.schemas.decoding import require_same_type
from heliograph.client.schemas.records import AvroSchema, JsonSchema, TextSchema
from heliograph.client.schemas.schema import DecodeValue, Schema
from heliograph.gateway.shapes.avro_cost import AvroCost
from heliograph.gateway.shapes.avro_text import avro_text
from heliograph.gateway.shapes.bodies import ADMIN_VALUES_MAX, VALUES_MAX
from heliograph.gateway.shapes.json_forms import from_base64
from heliograph.protocol.schema import SchemaInfo, SchemaType, check_size

FIELD = "valueSchema"


class ValueSchema(Schema):
    """A schema whose values a client sends as text: UTF-8 for STRING, JSON for JSON and AVRO.

    Producers get payloads that ``payload_of`` has made, and store them as they are; consumers get the same text.
    Schemas that are registered alike are equal, so that requests share a producer.
    """

    def __init__(self, named: TextSchema | JsonSchema | AvroSchema) -> None:
        self._named = named
        self._cost = AvroCost(parse_json(named.info.data, FIELD, FIELD)) if isinstance(named, AvroSchema) else None

    @property
    @override
    def info(self) -> SchemaInfo | None:
        return self._named.info

    @override
    def encode(self, value: Any) -> bytes:
        assert isinstance(value, bytes), "payload_of has made it"
        return value

    @override
    def decoder(self, written: SchemaInfo | None) -> DecodeValue:
        shown = self.info
        if shown is not None and written is not None:
            require_same_type(written, shown)
        return avro_text((written or self._named.info).data, FIELD) if isinstance(self._named, AvroSchema) else bytes

    def renew(self) -> None:
        """Count what values cost from 0 again: they are of another request."""
        if self._cost is not None:
            self._cost.renew()

    def payload_of(self, sent: bytes, field: str) -> bytes:
        """Return the stored payload of a value that a client sent.

        Raises:
            BadRequestError: it does not fit the schema; names the field.
        """
        try:
            if isinstance(self._named, TextSchema):
                sent.decode()
                return sent
            value = parse_json(sent, "it", field, values_max=VALUES_MAX, is_content=True)
            if self._cost is None:
                return sent
            self._cost.check(value, field)
            return self._named.encode(value)
        except BadRequestError as error:
            raise BadRequestError(
                f"{field} does not fit the schema: {error}", field=field, limit=error.limit
            ) from error
        except UnicodeDecodeError as error:
            raise BadRequestError(f"{field} does not fit the schema: {error}", field=field) from error

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, ValueSchema) and other._named == self._named

    @override
    def __hash__(self) -> int:
        return hash(self._named)


_KINDS: dict[str, Callable[[str], TextSchema | JsonSchema | AvroSchema]] = {
    "STRING": lambda _: TextSchema(),
    "JSON": lambda definition: JsonSchema(definition or None),
    "AVRO": AvroSchema,
}


def value_schema(text: str | None) -> ValueSchema | None:
    """Return the schema that a request names; None for bytes.

    Raises:
        BadRequestError: it is not the JSON of a SchemaInfo, or its definition is not one of a record.
        UnsupportedError: values of that type are not taken as text.
    """
    if not text:
        return None
    try:
        given = parse_json(text, FIELD, FIELD)
        kind, definition = str(given["type"]).upper(), str(given.get("schema") or "")
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRequestError(f"{FIELD} is not the JSON of a SchemaInfo", field=FIELD) from error
    if kind in ("BYTES", "NONE"):
        return None
    if kind not in _KINDS:
        raise UnsupportedError(f"schema type {kind} is not supported: encode the payload", field=FIELD)
    try:
        data = from_base64(definition, FIELD)
        check_size(SchemaInfo(SchemaType[kind], data))
        if data:
            parse_json(data, FIELD, FIELD, values_max=ADMIN_VALUES_MAX)
        return ValueSchema(_KINDS[kind](data.decode()))
    except BadRequestError as error:
        raise BadRequestError(f"{FIELD} has no valid definition: {error}", field=FIELD, limit=error.limit) from error
    except UnicodeDecodeError as error:
        raise BadRequestError(f"{FIELD} has no valid definition: {error}", field=FIELD) from error


def readable_schema(text: str | None) -> ValueSchema | None:
    """Return the schema that a consumer or reader names; None for bytes.

    Raises:
        BadRequestError, UnsupportedError: as ``value_schema``, and for values that are not shown as text.
    """
    schema = value_schema(text)
    if schema is not None:
        schema.decoder(None)
    return schema
