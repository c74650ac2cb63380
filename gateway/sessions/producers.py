"""Producers that stay open between REST requests, so that a request costs no handshake with a broker."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple

from typing_extensions import override

from heliograph.client.aio.producer.tracing import TracingInterceptor
from heliograph.client.schemas.schema import Schema
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.ports import ProducerPort
from heliograph.gateway.sessions.agents import Agents
from heliograph.gateway.sessions.leases import Leases
from heliograph.tracing import tracer as tracing


class ProducerKind(NamedTuple):
    """How a producer is opened: its name (None: the broker chooses one), the client's name of a codec, its schema."""

    name: str | None = None
    compression: str = "none"
    schema: Schema | None = None


Key = tuple[str, ProducerKind, str]  # topic, kind, role of the caller


class RestProducers(Leases[Key, ProducerPort]):
    """The open REST producers."""

    what, unit, advice = "REST producers", "producers", "publish to fewer topics at once"
    setting, idle_setting = "rest_producers_max", "rest_producer_idle_ms"

    def __init__(self, agents: Agents, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config, clock)
        self._agents = agents

    def lease(self, caller: Caller, topic: str, kind: ProducerKind) -> AbstractAsyncContextManager[ProducerPort]:
        """Return a producer of an existing topic, held open until the block ends.

        Args:
            caller: whose role it has; callers of one role share it.

        Raises:
            TopicNotFoundError: the topic does not exist; REST produce does not create it.
            IncompatibleSchemaError: the topic does not take the schema.
            TooManySessionsError: every producer is in use, or the caller uses as many as it may.
        """
        return self._leased(caller, (topic, kind, caller.role))

    async def drop(self, topic: str) -> None:
        """Close the producers of a topic and of its partitions, once no request holds them."""
        await self._close_where(lambda key, _: key[0] == topic or key[0].startswith(f"{topic}-partition-"))

    @override
    async def _open(self, caller: Caller, key: Key) -> ProducerPort:
        topic, kind, _ = key
        # Raises TopicNotFoundError: opening a producer would create the topic.
        await self._agents.admin_of(caller).partitions(topic)
        options: dict[str, Any] = {} if kind.name is None else {"name": kind.name}
        if kind.schema is not None:
            options["schema"] = kind.schema
        if tracing.active is not None:  # of this process, so it was on before the first request
            options["interceptors"] = (TracingInterceptor(topic),)
        return await self._agents.client_of(caller.principal).producer(
            topic, **options, compression=kind.compression, rejoin="when_sending", batch_by_key=True
        )

    @override
    async def _close_handle(self, handle: ProducerPort) -> None:
        await handle.close()
