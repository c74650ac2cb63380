"""The middleware that makes a span of each request while tracing is on."""

from __future__ import annotations

from collections.abc import Awaitable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.gateway.http.metrics import METHODS, NO_ROUTE
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import TRACEPARENT, TraceContext, parsed
from heliograph.tracing.tracer import SpanKind

_HEADER = TRACEPARENT.encode()
_FAILED = 500  # the first status that is a failure of ours


class RequestTracing:
    """ASGI middleware that makes a span of each HTTP request whose header ``traceparent`` is sampled; what the request
    publishes belongs to it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Run the app, within a span if the caller has one."""
        tracer = tracing.active
        if tracer is None or scope["type"] != "http":
            return self._app(scope, receive, send)
        parent = _parent(scope)
        if parent is None or not tracer.follows(parent):
            return self._app(scope, receive, send)
        return self._followed(tracer, parent, scope, receive, send)

    async def _followed(
        self, tracer: tracing.Tracer, parent: TraceContext, scope: Scope, receive: Receive, send: Send
    ) -> None:
        method = scope["method"] if scope["method"] in METHODS else NO_ROUTE
        with tracer.within(method, SpanKind.SERVER, parent, {"http.request.method": method}) as span:

            async def watched(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set("http.response.status_code", message["status"])
                    if message["status"] >= _FAILED:
                        span.set("error.type", str(message["status"]))
                await send(message)

            try:
                await self._app(scope, receive, watched)
            finally:
                span.set("http.route", getattr(scope.get("route"), "path", NO_ROUTE))


def _parent(scope: Scope) -> TraceContext | None:
    given = [value for name, value in scope["headers"] if name == _HEADER]
    return parsed(given[0].decode("latin-1")) if len(given) == 1 else None
