"""The operations on schemas, the same on every broker."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.actors.broker.namespaces.policies import effective
from heliograph.actors.broker.schema.registry import StoredSchema
from heliograph.base.errors import BadRequestError, IncompatibleSchemaError
from heliograph.base.guard.json_text import parse_json
from heliograph.metadata.model import Policies
from heliograph.operations.schemas import SchemaOperations
from heliograph.protocol.schema import SchemaInfo, SchemaType, check_size
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]
_LENGTH = struct.Struct(">i")
_FIELDS = {"name", "type", "schema", "data", "properties"}


class SchemaAdminService(SchemaOperations):
    """The operations on schemas, over the schema registry."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    @override
    async def get(self, topic: str, version: int | None = None) -> Json:
        return _shown(await self._context.schemas.get(TopicName.parse(topic), version))

    @override
    async def versions(self, topic: str) -> list[Json]:
        return [_shown(stored) for stored in await self._context.schemas.versions(TopicName.parse(topic))]

    @override
    async def put(self, topic: str, schema: Mapping[str, Any]) -> int:
        name, policies = await self._policies(topic)
        return await self._context.schemas.add(name, _read(schema), policies, is_admin=True)

    @override
    async def check(self, topic: str, schema: Mapping[str, Any]) -> Json:
        name, policies = await self._policies(topic)
        answer: Json = {"compatibility": True, "strategy": policies.schema_compatibility, "reason": ""}
        try:
            await self._context.schemas.check(name, _read(schema), policies)
        except IncompatibleSchemaError as error:
            answer |= {"compatibility": False, "reason": str(error)}
        return answer

    @override
    async def version_of(self, topic: str, schema: Mapping[str, Any]) -> int | None:
        return await self._context.schemas.version_of(TopicName.parse(topic), _read(schema))

    @override
    async def delete(self, topic: str) -> int:
        return await self._context.schemas.delete(TopicName.parse(topic))

    async def _policies(self, topic: str) -> tuple[TopicName, Policies]:
        name = TopicName.parse(topic)
        catalog = self._context.catalog
        overrides = (await catalog.topic_policies(name)).overrides
        return name, effective(await catalog.policies(name), overrides)


def _read(wanted: Mapping[str, Any]) -> SchemaInfo:
    unknown = set(wanted) - _FIELDS
    if unknown or not isinstance(wanted.get("type"), str):
        raise BadRequestError("a schema has a type and a definition", field="schema", limit=", ".join(sorted(_FIELDS)))
    properties = wanted.get("properties") or {}
    if not isinstance(properties, dict) or not all(isinstance(text, str) for text in properties.values()):
        raise BadRequestError("the properties of a schema are an object of text values", field="properties")
    data = _data(wanted)
    kind = SchemaType.named(wanted["type"])
    if kind is SchemaType.KEY_VALUE and "data" not in wanted:
        data = _key_value(data)
    schema = SchemaInfo(kind, data, str(wanted.get("name") or ""), properties)
    check_size(schema)
    return schema


def _data(wanted: Mapping[str, Any]) -> bytes:
    if "data" in wanted:
        try:
            return base64.b64decode(wanted["data"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise BadRequestError(f"the definition is not in base64: {error}", field="data") from error
    text = wanted.get("schema", "")
    if not isinstance(text, str):
        raise BadRequestError("the definition must be text", field="schema")
    return text.encode()


def _key_value(data: bytes) -> bytes:
    """Return the stored form of a key-value definition given as JSON with ``key`` and ``value``."""
    try:
        pair = parse_json(data, "the key-value schema", "schema")
        halves = [pair[side] for side in ("key", "value")]
    except (KeyError, TypeError) as error:
        raise BadRequestError("a key-value schema is an object with key and value", field="schema") from error
    packed = b""
    for half in halves:
        raw = half.encode() if isinstance(half, str) else json.dumps(half).encode()
        packed += _LENGTH.pack(len(raw)) + raw
    return packed


def _shown(stored: StoredSchema) -> Json:
    schema = stored.schema
    return {
        "version": stored.version,
        "type": schema.type.name,
        "name": schema.name,
        "timestamp": stored.created_ms,
        "schema": schema.data.decode(errors="replace"),
        "data": base64.b64encode(schema.data).decode(),
        "properties": dict(schema.properties),
    }
