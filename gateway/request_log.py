"""Counts HTTP requests by method, route and status."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.metrics import GatewayMetrics

NO_ROUTE = "none"  # one label for all unknown paths and methods: their number is not ours to bound
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class RequestCounter:
    """ASGI middleware around the app."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and count when the answer has a status."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", NO_ROUTE)
            method = scope["method"] if scope["method"] in METHODS else NO_ROUTE
            self._metrics.requests.labels(method, path, str(status)).inc()
