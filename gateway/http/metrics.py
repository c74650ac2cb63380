"""The gateway's counters in Prometheus' text format, and the middleware that counts requests.

Each app has its own registry, so nothing is global.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from heliograph.base.guard.memory import budget, memory
from heliograph.base.version import heliograph_version

REST = "rest"
WEBSOCKET = "websocket"
EVENTS = "events"


class GatewayMetrics:
    """Counters of requests, messages and sessions since this process started."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        built = Gauge("heliograph_build_info", "1, with the version of the code", ["version"], registry=self.registry)
        built.labels(heliograph_version()).set(1)
        used = Gauge("heliograph_gateway_memory_bytes", "Memory of the process", registry=self.registry)
        used.set_function(lambda: memory().used)
        allowed = Gauge(
            "heliograph_gateway_memory_budget_bytes",
            "Memory that the process may use, with all parts in it",
            registry=self.registry,
        )
        allowed.set_function(budget)
        self.requests = Counter(
            "heliograph_gateway_http_requests",
            "HTTP requests answered",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._produced = self._by_transport("messages_produced", "Messages confirmed as stored")
        self._produced_bytes = self._by_transport("bytes_produced", "Payload bytes of messages stored")
        self._failed = self._by_transport("messages_failed", "Messages that could not be stored")
        self._delivered = self._by_transport("messages_delivered", "Messages handed to consumers and readers")
        self._delivered_bytes = self._by_transport("bytes_delivered", "Payload bytes handed to consumers and readers")
        self._acknowledged = self._by_transport("messages_acknowledged", "Acknowledgements confirmed as durable")
        self.sessions = Gauge(
            "heliograph_gateway_sessions",
            "Sessions open now",
            ["kind"],
            registry=self.registry,
        )
        self.frame_errors = Counter(
            "heliograph_gateway_bad_frames", "WebSocket frames answered with an error", registry=self.registry
        )

    def _by_transport(self, name: str, text: str) -> dict[str, Counter]:
        # One child for each transport, looked up once: a labels() call on every message would cost more than inc().
        family = Counter(f"heliograph_gateway_{name}", text, ["transport"], registry=self.registry)
        return {transport: family.labels(transport) for transport in (REST, WEBSOCKET, EVENTS)}

    def produced(self, transport: str, messages: int, size: int) -> None:
        """Count messages, of ``size`` payload bytes in total, as stored."""
        self._produced[transport].inc(messages)
        self._produced_bytes[transport].inc(size)

    def failed(self, transport: str, messages: int = 1) -> None:
        """Count messages that were refused or whose outcome is unknown."""
        self._failed[transport].inc(messages)

    def delivered(self, transport: str, messages: int, size: int) -> None:
        """Count messages, of ``size`` payload bytes in total, as delivered."""
        self._delivered[transport].inc(messages)
        self._delivered_bytes[transport].inc(size)

    def acknowledged(self, transport: str, messages: int) -> None:
        """Count acknowledgements that the broker confirmed."""
        self._acknowledged[transport].inc(messages)

    def text(self) -> bytes:
        """Return the exposition that a Prometheus server scrapes."""
        return generate_latest(self.registry)

    def totals(self) -> dict[str, float]:
        """Return each message counter summed over the transports, for the status page."""
        families = {
            "produced": self._produced,
            "producedBytes": self._produced_bytes,
            "failed": self._failed,
            "delivered": self._delivered,
            "deliveredBytes": self._delivered_bytes,
            "acknowledged": self._acknowledged,
        }
        return {name: sum(_value(child) for child in family.values()) for name, family in families.items()}


def _value(counter: Counter) -> float:
    return next(sample.value for metric in counter.collect() for sample in metric.samples)


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
