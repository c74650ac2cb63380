"""Starts of parts: pauses for a part that ends again and again, in which others stand in for it, and names already
taken."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from heliograph.actors.broker import session
from heliograph.actors.broker.actor import BrokerActor
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import ConflictError, HeliographError
from heliograph.cluster import hosting
from heliograph.cluster.logs.start_history import LASTING_MS, PAUSE_MS_MAX, STARTS_FREE, StartHistory, Starts, pause_ms
from heliograph.cluster.naming import stranger_note
from heliograph.cluster.operator.planning import Sight
from heliograph.cluster.operator.storage import load_wish, store_wish
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.operator_records import Roster, Wish, WishKind, WishState
from tests.unit.cluster.operator.test_leaving import operated
from tests.waits import until

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


def test_pauses_grow_to_a_bound() -> None:
    pauses = [pause_ms(count) for count in range(1, 64)]
    assert pauses[:STARTS_FREE] == [0] * STARTS_FREE
    assert pauses[STARTS_FREE : STARTS_FREE + 3] == [1_000, 2_000, 4_000]
    assert pauses[-1] == PAUSE_MS_MAX
    assert pauses == sorted(pauses)


def test_a_start_that_lasted_ends_the_row_and_so_does_a_clock_that_went_back() -> None:
    row = Starts().begun(1_000).begun(2_000)
    assert len(row.times_ms) == 2
    assert len(row.begun(2_000 + 2 * LASTING_MS).times_ms) == 1
    assert not row.has_lasted(2_000 + LASTING_MS - 1)
    assert row.has_lasted(2_000 + LASTING_MS)
    assert len(row.begun(500).times_ms) == 1


def test_the_reason_is_kept_until_the_part_serves(tmp_path: Path) -> None:
    history = StartHistory(tmp_path, "bookie-1")
    history.begin(1_000)
    history.failed("ResourceError: port 3181 is taken")
    assert StartHistory(tmp_path, "bookie-1").starts.failure == "ResourceError: port 3181 is taken"
    again = StartHistory(tmp_path, "bookie-1")
    again.begin(2_000)
    again.served()
    assert StartHistory(tmp_path, "bookie-1").starts == Starts((1_000, 2_000))
    again.stopped()
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "bookie-1.starts").write_text("{")
    history = StartHistory(tmp_path, "bookie-1")
    assert history.begin(1_000) == 0
    assert history.starts.times_ms == (1_000,)


async def test_a_part_that_serves_again_begins_with_a_short_pause_when_it_is_lost_again() -> None:
    async with operated() as (operator, cluster, _store):
        for _ in range(3):
            cluster.running.discard("broker-2")
            await until(lambda: "broker-2" in cluster.running)
            await operator._look(with_facts=True)
        assert "broker-2" not in operator._attempts


async def test_a_part_that_does_not_run_is_tried_after_growing_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async with operated() as (_operator, cluster, _store):
        tries: list[float] = []

        async def create(name: str, roster: Roster) -> None:
            tries.append(asyncio.get_running_loop().time())

        monkeypatch.setattr(cluster, "create", create)
        cluster.running.discard("broker-2")
        await until(lambda: len(tries) == 2)
        assert tries[1] - tries[0] >= 0.4


async def test_a_scale_names_the_stranger_that_holds_the_name_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    note = stranger_note("broker-4", "n")
    async with operated() as (_operator, cluster, store):
        make, look = cluster.create, cluster.sight

        async def create(name: str, roster: Roster) -> None:
            if name == "broker-4":
                raise ConflictError(note, field="name")
            await make(name, roster)

        async def sight(homes: Mapping[str, str]) -> Sight:
            found = await look(homes)
            return Sight(found.nodes, found.draining, found.running, homes, [note])

        monkeypatch.setattr(cluster, "create", create)
        monkeypatch.setattr(cluster, "sight", sight)
        await store_wish(store, Wish(WishKind.SCALE, "brokers", {"count": "4"}, 1))
        found = None
        while found is None or note not in found.note:
            await asyncio.sleep(0.001)
            found = await load_wish(store, "brokers")
        assert found.state is WishState.ACCEPTED
