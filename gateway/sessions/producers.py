"""Producers that stay open between REST requests, so that a request costs no handshake with a broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heliograph.client.aio.producer.tracing import TracingInterceptor
from heliograph.client.schemas.schema import Schema
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.http.limits import Shares
from heliograph.gateway.ports import ProducerPort
from heliograph.gateway.sessions.agents import Agents
from heliograph.tracing import tracer as tracing


class ProducerKind(NamedTuple):
    """How a producer is opened: its name (None: the broker chooses one), the client's name of a codec, its schema."""

    name: str | None = None
    compression: str = "none"
    schema: Schema | None = None


Key = tuple[str, ProducerKind, str]  # topic, kind, role of the caller


@dataclass
class _Slot:
    """One producer, possibly still being opened. ``users`` requests hold it now."""

    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    producer: ProducerPort | None = None
    users: int = 0
    last_used: float = 0.0
    owner: Caller | None = None  # who opened it, and counts for it until it is closed


class RestProducers:
    """The open REST producers, at most ``rest_producers_max``; the least recently used is closed first (I15)."""

    def __init__(self, agents: Agents, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._agents = agents
        self._shares = Shares("REST producers", config.rest_producers_per_caller_max, "rest_producers_per_caller_max")
        self._max = config.rest_producers_max
        self._idle_seconds = config.rest_producer_idle_ms / 1000
        self._clock = clock
        self._slots: OrderedDict[Key, _Slot] = OrderedDict()

    @contextlib.asynccontextmanager
    async def lease(self, caller: Caller, topic: str, kind: ProducerKind) -> AsyncIterator[ProducerPort]:
        """Return a producer of an existing topic, held open until the block ends.

        Args:
            caller: whose role it has; callers of one role share it.

        Raises:
            TopicNotFoundError: the topic does not exist; REST produce does not create it.
            IncompatibleSchemaError: the topic does not take the schema.
            TooManySessionsError: every producer is in use, or the caller uses as many as it may.
        """
        key = (topic, kind, caller.role)
        slot = await self._slot(key, caller)
        slot.users += 1
        try:
            async with slot.opening:
                if slot.producer is None:
                    slot.producer = await self._open(caller, topic, kind)
            yield slot.producer
        finally:
            slot.users -= 1
            slot.last_used = self._clock()
            if slot.producer is None:
                self._forget(key, slot)
            elif slot.users == 0 and self._slots.get(key) is not slot:
                await slot.producer.close()  # dropped while it was held

    async def drop(self, topic: str) -> None:
        """Close the producers of a topic and of its partitions, once no request holds them."""
        keys = [key for key in self._slots if key[0] == topic or key[0].startswith(f"{topic}-partition-")]
        await self._close([(key, self._slots[key]) for key in keys])

    async def expire(self, now: float) -> None:
        """Close the producers that no request used for the configured time."""
        idle = [
            (key, slot)
            for key, slot in self._slots.items()
            if slot.users == 0 and now - slot.last_used >= self._idle_seconds
        ]
        await self._close(idle)

    async def close(self) -> None:
        """Close all producers."""
        await self._close(list(self._slots.items()))

    def __len__(self) -> int:
        return len(self._slots)

    async def _slot(self, key: Key, caller: Caller) -> _Slot:
        slot = self._slots.get(key)
        if slot is None:
            if self._shares.is_full(caller):
                await self._close_idle(lambda slot: slot.owner == caller)
            if len(self._slots) >= self._max:
                await self._make_room()
            slot = self._slots.get(key)
        if slot is None:
            self._shares.take(caller)
            slot = self._slots[key] = _Slot(last_used=self._clock(), owner=caller)
        self._slots.move_to_end(key)
        return slot

    async def _close_idle(self, fits: Callable[[_Slot], bool]) -> bool:
        """Close the producer used longest ago of those that fit and are not in use; return whether there is one."""
        for key, slot in self._slots.items():
            if slot.users == 0 and fits(slot):
                await self._close([(key, slot)])
                return True
        return False

    async def _make_room(self) -> None:
        if await self._close_idle(lambda _: True):
            return
        raise TooManySessionsError(
            f"all {self._max} REST producers are in use: publish to fewer topics at once, or raise rest_producers_max",
            field="rest_producers_max",
            limit=f"{self._max} producers",
        )

    async def _open(self, caller: Caller, topic: str, kind: ProducerKind) -> ProducerPort:
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

    async def _close(self, slots: list[tuple[Key, _Slot]]) -> None:
        for key, slot in slots:
            self._forget(key, slot)
        for _, slot in slots:
            if slot.users == 0 and slot.producer is not None:
                await slot.producer.close()

    def _forget(self, key: Key, slot: _Slot) -> None:
        if self._slots.get(key) is slot:
            del self._slots[key]
            if slot.owner is not None:
                self._shares.give_back(slot.owner)
