"""Parts that the operator creates: the pauses between attempts, and names that other programs hold."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from heliograph.base.errors import ConflictError
from heliograph.cluster.naming import stranger_note
from heliograph.cluster.operator.planning import Sight
from heliograph.cluster.operator.storage import load_wish, store_wish
from heliograph.metadata.operator_records import Roster, Wish, WishKind, WishState
from tests.unit.cluster.operator.test_leaving import operated
from tests.waits import until


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
