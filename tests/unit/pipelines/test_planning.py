"""Plans of topics that are trimmed while they are made, or before they are used."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.actors.broker.admin.read_access import Bookies, read_access
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.ledger.driver.directory import BookieDirectory
from heliograph.actors.wire.grant import LEDGERS_MAX, grant_from_text, verified_grant
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.client.admin.admin import Admin
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.codec import encode
from heliograph.metadata.model import BookieRegistration, LedgerInfo, TopicRecord
from heliograph.metadata.operator_records import BookieRack
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.pipelines.data_source.offsets import offsets_after
from heliograph.pipelines.planning import plan as planning
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.ranges import LedgerRange, range_from_json
from heliograph.pipelines.streaming import source, stream
from heliograph.pipelines.streaming.checkpoint import Batch, StreamCheckpoint
from heliograph.pipelines.streaming.subscription import StreamSubscription
from heliograph.protocol.topic_name import TopicName
from tests.unit.pipelines.test_ledger_pages import page_of
from tests.unit.pipelines.test_ranges import ADDRESSES, a_range, entries_of, ledger

TOPIC = "persistent://public/default/t"


class Topic:
    """A topic with ten entries in each ledger, whose broker trims one before each answer but the first."""

    secret: str | None = None

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ledgers: int, recorded: tuple[int, ...]) -> None:
        self.ledgers = list(ledgers)
        self.answers = 0
        self._server = MemoryServer()
        self._recorded = recorded

    async def partitions(self, topic: str) -> int:
        return 0

    async def read_plan(self, topic: str, first: object, last: object) -> list[dict[str, Any]]:
        raise BadRequestError("there is no operation read_plan", field="operation")  # of an earlier release

    async def topic_ledgers(self, topic: str, after: int) -> dict[str, Any]:
        if self.answers and after < 0:
            self.ledgers.pop(0)
        self.answers += 1
        return page_of(self.ledgers, after)

    async def read_access(self, topic: str, ledger_ids: Sequence[int]) -> dict[str, Any]:
        store = self._server.open_session()
        name = TopicName.parse(topic)
        if await store.exists(paths.LEDGERS) is None:
            await initialise(store)
            for one in self._recorded:
                await store.create(paths.ledger(one), encode(ledger(one)), parents=True)
            for bookie, address in ADDRESSES.items():
                registration = BookieRegistration(bookie, address, rack="registered")
                await store.create(f"{paths.BOOKIES_READONLY}/{bookie}", encode(registration), parents=True)
        record = TopicRecord(str(name), tuple(LedgerInfo(one) for one in self.ledgers))
        if await store.exists(Catalog.topic_path(name)) is None:
            await store.create(Catalog.topic_path(name), encode(record), parents=True)
        else:
            await store.set(Catalog.topic_path(name), encode(record))
        directory = BookieDirectory(store)
        await directory.start()
        try:
            return await read_access(store, name, ledger_ids, Bookies(directory.registered, self.secret, None, 60))
        finally:
            await directory.close()

    def planned(self, **bounds: Any) -> list[LedgerRange]:
        return asyncio.run(
            planning._plan(TopicName.parse(TOPIC), bounds.get("start"), bounds.get("end"), cast(Admin, self))
        )


def test_a_ledger_that_is_trimmed_while_a_plan_is_made_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 5, 6, 7, recorded=(7,))
    assert [piece.ledger_id for piece in topic.planned()] == [7]
    assert topic.answers == 3


def test_a_ledger_that_its_topic_names_and_nobody_has_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, *range(20), recorded=(19,))
    with pytest.raises(NotFoundError):
        topic.planned()


def test_ledgers_that_are_not_wanted_are_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 4, 5, 6, 7, 8, recorded=(6, 7))
    found = topic.planned(start={-1: (6, 4)}, end={-1: (7, 2)})
    assert [piece.before and piece.before.ledger_id for piece in found] == [None, 6]  # 5 is gone, which is no matter
    assert entries_of(found) == [*((-1, 6, entry) for entry in range(4, 10)), (-1, 7, 0), (-1, 7, 1)]
    assert topic.answers == 1


def test_ends_are_those_of_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 5, 6, 7, recorded=(5, 6, 7))
    whole = topic.planned()
    topic.answers = 0  # it trims nothing before the next one
    assert (
        asyncio.run(planning._ends(TopicName.parse(TOPIC), cast(Admin, topic)))
        == offsets_after({}, whole)
        == {TOPIC: (7, 10)}
    )


def test_a_plan_carries_grants_for_its_ledgers_and_no_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ledgers = tuple(range(5, 5 + LEDGERS_MAX + 2))
    topic = Topic(monkeypatch, *ledgers, recorded=ledgers)
    topic.secret = "a secret of the cluster"
    pieces = topic.planned()
    assert len({piece.grant for piece in pieces}) == 2  # one holds so many ledgers at most
    for piece in pieces:
        grant = grant_from_text(piece.grant)
        assert piece.ledger_id in grant.ledger_ids
        assert verified_grant(grant.claims, (topic.secret,), wall_ms()).key == grant.key
        assert 0 < grant.expires_ms - wall_ms() <= 60_000
        assert range_from_json(piece.to_json()) == piece
    assert topic.secret.encode() not in pickle.dumps(pieces)
    assert grant.text not in repr(pieces)
    StreamCheckpoint(tmp_path).plan(Batch(3, tuple(pieces), {-1: (7, 10)}))
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"segments" in stored
    assert grant.text.encode() not in stored


def test_a_plan_carries_the_racks_of_bookies(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 5, recorded=(5,))
    (piece,) = topic.planned()
    assert dict(piece.racks) == dict.fromkeys(dict(piece.addresses), "registered")
    chosen = piece.addresses[0][0]

    async def set_rack() -> None:
        store = topic._server.open_session()
        await store.create(f"{paths.BOOKIES_RACKS}/{chosen}", encode(BookieRack(chosen, "set")), parents=True)

    asyncio.run(set_rack())
    topic.answers = 0
    (again,) = topic.planned()
    assert dict(again.racks) == {**dict(piece.racks), chosen: "set"}
    assert range_from_json(again.to_json()) == again


def test_a_ledger_of_another_topic_is_not_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic(monkeypatch, 5, 6, recorded=(5, 6, 7))
    topic.secret = "a secret of the cluster"
    with pytest.raises(NotFoundError, match="ledger 7 is none of"):
        asyncio.run(topic.read_access(TOPIC, [5, 7]))
    for wrong in ([5.0], ["5"], [-1], list(range(1_001))):
        with pytest.raises(BadRequestError):
            asyncio.run(topic.read_access(TOPIC, cast(list[int], wrong)))


def test_a_planned_batch_whose_ledger_was_deleted_names_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    piece = a_range(0, 9)
    StreamCheckpoint(tmp_path).plan(Batch(3, (piece,), {-1: (7, 10)}))

    def gone(ranges: object, **options: object) -> list[LedgerRange]:
        raise NotFoundError("ledger 7 is none of t, or no longer")

    monkeypatch.setattr(source, "refresh_addresses", gone)
    monkeypatch.setattr(source, "plan_topic", lambda topic, **options: [])
    monkeypatch.setattr(StreamSubscription, "open", lambda self, positions: None)
    monkeypatch.setattr(ClusterAccess, "admin_sync", lambda self: None)
    monkeypatch.setattr(stream, "ranges_dataframe", lambda spark, ranges, *options: list(ranges))
    handled: list[int] = []

    def run() -> int:
        handle = cast(Callable[[Any, int], None], lambda frame, batch_id: handled.append(batch_id))
        return stream.stream(cast(Any, None), TOPIC, handle, checkpoint=tmp_path, until_caught_up=True)

    with pytest.raises(NotFoundError, match=r"batch 3 .*commit-3"):
        run()
    (tmp_path / "commit-3").touch()
    assert (run(), handled) == (0, [])
