"""Queues of tasks that stay open between HTTP requests: what submits, watches and cancels their jobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from typing_extensions import override

from heliograph.base.errors import HeliographError
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.sessions.agents import Agents
from heliograph.gateway.sessions.leases import Leases
from heliograph.tasks.options import TaskOptions
from heliograph.tasks.session import QueueSession

Key = tuple[str, str]  # the queue's topic, the role of the caller


class TaskQueues(Leases[Key, QueueSession]):
    """The open queues of tasks."""

    what, unit, advice = "queues of tasks", "queues", "use fewer at once"
    setting, idle_setting = "task_queues_max", "task_queue_idle_ms"

    def __init__(self, agents: Agents, config: GatewayConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config, clock)
        self._agents = agents
        self._jobs_max = config.task_states_max

    def lease(self, caller: Caller, topic: str) -> AbstractAsyncContextManager[QueueSession]:
        """Return the session of an existing queue, held open until the block ends.

        Args:
            caller: whose role it has; callers of one role share it.

        Raises:
            TooManySessionsError: every queue is in use, or the caller uses as many as it may.
            QuotaExceededError: the queue has more than ``task_states_max`` jobs with a state.
            NotPermittedError, HeliographError: its topics cannot be opened.
        """
        return self._leased(caller, (topic, caller.role))

    @override
    async def _open(self, caller: Caller, key: Key) -> QueueSession:
        options = TaskOptions(key[0], encoding="json", jobs_max=self._jobs_max)
        return await self._agents.open_by(caller.principal, lambda client: open_queue(client, options))

    @override
    async def _close_handle(self, handle: QueueSession) -> None:
        with contextlib.suppress(HeliographError):
            await handle.close()

    @override
    def _has_ended(self, handle: QueueSession) -> bool:
        return handle.failure is not None  # its states are followed no more


async def open_queue(client: Any, options: TaskOptions) -> QueueSession:
    session = QueueSession(client, options)
    try:
        return await session.open()
    except BaseException:
        with contextlib.suppress(HeliographError):
            await session.close()
        raise
