"""What every endpoint of one app shares: the clients it was made from, its limits and its counters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends
from starlette.requests import HTTPConnection

from gateway.config import GatewayConfig
from gateway.errors import TooManySessionsError
from gateway.metrics import GatewayMetrics
from gateway.ports import Admin, Client, ClusterView
from gateway.rest_consumers import RestConsumers
from gateway.rest_producers import RestProducers

SWEEP_SECONDS = 0.5  # how often idle REST sessions and unacknowledged messages are looked for

_log = logging.getLogger(__name__)


class SessionSlots:
    """Counts WebSocket sessions against their bound."""

    def __init__(self, sessions_max: int, metrics: GatewayMetrics) -> None:
        self._max = sessions_max
        self._open = 0
        self._metrics = metrics

    @contextlib.contextmanager
    def taken(self, kind: str) -> Iterator[None]:
        """Hold one slot for the length of a session.

        Raises:
            TooManySessionsError: all slots are taken.
        """
        if self._open >= self._max:
            raise TooManySessionsError(
                f"{self._open} WebSocket sessions are open: close some, or raise websocket_sessions_max",
                field="websocket_sessions_max",
                limit=f"{self._max} sessions",
            )
        gauge = self._metrics.sessions.labels(kind)
        self._open += 1
        gauge.inc()
        try:
            yield
        finally:
            self._open -= 1
            gauge.dec()


@dataclass
class Services:
    """The shared parts of one app."""

    client: Client
    admin: Admin
    cluster: ClusterView
    config: GatewayConfig
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    started: float = field(default_factory=time.monotonic)
    status: tuple[float, asyncio.Future[dict[str, Any]]] | None = None  # when the last status was asked for, and it

    def __post_init__(self) -> None:
        self.slots = SessionSlots(self.config.websocket_sessions_max, self.metrics)
        self.producers = RestProducers(self.client, self.admin, self.config)
        self.consumers = RestConsumers(self.client, self.admin, self.config)

    async def sweep(self) -> None:
        """Close what is idle and hand out again what was not acknowledged in time, for as long as the app runs."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep_once(time.monotonic())

    async def sweep_once(self, now: float) -> None:
        """One round. A failure is logged: it must not end the sweep of all others; the next round meets it again."""
        for part in (self.producers.expire, self.consumers.expire):
            try:
                await part(now)
            except Exception:
                _log.exception("sweep of idle REST sessions failed")

    async def close(self) -> None:
        """Close every REST session. The clients belong to whoever made them."""
        await self.consumers.close()
        await self.producers.close()


async def _services(connection: HTTPConnection) -> Services:
    services = connection.app.state.services
    assert isinstance(services, Services), "create_app sets the services"
    return services


ServicesDep = Annotated[Services, Depends(_services)]
