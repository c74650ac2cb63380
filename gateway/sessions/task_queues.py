"""Queues of tasks that stay open between HTTP requests: what submits, watches and cancels their jobs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.http.limits import Shares
from heliograph.gateway.sessions.agents import Agents
from heliograph.tasks.options import TaskOptions
from heliograph.tasks.session import QueueSession

Key = tuple[str, str]  # the queue's topic, the role of the caller


@dataclass
class _OpenQueue:
    """One queue, possibly still being opened. ``users`` requests hold it now."""

    owner: Caller
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    session: QueueSession | None = None
    users: int = 0
    last_used: float = 0.0


class TaskQueues:
    """The open queues, at most ``task_queues_max``; the one that was used longest ago is closed for another (I15)."""

    def __init__(self, agents: Agents, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._agents = agents
        self._config = config
        self._clock = clock
        self._shares = Shares("queues of tasks", config.task_queues_per_caller_max, "task_queues_per_caller_max")
        self._slots: OrderedDict[Key, _OpenQueue] = OrderedDict()

    @contextlib.asynccontextmanager
    async def lease(self, caller: Caller, topic: str) -> AsyncIterator[QueueSession]:
        """Return the session of an existing queue, held open until the block ends.

        Args:
            caller: whose role it has; callers of one role share it.

        Raises:
            TooManySessionsError: every queue is in use, or the caller uses as many as it may.
            QuotaExceededError: the queue has more than ``task_states_max`` jobs with a state.
            NotPermittedError, HeliographError: its topics cannot be opened.
        """
        key = (topic, caller.role)
        slot = await self._slot(key, caller)
        slot.users += 1
        try:
            async with slot.opening:
                if slot.session is not None and slot.session.failure is not None:
                    await _closed(slot.session)  # its states are followed no more
                    slot.session = None
                if slot.session is None:
                    options = TaskOptions(topic, encoding="json", jobs_max=self._config.task_states_max)
                    slot.session = await self._agents.open_by(
                        caller.principal, lambda client: open_queue(client, options)
                    )
            yield slot.session
        finally:
            slot.users -= 1
            slot.last_used = self._clock()
            if slot.session is None and slot.users == 0:
                await self._close(key, slot)

    async def expire(self, now: float) -> None:
        """Close the queues that no request used for the configured time."""
        seconds = self._config.task_queue_idle_ms / 1000
        for key, slot in list(self._slots.items()):
            if slot.users == 0 and now - slot.last_used >= seconds:
                await self._close(key, slot)

    async def close(self) -> None:
        """Close all queues."""
        for key, slot in list(self._slots.items()):
            await self._close(key, slot)

    def __len__(self) -> int:
        return len(self._slots)

    async def _slot(self, key: Key, caller: Caller) -> _OpenQueue:
        while key not in self._slots and len(self._slots) >= self._config.task_queues_max:
            await self._make_room()  # meanwhile others may open this queue, or take the room
        slot = self._slots.get(key)
        if slot is None:
            self._shares.take(caller)
            slot = self._slots[key] = _OpenQueue(caller, last_used=self._clock())
        self._slots.move_to_end(key)
        return slot

    async def _make_room(self) -> None:
        for key, slot in self._slots.items():
            if slot.users == 0:
                await self._close(key, slot)
                return
        limit = self._config.task_queues_max
        raise TooManySessionsError(
            f"all {limit} queues of tasks are in use: use fewer at once, or raise task_queues_max",
            field="task_queues_max",
            limit=f"{limit} queues",
        )

    async def _close(self, key: Key, slot: _OpenQueue) -> None:
        if self._slots.get(key) is not slot:
            return  # it was closed before
        del self._slots[key]
        self._shares.give_back(slot.owner)
        if slot.session is not None:
            await _closed(slot.session)


async def open_queue(client: Any, options: TaskOptions) -> QueueSession:
    """Return the open session of a queue."""
    session = QueueSession(client, options)
    try:
        return await session.open()
    except BaseException:
        await _closed(session)
        raise


async def _closed(session: QueueSession) -> None:
    with contextlib.suppress(HeliographError):
        await session.close()
