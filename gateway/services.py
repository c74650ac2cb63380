"""The parts that all endpoints of one app share: its clients, sessions, limits and counters."""

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

from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.metrics import GatewayMetrics
from heliograph.gateway.ports import AdminPort, ClientPort, ClusterView
from heliograph.gateway.sessions.consumers import RestConsumers
from heliograph.gateway.sessions.producers import RestProducers

SWEEP_SECONDS = 0.5  # how often idle REST sessions and overdue messages are looked for

log = logging.getLogger(__name__)


class SessionSlots:
    """A counter of WebSocket sessions with a bound (I15)."""

    def __init__(self, sessions_max: int, metrics: GatewayMetrics) -> None:
        self._max = sessions_max
        self._open = 0
        self._metrics = metrics

    @contextlib.contextmanager
    def taken(self, kind: str) -> Iterator[None]:
        """Hold one slot for the duration of a session.

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

    client: ClientPort
    admin: AdminPort
    cluster: ClusterView
    config: GatewayConfig
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)
    started: float = field(default_factory=time.monotonic)
    status: tuple[float, asyncio.Future[dict[str, Any]]] | None = (
        None  # when the last status was requested, and the status
    )

    def __post_init__(self) -> None:
        self.slots = SessionSlots(self.config.websocket_sessions_max, self.metrics)
        self.producers = RestProducers(self.client, self.admin, self.config)
        self.consumers = RestConsumers(self.client, self.admin, self.config)

    async def sweep(self) -> None:
        """Close idle sessions and redeliver overdue messages, for as long as the app runs."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            await self.sweep_once(time.monotonic())

    async def sweep_once(self, now: float) -> None:
        """Run one round. A failure is logged and does not end the sweep; the next round tries again."""
        for part in (self.producers.expire, self.consumers.expire):
            try:
                await part(now)
            except Exception:
                log.exception("sweep of idle REST sessions failed")

    async def close(self) -> None:
        """Close every REST session. The clients stay open."""
        await self.consumers.close()
        await self.producers.close()


async def _services(connection: HTTPConnection) -> Services:
    services = connection.app.state.services
    assert isinstance(services, Services), "create_app sets the services"
    return services


ServicesDep = Annotated[Services, Depends(_services)]
