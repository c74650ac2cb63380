"""Pulsar's administrative REST interface for the schema of a topic."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.requests import Request

from heliograph.base.errors import NotFoundError
from heliograph.gateway.admin.routes import json_object
from heliograph.gateway.services import ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.gateway.shapes.topics import PersistentTopicInUrl

SCHEMA_BODY_BYTES_MAX = 1 << 20
TOPIC = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
_TEXT_TYPES = {"AVRO", "JSON", "PROTOBUF", "PROTOBUF_NATIVE"}

router = APIRouter(
    tags=["schemas"],
    responses={
        404: {"model": ErrorBody, "description": "No such topic, schema or version"},
        409: {"model": ErrorBody, "description": "It must not follow the schema that is there"},
    },
)
_schema_body = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


@router.get(f"{TOPIC}/schema", summary="The newest schema")
async def newest(services: ServicesDep, topic: PersistentTopicInUrl) -> dict[str, Any]:
    """Return `{"version", "type", "timestamp", "data", "properties"}`; `data` is empty where the type has no text."""
    return _shown(await services.admin.schemas.get(str(topic)))


@router.get(f"{TOPIC}/schema/{{version}}", summary="One version of the schema")
async def one_version(services: ServicesDep, topic: PersistentTopicInUrl, version: int) -> dict[str, Any]:
    """Return a version in the form of the newest schema."""
    return _shown(await services.admin.schemas.get(str(topic), version))


@router.get(f"{TOPIC}/schemas", summary="All versions of the schema")
async def all_versions(services: ServicesDep, topic: PersistentTopicInUrl) -> dict[str, Any]:
    """Return every version since the last deletion, oldest first."""
    return {"getSchemaResponses": [_shown(schema) for schema in await services.admin.schemas.versions(str(topic))]}


@router.get(f"{TOPIC}/metadata", summary="The versions of the schema, without their definitions")
async def metadata(services: ServicesDep, topic: PersistentTopicInUrl) -> dict[str, Any]:
    """Return `{"info": entry, "index": [entry, ...]}`: the newest version, and all of them, oldest first.

    An entry is `{"version", "ledgerId", "entryId", "timestamp", "type"}`; both ids are -1, since definitions are stored
    in the metadata store.
    """
    versions = await services.admin.schemas.versions(str(topic))
    if not versions:
        raise NotFoundError(f"{topic} has no schema", field="topic")
    place = {"ledgerId": -1, "entryId": -1}
    index = [{**{name: one[name] for name in ("version", "timestamp", "type")}, **place} for one in versions]
    return {"info": index[-1], "index": index}


@router.post(f"{TOPIC}/schema", summary="Add a version of the schema", openapi_extra=_schema_body)
async def put(request: Request, services: ServicesDep, topic: PersistentTopicInUrl) -> dict[str, Any]:
    """Add `{"type": "AVRO", "schema": "...", "properties": {}}`; return its version."""
    number = await services.admin.schemas.put(str(topic), await _wanted(request))
    return {"version": {"version": number}}


@router.post(f"{TOPIC}/compatibility", summary="Whether a schema could follow", openapi_extra=_schema_body)
async def compatibility(request: Request, services: ServicesDep, topic: PersistentTopicInUrl) -> dict[str, Any]:
    """Return `{"compatibility": true, "schemaCompatibilityStrategy": "FULL"}`, and the reason when it is false."""
    answer = await services.admin.schemas.check(str(topic), await _wanted(request))
    shown = {"compatibility": answer["compatibility"], "schemaCompatibilityStrategy": answer["strategy"]}
    return shown if answer["compatibility"] else shown | {"reason": answer["reason"]}


@router.post(f"{TOPIC}/version", summary="Which version a schema is", openapi_extra=_schema_body)
async def version_of(request: Request, services: ServicesDep, topic: PersistentTopicInUrl) -> dict[str, Any]:
    """Return `{"version": n}`, -1 when no version of the topic has this definition."""
    found = await services.admin.schemas.version_of(str(topic), await _wanted(request))
    return {"version": -1 if found is None else found}


@router.delete(f"{TOPIC}/schema", summary="Delete the schema")
async def delete(
    services: ServicesDep, topic: PersistentTopicInUrl, force: Annotated[bool, Query()] = False
) -> dict[str, Any]:
    """Delete the topic's schema; its versions are not found any more, by messages either. Return `{"version": n}`."""
    return {"version": await services.admin.schemas.delete(str(topic))}


async def _wanted(request: Request) -> dict[str, Any]:
    body = await json_object(request, SCHEMA_BODY_BYTES_MAX)
    return {name: body[name] for name in ("type", "schema", "data", "name", "properties") if name in body}


def _shown(schema: dict[str, Any]) -> dict[str, Any]:
    data = schema["schema"]
    if schema["type"] == "KEY_VALUE":
        data = _pair(base64.b64decode(schema["data"]))
    elif schema["type"] not in _TEXT_TYPES:
        data = ""
    return {
        "version": schema["version"],
        "type": schema["type"],
        "timestamp": schema["timestamp"],
        "data": data,
        "properties": schema["properties"],
    }


def _pair(data: bytes) -> str:
    """Return a key-value definition as Pulsar shows it: JSON with ``key`` and ``value``."""
    halves, rest = [], data  # each half is its length in 4 bytes, then its text
    for _ in range(2):
        length = max(int.from_bytes(rest[:4], "big", signed=True), 0)
        halves.append(rest[4 : 4 + length].decode(errors="replace"))
        rest = rest[4 + length :]
    return json.dumps(dict(zip(("key", "value"), halves, strict=True)))
