"""What the administrative routes share: paths, the form of an answer without a body, bodies that are objects."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from heliograph.gateway.errors import MalformedJsonError
from heliograph.gateway.shapes.bodies import ADMIN_BODY_BYTES_MAX, json_body
from heliograph.gateway.shapes.url_segments import decoded

TENANT = "/admin/v2/tenants/{tenant}"
NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
NO_CONTENT: dict[str, Any] = {"status_code": 204, "response_class": Response}


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


async def json_object(request: Request, bytes_max: int = ADMIN_BODY_BYTES_MAX) -> dict[str, Any]:
    """Return a body that has to be a JSON object.

    Raises:
        MalformedJsonError: it is not.
    """
    found = await json_body(request, bytes_max)
    if not isinstance(found, dict):
        raise MalformedJsonError("the body must be a JSON object", field="body")
    return found
