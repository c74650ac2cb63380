"""A middleware that finds out who sends a request, before anything is done for it."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable
from urllib.parse import parse_qs

from starlette.types import ASGIApp, Receive, Scope, Send

from heliograph.auth.authenticator import Authenticator
from heliograph.auth.principal import INTERNAL, METHOD_BASIC, METHOD_TLS, METHOD_TOKEN, Credentials
from heliograph.base.errors import AuthenticationError
from heliograph.gateway.errors import refuse_early
from heliograph.gateway.http.caller import address_of, set_caller

CERTIFICATE = "certificate"  # in the state of a request: what the caller's end of TLS presented
RAY_EVENTS = "/ray/events"  # where Ray's agents post what happened
EVENTS_SEGMENTS = 6  # of the path of events
CONSOLE = "/console/"  # begins the paths of the console's scripts and styles
# Paths that anyone may read: whether the gateway works, and pages and texts that are the same in every installation.
OPEN = frozenset(
    (
        "/",
        "/health",
        "/openapi.json",
        "/docs",
        "/docs/start.js",
        "/docs/swagger-ui-bundle.js",
        "/docs/swagger-ui.css",
        "/docs/favicon-32x32.png",
    )
)


class Door:
    """ASGI middleware that notes the caller of each request, and refuses one that cannot show who it is."""

    def __init__(self, app: ASGIApp, authenticator: Authenticator) -> None:
        self._app = app
        self._authenticator = authenticator
        self._is_enabled = authenticator.config.is_enabled

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass a request on with its caller, or answer 401."""
        if scope["type"] in ("http", "websocket"):
            if self._is_enabled and not (scope["type"] == "http" and _is_open(scope["path"])):
                return self._authenticated(scope, receive, send)
            set_caller(scope, INTERNAL)
        return self._app(scope, receive, send)

    async def _authenticated(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            principal = await self._authenticator.authenticate(credentials_of(scope), address_of(scope))
        except AuthenticationError as error:
            await refuse_early(error, scope, receive, send)
            return
        set_caller(scope, principal)
        await self._app(scope, receive, send)


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(CONSOLE)


def credentials_of(scope: Scope) -> Credentials:
    """Return what a request presents: its header, at an upgrade and for events also ``?token=``, else its certificate.

    Raises:
        AuthenticationError: the header has another form, or there are two.
    """
    given = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(given) > 1:
        raise AuthenticationError("there are two headers Authorization")
    if given:
        return _of_header(given[0])
    if _has_no_headers(scope) and (tokens := parse_qs(scope["query_string"]).get(b"token")):
        return Credentials(METHOD_TOKEN, tokens[0])
    certificate = scope.get("state", {}).get(CERTIFICATE)
    return Credentials(METHOD_TLS, certificate=certificate) if certificate else Credentials()


def _has_no_headers(scope: Scope) -> bool:
    """Return whether a caller cannot set headers of the request: a page those of WebSocket and EventSource, Ray any."""
    path: str = scope["path"]
    is_event_stream = path.startswith("/topics/") and path.endswith("/events") and path.count("/") == EVENTS_SEGMENTS
    is_of_ray = path == RAY_EVENTS  # Ray's agents have an address, and no headers
    return scope["type"] == "websocket" or (scope["method"] == "GET" and is_event_stream) or is_of_ray


def _of_header(value: bytes) -> Credentials:
    scheme, _, data = value.strip().partition(b" ")
    match scheme.lower():
        case b"bearer":
            return Credentials(METHOD_TOKEN, data.strip())
        case b"basic":
            try:
                return Credentials(METHOD_BASIC, base64.b64decode(data.strip(), validate=True))
            except (binascii.Error, ValueError) as error:
                raise AuthenticationError("the header Authorization is malformed") from error
    raise AuthenticationError("the header Authorization has neither the scheme Bearer nor Basic")
