"""A middleware that counts HTTP requests by method, route and status."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.gateway.http.metrics import GatewayMetrics

NO_ROUTE = "none"  # one label for all unknown paths and methods, whose number is unbounded
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})


class RequestCounter:
    """ASGI middleware that counts the requests of an app."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app, then count the request under the status of its answer."""
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
