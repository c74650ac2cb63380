"""A broker as a Ray actor: lifecycle, administration, metrics. Messages go over its socket."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable
from functools import partial
from typing import Any

from ray.exceptions import RayError, RayTaskError
from ray.util.metrics import Gauge
from typing_extensions import override

from heliograph.actors.broker.admin.forwarding import AdminApi
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from heliograph.auth.principal import Credentials
from heliograph.base.addressing.part_handle import find_part
from heliograph.base.completion import end_task
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.base.interval import until_tick
from heliograph.metrics.broker import BROKER_METRICS

Json = dict[str, Any]

METRICS_SECONDS = 10.0  # Ray exports them as often
FORWARD_SECONDS_MAX = 30.0  # one call at another broker
PEER_CHARACTERS_MAX = 100  # of the address that a caller names


class RayPeer(AdminApi):
    """Another broker, reached through its actor.

    Both calls raise ServiceNotReadyError when the actor is gone or does not answer; its topics go to another broker.
    """

    def __init__(self, ray_namespace: str, actor_name: str) -> None:
        self._ray_namespace = ray_namespace
        self._actor_name = actor_name

    @override
    async def forwarded(self, method: str, arguments: Json) -> Any:
        return await self._call("forwarded", method, arguments)

    @override
    async def asked(self, method: str, arguments: Json) -> Any:
        return await self._call("asked", method, arguments)

    async def _call(self, way: str, method: str, arguments: Json) -> Any:
        try:
            handle = await asyncio.to_thread(find_part, self._actor_name, self._ray_namespace)
            call = getattr(handle, way).remote(method, arguments)
            return await asyncio.wait_for(call, FORWARD_SECONDS_MAX)
        except RayTaskError as error:
            if isinstance(error.cause, HeliographError):
                raise error.cause from error
            raise
        except (RayError, ValueError, TimeoutError) as error:
            raise ServiceNotReadyError(f"broker {self._actor_name} cannot be reached: {error}") from error


class BrokerActor:
    """One broker in its own process.

    Every method but ``admin`` may be called again. A call that failed with advice RETRY or REFRESH, or whose reply was
    lost, may have happened.
    """

    @staticmethod
    def after_end(config: BrokerConfig, metadata_url: str) -> Awaitable[None]:
        """End the session of this broker's last process, which has ended, so that others take its topics over."""
        return BrokerSessions(config, metadata_url).end_predecessor()

    def __init__(self, config: BrokerConfig, metadata_url: str) -> None:
        if not __debug__:
            raise RuntimeError("a broker relies on its assertions: do not start it with -O")
        self._config = config
        self._sessions = BrokerSessions(config, metadata_url, partial(RayPeer, config.ray_namespace))
        self._service_url = ""
        self._starting = asyncio.Lock()
        self._metrics: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"Broker({self._config.broker_id})"

    async def start(self) -> str:
        """Start, unless it is started already; return the service URL as ``service_url`` does.

        Raises:
            ResourceError: the port is taken.
            ConnectionLossError: the metadata store cannot be reached.
        """
        async with self._starting:
            if not self._service_url:
                self._loop = asyncio.get_running_loop()
                self._service_url = await self._sessions.start()
                self._metrics = self._loop.create_task(self._export_metrics())
            return self._service_url

    async def service_url(self) -> str:
        """Return ``pulsar://host:port``, ``pulsar+ssl://`` if the plain port is closed; empty before ``start``."""
        return self._service_url

    async def service_url_tls(self) -> str:
        """Return ``pulsar+ssl://host:port``; empty without TLS and before ``start``."""
        return self._sessions.broker.service_url_tls if self._service_url else ""

    async def stop(self) -> None:
        """Finish pending work and give up every topic. Idempotent."""
        async with self._starting:
            await end_task(self._metrics)
            self._metrics = None
            await self._sessions.stop()
            self._service_url = ""

    async def statistics(self) -> Json:
        """Return this broker's current figures, its totals since the start, and its process's processor seconds."""
        return {**self._sessions.broker.statistics(), "cpu_seconds": time.process_time()}

    async def admin(
        self,
        operation: str,
        arguments: Json,
        credentials: Credentials | None = None,
        original_principal: str = "",
        address: str = "",
    ) -> Any:
        """Run an administrative operation by its name; what needs a topic's owner is forwarded to it.

        The operations, their arguments and errors are those of ``heliograph/operations``, which says which of them may
        be repeated.

        Args:
            credentials: the caller's; None: none.
            original_principal: the role that a proxy speaks for.
            address: the caller's, by its own word, for the logs; a gateway names its client's address.

        Raises:
            AuthenticationError: the credentials are refused; nothing was done.
        """
        broker = self._sessions.broker
        peer = address[:PEER_CHARACTERS_MAX] or "a call through Ray"
        shown = await broker.authenticator.authenticate(credentials or Credentials(), peer)
        principal = await broker.authenticator.authenticate_original(shown, original_principal, peer=peer)
        return await broker.admin.run(operation, arguments, principal, peer)

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """Run a method that another broker forwards to the topic's owner; see ``AdminApi``."""
        return await self._sessions.broker.admin.forwarded(method, arguments)

    async def asked(self, method: str, arguments: Json) -> Any:
        """Run a duty that another broker asks for; see ``AdminApi``."""
        return await self._sessions.broker.admin.asked(method, arguments)

    async def _export_metrics(self) -> None:
        gauges = {metric.key: Gauge(metric.name, tag_keys=("broker",)) for metric in BROKER_METRICS if metric.is_rays}
        tags = {"broker": self._config.broker_id}
        while True:
            with contextlib.suppress(ServiceNotReadyError):
                statistics = self._sessions.broker.statistics()
                for key, gauge in gauges.items():
                    gauge.set(float(statistics[key]), tags)
            await asyncio.sleep(until_tick(METRICS_SECONDS))
