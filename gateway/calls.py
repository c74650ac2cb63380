"""The operations of the table by their own names: MessagePack both ways, for callers that are not in Ray, or JSON.

``heliograph/client/admin/over_http.py`` is the other side of the former, and the console of the latter. A foreign web
page can send neither media type without asking first.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable
from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from heliograph.base.errors import BadRequestError, HeliographError, NotFoundError
from heliograph.client import discovery
from heliograph.client.admin.over_http import MEDIA_TYPE, PATH
from heliograph.gateway.errors import row_of
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import JSON, aside, json_body, media_type_of, read_body
from heliograph.metadata import codec
from heliograph.operations.answer import packed_failure, packed_value, plain_record, unpacked_arguments
from heliograph.operations.table import OPERATIONS

CALL_BODY_BYTES_MAX = 8 << 20  # of a request # I15
METHODS_OF_ALL_PARTS = frozenset(("log_chunk",))
CHANGES_OF_PARTS = frozenset(("pause",))  # which of them are noted in the audit log
METHODS_OF_PARTS = {
    discovery.AUDITOR: frozenset(
        (
            "describe_ledger",
            "pause",
            "repair_status",
            "repair_tasks",
        )
    ),
    discovery.BOOKIE_PREFIX: frozenset(("statistics",)),
}

router = APIRouter(include_in_schema=False)


@router.post(PATH + "/operations/{name}")
async def operation(request: Request, services: ServicesDep, name: str) -> Response:
    """Run an operation; the caller needs the right that the table says."""
    found = OPERATIONS.get(name)
    if found is None:
        raise NotFoundError(f"there is no operation {name[:100]!r}", field="operation")
    is_json = _is_json(request)
    arguments = await _arguments(request, services, is_json=is_json)
    if not isinstance(arguments, dict):
        raise BadRequestError("the arguments of an operation are a map", field="arguments")
    return await _answer(services.admin.call(found, arguments), is_json=is_json)


@router.post(PATH + "/parts")
async def parts(request: Request, services: ServicesDep) -> Response:
    """Return the names of the cluster's actors, which superusers may see."""
    services.require_superuser("parts")
    is_json = _is_json(request)
    await _arguments(request, services, is_json=is_json)
    return await _answer(services.parts.names(), is_json=is_json)


@router.post(PATH + "/report")
async def report(request: Request, services: ServicesDep) -> Response:
    """Return the report of the cluster as its record in metadata, which superusers may see."""
    services.require_superuser("report")
    is_json = _is_json(request)
    await _arguments(request, services, is_json=is_json)

    async def record() -> bytes:
        return codec.encode(await services.report())

    return await _answer(record(), is_json=is_json)


@router.post(PATH + "/parts/{part}/{method}")
async def part_method(request: Request, services: ServicesDep, part: str, method: str) -> Response:
    """Call a part, for which the caller has to be a superuser."""
    services.require_superuser(method[:100], part)
    kind = discovery.BOOKIE_PREFIX if part.startswith(discovery.BOOKIE_PREFIX) else part
    if method not in METHODS_OF_ALL_PARTS | METHODS_OF_PARTS.get(kind, frozenset()):
        raise NotFoundError(f"{part[:100]!r} has no method {method[:100]!r} for this", field="method")
    is_json = _is_json(request)
    arguments = await _arguments(request, services, is_json=is_json)
    if not isinstance(arguments, list):
        raise BadRequestError("the arguments of a method are a list", field="arguments")
    return await _answer(_noted(services, part, method, arguments), is_json=is_json)


async def _noted(services: Services, part: str, method: str, arguments: list[Any]) -> Any:
    """Call a part; what changes something is noted in the audit log, whether it succeeds or not."""
    if method not in CHANGES_OF_PARTS:
        return await services.parts.ask(part, method, arguments)
    with services.noting_change(method, part, {str(n): value for n, value in enumerate(arguments)}):
        return await services.parts.ask(part, method, arguments)


async def _arguments(request: Request, services: Services, *, is_json: bool) -> Any:
    """Return a caller's arguments, if they are for this cluster. In JSON the cluster need not be named: the console is
    of the gateway that it asks.

    Raises:
        BadRequestError: it is no map in MessagePack or JSON.
        NotFoundError: it is for another cluster, whose port this one has now.
    """
    if is_json:
        found = await json_body(request, CALL_BODY_BYTES_MAX)
        if not isinstance(found, dict):
            raise BadRequestError("the body must be a JSON object", field="body")
    else:
        body = await read_body(request, CALL_BODY_BYTES_MAX, (MEDIA_TYPE,))
        found = {"namespace": None} | await aside(len(body), partial(unpacked_arguments, body, "body"))
    if found.get("namespace", services.config.ray_namespace) != services.config.ray_namespace:
        raise NotFoundError("this is the gateway of another cluster", field="namespace")
    return found.get("arguments")


async def _answer(work: Awaitable[Any], *, is_json: bool) -> Response:
    if is_json:
        value = await work
        return Response(await asyncio.to_thread(_json_of, value), media_type=JSON)
    try:
        value = await work
    except HeliographError as error:
        return Response(packed_failure(error), row_of(error).http, media_type=MEDIA_TYPE)
    return Response(await asyncio.to_thread(packed_value, value), media_type=MEDIA_TYPE)


def _is_json(request: Request) -> bool:
    return media_type_of(request.headers) == JSON


def _json_of(value: Any) -> bytes:
    """Return an answer as JSON; bytes become base64."""

    def plain(inner: Any) -> Any:
        return base64.b64encode(inner).decode() if isinstance(inner, bytes) else plain_record(inner)

    return json.dumps({"value": value}, default=plain).encode()
