"""A middleware that refuses requests of foreign web pages and host names, answers preflights, and completes headers.

It is the first that sees a request, so nothing is done on behalf of a page that is refused. It costs one pass over the
request's headers.
"""

from __future__ import annotations

from collections.abc import Iterable

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.base.addressing.web_hosts import FOREIGN_SITES
from heliograph.base.errors import HeliographError
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import ForeignOriginError, WrongHostError, refuse_early
from heliograph.gateway.http.origins import AllowedOrigins

Headers = list[tuple[bytes, bytes]]

PREFLIGHT_SECONDS = 600  # for which a browser remembers what a page of a configured origin may send
SHOWN_MAX = 200  # characters of a refused header that the answer repeats
_CONTENT_POLICY = b"content-security-policy"
_ALWAYS: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_DEFAULT_POLICY = (_CONTENT_POLICY, b"default-src 'none'; frame-ancestors 'none'")  # of all that is no page
_READ_ELSEWHERE = b"Retry-After, WWW-Authenticate, X-Pulsar-Message-ID, X-Pulsar-num-batch-message"
_WANTED = frozenset((b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"access-control-request-method"))


class RequestGuard:
    """ASGI middleware in front of everything that acts."""

    def __init__(self, app: ASGIApp, config: GatewayConfig) -> None:
        self._app = app
        self._allowed = AllowedOrigins(config)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an acceptable request on; answer a preflight; refuse the rest with a reason."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        found = _wanted(scope["headers"])
        try:
            origin = self._checked(found, is_link=scope.get("method", "GET") in ("GET", "HEAD"))
        except HeliographError as error:
            await refuse_early(error, scope, receive, _completed(send, []))
            return
        if scope["type"] == "websocket":
            await self._app(scope, receive, _completed(send, []))  # the headers of a refused upgrade
            return
        cors = self._cors(origin)
        sender = _completed(send, cors)
        if scope["method"] == "OPTIONS" and origin and b"access-control-request-method" in found:
            await Response(status_code=204, headers=_PREFLIGHT)(scope, receive, sender)
        else:
            await self._app(scope, receive, sender)

    def _checked(self, found: dict[bytes, str], is_link: bool) -> str:
        """Return the origin of a page that the configuration names, empty for all others.

        Args:
            is_link: whether a link can send the request; other methods are those of a form or a script.

        Raises:
            WrongHostError: the request is for a host that this gateway is not.
            ForeignOriginError: the request is of a page of another origin.
        """
        host, origin = found.get(b"host"), found.get(b"origin")
        if host is not None and not self._allowed.takes_host(host):
            raise WrongHostError(
                f"this gateway is not {host[:SHOWN_MAX]!r}: use its address, or name the host in allowed_hosts",
                field="Host",
            )
        if origin is None:
            site, mode = found.get(b"sec-fetch-site"), found.get(b"sec-fetch-mode")
            if site in FOREIGN_SITES and not (is_link and mode == "navigate"):
                raise ForeignOriginError("a page of another site may only link to this gateway", field="Sec-Fetch-Site")
            return ""
        if self._allowed.is_configured(origin):
            return origin
        if host is None or not self._allowed.is_own(origin, host):
            raise ForeignOriginError(
                f"pages of {origin[:SHOWN_MAX]!r} may not use this gateway: name the origin in allowed_origins",
                field="Origin",
            )
        return ""

    def _cors(self, origin: str) -> Headers:
        """Return the headers by which a browser lets a page of a configured origin read the answer."""
        if not self._allowed.is_shared:
            return []
        if not origin:
            return [(b"vary", b"Origin")]
        if not self._allowed.allows_credentials(origin):
            return [(b"access-control-allow-origin", b"*"), (b"access-control-expose-headers", _READ_ELSEWHERE)]
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-allow-credentials", b"true"),
            (b"access-control-expose-headers", _READ_ELSEWHERE),
            (b"vary", b"Origin"),
        ]


_PREFLIGHT = {
    "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, DELETE, OPTIONS",
    "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
    "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
}


def _wanted(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, str]:
    """Return the headers that are looked at. Of a name that is sent twice both values are kept, which match nothing."""
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in _WANTED:
            text = value.decode("latin-1")
            found[name] = f"{found[name]}, {text}" if name in found else text
    return found


def _completed(send: Send, more: Headers) -> Send:
    """Return a ``send`` that adds the headers of every answer; an answer's own policy for scripts stands."""

    async def complete(message: Message) -> None:
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            headers = message["headers"]
            policy = [] if any(name == _CONTENT_POLICY for name, _ in headers) else [_DEFAULT_POLICY]
            message["headers"] = [*headers, *_ALWAYS, *policy, *more]
        await send(message)

    return complete
