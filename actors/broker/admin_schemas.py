"""Administration of schemas: plain data in and out, the same on every broker."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Mapping
from typing import Any

from actors.broker.broker_context import BrokerContext
from actors.broker.policies import effective
from actors.broker.schema_registry import StoredSchema
from heliograph.errors import BadRequestError, IncompatibleSchemaError
from heliograph.protocol.schema import SCHEMA_BYTES_MAX, SchemaInfo, SchemaType
from heliograph.protocol.topic_name import TopicName
from metadata.model import Policies

Json = dict[str, Any]
_LENGTH = struct.Struct(">i")
_FIELDS = {"name", "type", "schema", "data", "properties"}


class SchemaAdmin:
    """Definitions are given and shown as text where their type is text, and in base64 (``data``) in any case."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context

    async def get(self, topic: str, version: int | None = None) -> Json:
        """One version, the newest by default.

        Raises:
            NotFoundError: the topic has no schema, or not that version.
        """
        return _shown(await self._context.schemas.get(TopicName.parse(topic), version))

    async def versions(self, topic: str) -> list[Json]:
        """Every version since the last deletion, oldest first."""
        return [_shown(stored) for stored in await self._context.schemas.versions(TopicName.parse(topic))]

    async def put(self, topic: str, schema: Mapping[str, Any]) -> int:
        """Make a definition the topic's newest version, unless it has it already; returns the version.

        Args:
            schema: ``type`` with ``schema`` (text) or ``data`` (base64), and optionally ``name`` and ``properties``.

        Raises:
            BadRequestError: it is malformed.
            IncompatibleSchemaError: it must not follow what is there.
        """
        name, policies = await self._policies(topic)
        return await self._context.schemas.add(name, _read(schema), policies, is_admin=True)

    async def check(self, topic: str, schema: Mapping[str, Any]) -> Json:
        """Whether ``put`` would take a definition, by which strategy, and why not."""
        name, policies = await self._policies(topic)
        answer: Json = {"compatibility": True, "strategy": policies.schema_compatibility, "reason": ""}
        try:
            await self._context.schemas.check(name, _read(schema), policies)
        except IncompatibleSchemaError as error:
            answer |= {"compatibility": False, "reason": str(error)}
        return answer

    async def version_of(self, topic: str, schema: Mapping[str, Any]) -> int | None:
        """Which version a definition is; None when it is none of the topic's."""
        return await self._context.schemas.version_of(TopicName.parse(topic), _read(schema))

    async def delete(self, topic: str) -> int:
        """Have the topic start anew without a schema; returns the version that stands for this.

        Raises:
            NotFoundError: it has none.
        """
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
        raise BadRequestError("the properties of a schema are texts by name", field="properties")
    data = _data(wanted)
    if len(data) > SCHEMA_BYTES_MAX:
        raise BadRequestError(f"a schema of {len(data)} bytes", field="schema", limit=f"{SCHEMA_BYTES_MAX} bytes")
    kind = SchemaType.named(wanted["type"])
    if kind is SchemaType.KEY_VALUE and "data" not in wanted:
        data = _key_value(data)
    return SchemaInfo(kind, data, str(wanted.get("name") or ""), properties)


def _data(wanted: Mapping[str, Any]) -> bytes:
    if "data" in wanted:
        try:
            return base64.b64decode(wanted["data"], validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise BadRequestError(f"the definition is not in base64: {error}", field="data") from error
    text = wanted.get("schema", "")
    if not isinstance(text, str):
        raise BadRequestError("the definition is a text", field="schema")
    return text.encode()


def _key_value(data: bytes) -> bytes:
    """The stored form of a pair given as JSON with ``key`` and ``value``."""
    try:
        pair = json.loads(data)
        halves = [pair[side] for side in ("key", "value")]
    except (ValueError, KeyError, TypeError) as error:
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
