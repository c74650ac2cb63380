"""Shared parts of the administrative routes: paths, the form of an answer without a body, bodies that are objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from heliograph.base.errors import BadRequestError, MalformedJsonError
from heliograph.gateway.shapes.bodies import ADMIN_BODY_BYTES_MAX, json_body
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.protocol.topic_name import TopicName

HASH_MAX = 0xFFFFFFFF  # the highest hash of a topic
TENANT = "/admin/v2/tenants/{tenant}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
NO_CONTENT: dict[str, Any] = {"status_code": 204, "response_class": Response}
OR_NO_CONTENT: dict[str, Any] = {"responses": {204: {"description": "Nothing is set"}}}
TEXT_OR_NO_CONTENT: dict[str, Any] = {"response_class": PlainTextResponse, **OR_NO_CONTENT}


def web_address(request: Request) -> str:
    """Return ``host:port`` of the gateway as the caller reached it."""
    url = request.url
    return f"{url.hostname}:{url.port or (443 if url.scheme == 'https' else 80)}"


def web_scheme(request: Request) -> str:
    """Return ``http`` or ``https``, by which the caller reached the gateway."""
    return request.url.scheme


def full_name(tenant: str, namespace: str) -> str:
    """Return ``tenant/namespace`` of two URL segments."""
    return f"{decoded(tenant)}/{decoded(namespace)}"


async def _namespace_in_url(tenant: str, namespace: str) -> str:
    return full_name(tenant, namespace)


NamespaceInUrl = Annotated[str, Depends(_namespace_in_url)]  # as ``full_name`` has it


def hash_range(bundle: str) -> range:
    """Return the hashes of a bundle's name, such as ``0x40000000_0x80000000``; the last bundle includes its end.

    Raises:
        BadRequestError: the name is malformed.
    """
    low, separator, high = decoded(bundle).partition("_")
    try:
        first, end = int(low, 16), int(high, 16)
    except ValueError:
        separator, first, end = "", 0, 0
    if not separator or not 0 <= first < end <= HASH_MAX:
        raise BadRequestError(
            f"{decoded(bundle)!r} is not the name of a bundle", field="bundle", limit="such as 0x40000000_0x80000000"
        )
    return range(first, HASH_MAX + 1 if end == HASH_MAX else end)


def hash_of(topic: str) -> int:
    """Return the hash that places a topic in a bundle."""
    return TopicName.parse(topic).bundle_hash


def in_bundle(bundle: str) -> Callable[[str], bool]:
    """Return whether a topic is in a bundle, as a function of its name. Raises as ``hash_range``."""
    hashes = hash_range(bundle)
    return lambda topic: hash_of(topic) in hashes


def is_excluded(body: dict[str, Any]) -> bool:
    """Return whether a body with a message id says to begin behind it; Pulsar's tools write either name."""
    return body.get("isExcluded") is True or body.get("excluded") is True


def text_values(found: Any) -> dict[str, str]:
    """Return properties whose values are texts; numbers and truth values become texts.

    Raises:
        BadRequestError: a value is an object or a list, or the properties are no object.
    """
    if not isinstance(found, dict) or any(isinstance(value, dict | list) for value in found.values()):
        raise BadRequestError("properties are an object of texts", field="properties")
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None
    }


async def json_object(request: Request, bytes_max: int = ADMIN_BODY_BYTES_MAX) -> dict[str, Any]:
    """Return a body that has to be a JSON object.

    Raises:
        MalformedJsonError: it is not.
    """
    found = await json_body(request, bytes_max)
    if not isinstance(found, dict):
        raise MalformedJsonError("the body must be a JSON object", field="body")
    return found
