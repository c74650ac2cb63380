"""Queues that the gateway holds open: no more than it may, and each is closed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.sessions.task_queues import TaskQueues

CALLER = Caller("10.0.0.1")


class Session:
    """An open queue whose end takes as long as the test says."""

    def __init__(self, may_end: asyncio.Event) -> None:
        self.failure = None
        self.closes = 0
        self._may_end = may_end

    async def close(self) -> None:
        self.closes += 1
        await self._may_end.wait()


class Agents:
    def __init__(self) -> None:
        self.may_end = asyncio.Event()
        self.opened: list[Session] = []
        self.before_opening: Callable[[], Awaitable[None]] | None = None

    async def open_by(self, principal: Any, make: Any) -> Session:
        if self.before_opening is not None:
            await self.before_opening()
        self.opened.append(Session(self.may_end))
        return self.opened[-1]


async def test_requests_that_wait_for_room_share_the_queue_that_they_open() -> None:
    agents: Any = Agents()
    queues = TaskQueues(agents, GatewayConfig(task_queues_max=1, task_queues_per_caller_max=1))
    async with queues.lease(CALLER, "old"):
        pass

    async def use() -> None:
        async with queues.lease(CALLER, "new"):
            assert len(queues) == 1
            await asyncio.sleep(0)

    waits = asyncio.create_task(use())
    await asyncio.sleep(0)
    assert agents.opened[0].closes == 1, "it makes room"
    overtakes = asyncio.create_task(use())
    await asyncio.sleep(0)
    agents.may_end.set()
    await asyncio.gather(waits, overtakes)
    await queues.close()
    assert [session.closes for session in agents.opened] == [1, 1], "none is left open"
    async with queues.lease(CALLER, "old"):
        pass  # the share of each was given back


async def test_a_queue_that_was_opened_again_is_not_closed_as_the_old_one() -> None:
    agents: Any = Agents()
    now = 0.0
    queues = TaskQueues(agents, GatewayConfig(task_queues_max=2, task_queue_idle_ms=1_000), lambda: now)
    for name in ("one", "two"):
        async with queues.lease(CALLER, name):
            pass
    expiring = asyncio.create_task(queues.expire(10.0))
    await asyncio.sleep(0)  # it closes the first one
    ending = asyncio.create_task(queues.close())
    await asyncio.sleep(0)  # and this the second one
    async with queues.lease(CALLER, "two"):
        agents.may_end.set()
        await asyncio.gather(expiring, ending)
        assert agents.opened[2].closes == 0, "it is in use"
    await queues.close()


async def test_an_unused_queue_of_a_caller_makes_room_for_another_one() -> None:
    agents: Any = Agents()
    agents.may_end.set()
    queues = TaskQueues(agents, GatewayConfig(task_queues_max=2, task_queues_per_caller_max=1))
    async with queues.lease(CALLER, "one"):
        with pytest.raises(TooManySessionsError, match="your address or role has 1 queues of tasks open"):
            async with queues.lease(CALLER, "two"):
                pass
    async with queues.lease(CALLER, "two"), queues.lease(Caller("10.0.0.2"), "three"):
        assert [session.closes for session in agents.opened] == [1, 0, 0]
    await queues.close()


async def test_a_queue_that_is_opened_while_all_are_closed_is_closed_after_its_use() -> None:
    agents: Any = Agents()
    agents.may_end.set()
    queues = TaskQueues(agents, GatewayConfig())
    leasing = queues.lease(CALLER, "one")
    opening = asyncio.ensure_future(leasing.__aenter__())
    agents.before_opening = queues.close  # the gateway ends meanwhile
    session: Any = await opening
    assert (session.closes, len(queues)) == (0, 0)
    await leasing.__aexit__(None, None, None)
    assert session.closes == 1
