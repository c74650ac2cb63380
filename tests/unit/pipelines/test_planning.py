"""Plans of topics that are trimmed while they are made, or before they are used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.base.errors import NotFoundError
from heliograph.metadata import paths
from heliograph.metadata.backends.memory.store import MemoryServer
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from heliograph.pipelines.planning import plan as planning
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.pipelines.streaming import stream
from heliograph.pipelines.streaming.checkpoint import Batch, StreamCheckpoint
from tests.unit.pipelines.test_ranges import a_range, entries_of, ledger

TOPIC = "persistent://public/default/t"


class Topic:
    """A topic with ten entries in each ledger, whose broker trims one before each answer but the first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ledgers: int, recorded: tuple[int, ...]) -> None:
        self.ledgers = list(ledgers)
        self.answers = 0
        self._server = MemoryServer()
        self._recorded = recorded
        monkeypatch.setattr(planning, "Admin", lambda namespace: self)
        monkeypatch.setattr(planning, "connect_store", self._connect)

    async def partitions(self, topic: str) -> int:
        return 0

    async def ledger_ranges(self, topic: str) -> list[dict[str, Any]]:
        if self.answers:
            self.ledgers.pop(0)
        self.answers += 1
        return [{"ledger_id": one, "first_entry_id": 0, "last_entry_id": 9} for one in self.ledgers]

    async def _connect(self, url: str) -> MetadataStore:
        store = self._server.open_session()
        if await store.exists(paths.LEDGERS) is None:
            await initialise(store)
            for one in self._recorded:
                await store.create(paths.ledger(one), encode(ledger(one)), parents=True)
        return store

    def planned(self, **bounds: Any) -> list[LedgerRange]:
        return asyncio.run(planning._plan(TOPIC, bounds.get("start"), bounds.get("end"), "n", "embedded://here"))


def test_a_ledger_that_is_trimmed_while_a_plan_is_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 5, 6, 7, recorded=(7,))
    assert [piece.ledger_id for piece in topic.planned()] == [7]
    assert topic.answers == 3


def test_a_ledger_that_its_topic_names_and_nobody_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, *range(20), recorded=(19,))
    with pytest.raises(NoNodeError):
        topic.planned()


def test_ledgers_that_are_not_wanted_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 5, 6, 7, 8, recorded=(6, 7))
    found = topic.planned(start={-1: (6, 4)}, end={-1: (7, 2)})
    assert entries_of(found) == [*((-1, 6, entry) for entry in range(4, 10)), (-1, 7, 0), (-1, 7, 1)]
    assert topic.answers == 1


def test_a_planned_batch_whose_ledger_was_deleted_names_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    piece = a_range(0, 9)
    StreamCheckpoint(tmp_path).plan(Batch(3, (piece,), {-1: (7, 10)}))

    def gone(ranges: object, *, namespace: str | None) -> list[LedgerRange]:
        raise NoNodeError("/ledgers/00/0000/L0007")

    monkeypatch.setattr(stream, "refresh_addresses", gone)
    monkeypatch.setattr(stream, "plan_topic", lambda topic, **options: [])
    monkeypatch.setattr(stream, "ranges_dataframe", lambda spark, ranges, **options: list(ranges))
    handled: list[int] = []

    def run() -> int:
        handle = cast(Callable[[Any, int], None], lambda frame, batch_id: handled.append(batch_id))
        return stream.stream(cast(Any, None), TOPIC, handle, checkpoint=tmp_path, until_caught_up=True)

    with pytest.raises(NotFoundError, match=r"batch 3 .*commit-3"):
        run()
    (tmp_path / "commit-3").touch()
    assert (run(), handled) == (0, [])
