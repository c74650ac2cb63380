"""Counts of the gateway, and the middleware that counts requests.

Each app has counts of its own, so nothing is global.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.base.guard.memory import budget, memory
from heliograph.base.guard.watchdog import running_loop_watch
from heliograph.base.tls.contexts import ServerTls
from heliograph.base.version import heliograph_version
from heliograph.client.discovery import GATEWAY
from heliograph.metrics.cluster import GATEWAY_METRICS
from heliograph.metrics.metric import Histogram, Sample, merged
from heliograph.metrics.parts import of_loop

REST = "rest"
WEBSOCKET = "websocket"
EVENTS = "events"
# Counters by transport, with their names on the status page.
_TOTALS = {
    "produced": "messages_produced",
    "producedBytes": "produced_bytes",
    "failed": "messages_failed",
    "delivered": "messages_delivered",
    "deliveredBytes": "delivered_bytes",
    "acknowledged": "messages_acknowledged",
}


class GatewayMetrics:
    """Counters of requests, messages and sessions since this process started."""

    def __init__(self) -> None:
        self._values: dict[str, dict[tuple[str, ...], int]] = {metric.name: {} for metric in GATEWAY_METRICS}
        self._latencies: dict[str, Histogram] = {}  # of requests, by route
        self.tls: ServerTls | None = None  # of the listener
        for name in _TOTALS.values():  # at 0, so that the first one is seen as growth
            self._values[f"heliograph_gateway_{name}_total"] = {(each,): 0 for each in (REST, WEBSOCKET, EVENTS)}
        self._values["heliograph_gateway_requests_total"] = {("answered",): 0, ("failed",): 0}

    def add(self, name: str, *labels: str, count: int = 1) -> None:
        """Add to a metric of ``GATEWAY_METRICS``, named without what all of them begin with."""
        values = self._values[f"heliograph_gateway_{name}"]
        values[labels] = values.get(labels, 0) + count

    def answered(self, route: str, seconds: float) -> None:
        """Count the time until an HTTP request's answer began."""
        latency = self._latencies.get(route)
        if latency is None:
            latency = self._latencies[route] = Histogram()
        latency.observe(seconds)

    def produced(self, transport: str, messages: int, size: int) -> None:
        """Count messages, of ``size`` payload bytes in total, as stored."""
        self.add("messages_produced_total", transport, count=messages)
        self.add("produced_bytes_total", transport, count=size)

    def failed(self, transport: str, messages: int = 1) -> None:
        """Count messages that were refused or whose outcome is unknown."""
        self.add("messages_failed_total", transport, count=messages)

    def delivered(self, transport: str, messages: int, size: int) -> None:
        """Count messages, of ``size`` payload bytes in total, as delivered."""
        self.add("messages_delivered_total", transport, count=messages)
        self.add("delivered_bytes_total", transport, count=size)

    def replied(self, outcome: str) -> None:
        """Count a request that was ``answered``, or whose reply ``failed`` or did not come."""
        self.add("requests_total", outcome)

    def acknowledged(self, transport: str, messages: int) -> None:
        self.add("messages_acknowledged_total", transport, count=messages)

    def series(self) -> dict[str, list[Sample]]:
        found: dict[str, list[Sample]] = {name: list(values.items()) for name, values in self._values.items()}
        found["heliograph_gateway_memory_bytes"] = [((), memory().used)]
        found["heliograph_gateway_memory_budget_bytes"] = [((), budget())]
        found["heliograph_gateway_http_latency_seconds"] = [((at,), one.told()) for at, one in self._latencies.items()]
        ends = 0.0 if self.tls is None else self.tls.ends_at
        found["heliograph_gateway_certificate_end_timestamp_seconds"] = [((), ends)]
        found |= of_loop(GATEWAY, running_loop_watch())
        found["heliograph_build_info"] = [((GATEWAY, heliograph_version()), 1)]
        return found

    def sums(self) -> dict[str, Any]:
        """Return each metric of the gateway summed over its labels, for its history; latencies as one histogram."""
        latencies, series = "heliograph_gateway_http_latency_seconds", self.series()
        numbers = series.keys() & {metric.name for metric in GATEWAY_METRICS} - {latencies}
        sums: dict[str, Any] = {name: sum(float(value) for _, value in series[name]) for name in numbers}
        return sums | {latencies: merged(self._latencies.values())}

    def totals(self) -> dict[str, int]:
        """Return each message counter summed over the transports, for the status page."""
        return {key: sum(self._values[f"heliograph_gateway_{name}_total"].values()) for key, name in _TOTALS.items()}


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
        status, began, took = 500, time.perf_counter(), 0.0

        async def watched(message: Message) -> None:
            nonlocal status, took
            if message["type"] == "http.response.start":
                status, took = message["status"], time.perf_counter() - began
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            route = scope.get("route")
            path = getattr(route, "path", NO_ROUTE)
            method = scope["method"] if scope["method"] in METHODS else NO_ROUTE
            self._metrics.add("http_requests_total", method, path, str(status))
            self._metrics.answered(path, took or time.perf_counter() - began)
