"""A part that ends again and again is started after a pause, in which others stand in for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any
from unittest.mock import AsyncMock

import pytest

from heliograph.actors.broker import session
from heliograph.actors.broker.actor import BrokerActor
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import HeliographError
from heliograph.cluster import hosting
from heliograph.metadata.errors import ConnectionLossError

PAUSE = 7.0
_sleep = asyncio.sleep


class Part:
    """A part that notes in which order its methods are called."""

    def __init__(self, failure: HeliographError | None = None) -> None:
        self.calls: list[str] = []
        self._failure = failure
        self._thread = threading.get_ident()

    async def start(self) -> str:
        self.calls.append("start")
        return "address"

    async def stand_in(self) -> None:
        self.calls.append("stand_in")
        if self._failure is not None:
            raise self._failure

    async def sleep(self, seconds: float) -> None:
        if threading.get_ident() != self._thread:  # the local cluster of another test's module rests, too
            await _sleep(seconds)
        else:
            self.calls.append(f"sleep {seconds:.0f}")


@pytest.fixture(params=[None, ConnectionLossError("no metadata store")], ids=["", "unreachable"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Part:
    made = Part(request.param)
    monkeypatch.setattr(asyncio, "sleep", made.sleep)
    return made


def test_others_are_let_in_before_the_pause(part: Part, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, hosting.__name__):
        assert asyncio.run(hosting._after(PAUSE, part.start, part.stand_in)) == "address"
    assert part.calls == ["stand_in", "sleep 7", "start"]
    assert "starting in 7 s" in caplog.text


def test_a_start_without_a_pause_is_not_announced(part: Part) -> None:
    assert asyncio.run(hosting._after(0.0, part.start, part.stand_in)) == "address"
    assert part.calls == ["start"]


def test_a_part_that_none_can_stand_in_for_only_waits(part: Part) -> None:
    assert asyncio.run(hosting._after(PAUSE, part.start)) == "address"
    assert part.calls == ["sleep 7", "start"]


def test_a_broker_ends_its_predecessors_session_before_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name by which ``hosted`` finds it is that of the broker's actor: others serve its topics meanwhile."""
    ended: list[str] = []

    async def end_predecessor(store: Any, broker_id: str) -> None:
        ended.append(broker_id)

    monkeypatch.setattr(session, "connect_store", AsyncMock())
    monkeypatch.setattr(session, "end_predecessor", end_predecessor)
    after_end = getattr(BrokerActor, hosting.AFTER_END, None)
    assert after_end is not None
    asyncio.run(after_end(BrokerConfig("broker-7"), "memory://none"))
    assert ended == ["broker-7"]
