"""A plan is made of one answer, and is the one that single questions give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

import heliograph
from heliograph.actors.broker.admin.forwarding import OwnerCalls
from heliograph.actors.broker.admin.read_access import Bookies, read_plan
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.base.errors import BadRequestError, DataLostError, NotFoundError, TopicNotFoundError
from heliograph.client.admin.over_http import GatewayCalls
from heliograph.metadata.model import BookieRegistration, LedgerState, Segment, TopicRecord
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import where_of
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.planning.plan_answer import PlanAnswer
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.protocol.topic_name import TopicName
from tests.unit.pipelines.test_ranges import ledger

TOPIC = "persistent://public/default/planned"


def access_of(cluster: heliograph.LocalCluster) -> ClusterAccess:
    return ClusterAccess(gateway=cluster.http_url)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[heliograph.LocalCluster]:
    """Run a cluster with a topic of three ledgers, and one of three partitions, of which each has two."""
    home = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOGRAPH_HOME", str(home))  # where the gateway is noted
        patch.delenv("RAY_ADDRESS", raising=False)
        with heliograph.local(home) as running, running.connect() as client:
            admin = access_of(running).admin_sync()
            admin.create_topic("parted", 3)
            for topic, ledgers in (("planned", 3), ("parted", 2)):
                for _ in range(ledgers):
                    with client.producer(topic, batch_messages=1) as producer:
                        for row in range(12):
                            producer.send(b"x" * 100, key=f"k{row}")
                    admin.unload_topic(topic)
            yield running


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the operations that the gateway is asked for."""
    names: list[str] = []
    run = GatewayCalls.run

    async def noted(self: GatewayCalls, operation: Any, arguments: dict[str, Any], identity: Any) -> Any:
        names.append(operation.name)
        return await run(self, operation, arguments, identity)

    monkeypatch.setattr(GatewayCalls, "run", noted)
    return names


def plain(ranges: list[LedgerRange]) -> list[LedgerRange]:
    """Return ranges without what two answers may tell in another order, and without grants, which end apart."""
    return [
        replace(piece, addresses=tuple(sorted(piece.addresses)), racks=tuple(sorted(piece.racks)), grant="")
        for piece in ranges
    ]


@pytest.mark.parametrize("topic", ["planned", "parted"])
def test_one_answer_makes_the_plan_that_single_questions_make(
    cluster: heliograph.LocalCluster, asked: list[str], monkeypatch: pytest.MonkeyPatch, topic: str
) -> None:
    access = access_of(cluster)
    whole = plan_topic(topic, access=access)
    assert asked == ["read_plan"]
    assert sum(piece.entries for piece in whole) == (36 if topic == "planned" else 24)
    assert all(piece.addresses for piece in whole)
    middle = {piece.partition: (piece.ledger_id, piece.entries // 2) for piece in whole}
    bounds: list[dict[str, Any]] = [{}, {"start": middle}, {"end": middle}, {"start": middle, "end": middle}]
    first = whole[0]
    bounds.append({"start": {first.partition: (first.ledger_id, 3)}})
    one_answer = [plain(plan_topic(topic, access=access, **given)) for given in bounds]
    assert asked == ["read_plan"] * (len(bounds) + 1)

    async def nothing_told(cls: type, admin: Any, *_: object) -> PlanAnswer:
        return PlanAnswer(admin)

    monkeypatch.setattr(PlanAnswer, "of", classmethod(nothing_told))
    asked.clear()
    assert [plain(plan_topic(topic, access=access, **given)) for given in bounds] == one_answer
    assert "read_access" in asked
    assert "read_plan" not in asked


def test_conditions_that_leave_out_ledgers_are_judged_before_access_is_asked_for(
    cluster: heliograph.LocalCluster, asked: list[str]
) -> None:
    access = access_of(cluster)
    assert plan_topic("planned", access=access, where=where_of([("__publishTime", ">", 4_000_000_000_000)])) == []
    assert "read_plan" not in asked
    assert "read_access" not in asked
    assert len(plan_topic("planned", access=access, where=where_of([("__key", "==", "k1")]))) == 3
    assert asked[-1] == "read_plan"


def test_errors_of_a_plan_come_from_the_one_answer(cluster: heliograph.LocalCluster, asked: list[str]) -> None:
    access = access_of(cluster)
    with pytest.raises(TopicNotFoundError):
        plan_topic("nowhere", access=access)
    with pytest.raises(DataLostError):
        plan_topic("planned", access=access, start={-1: (0, 5)})
    with pytest.raises(BadRequestError) as refused:
        access.admin_sync().read_plan("planned", {"-1": -5})
    assert refused.value.field == "first"
    assert access.admin_sync().read_plan(TOPIC)[0]["topic"] == TOPIC


def test_the_record_of_a_ledger_is_the_owners_only_while_it_writes_its_first_segment() -> None:
    """Repairs change the bookies of closed ledgers, and of ended segments, which the writer is not told."""
    rows = {"ledgers": [{"ledger_id": one, "entries": 3} for one in (5, 6, 7)], "has_more": False}
    opened = replace(ledger(6), state=LedgerState.OPEN, last_entry_id=-1)
    moved = replace(opened, segments=(*opened.segments, Segment(2, ("b7", "b8"))))
    asked: list[int] = []

    async def metadata(ledger_id: int) -> Any:
        asked.append(ledger_id)
        if ledger_id == 7:
            raise NoSuchLedgerError("it was trimmed")
        return SimpleNamespace(record=ledger(ledger_id))

    def told(known: Any, last: int) -> list[int]:
        asked.clear()
        owned: Any = SimpleNamespace(
            name=TopicName.parse(TOPIC), record=TopicRecord(TOPIC), writer=SimpleNamespace(metadata=known)
        )
        bookies = Bookies({"b7": BookieRegistration("b7", "host:3181")}, None, None, 60)
        answer = asyncio.run(read_plan(owned, cast(Any, SimpleNamespace(metadata=metadata)), rows, last, bookies))
        return [one["ledger_id"] for one in answer["access"]["ledgers"]]

    assert told(opened, 6) == [5, 6]
    assert asked == [5]
    for known in (moved, replace(opened, state=LedgerState.CLOSED, last_entry_id=2)):
        assert told(known, 6) == [5, 6]
        assert asked == [5, 6]
    with pytest.raises(NotFoundError, match="ledger 7"):
        told(opened, 8)


@pytest.mark.parametrize(("knows", "is_open"), [(True, True), (False, True), (True, False)])
def test_metadata_is_asked_for_an_owner_unless_no_other_broker_can_be_it(knows: bool, is_open: bool) -> None:
    resolved: list[TopicName] = []

    async def resolve(topic: TopicName) -> Any:
        resolved.append(topic)
        return SimpleNamespace(is_us=True)

    async def run(method: str, topic: TopicName, arguments: dict[str, Any]) -> str:
        return method

    context: Any = SimpleNamespace(catalog=None, ownership=SimpleNamespace(knows=knows, resolve=resolve))
    calls = OwnerCalls(context, cast(Any, SimpleNamespace(is_open=lambda topic: is_open, run=run)), None)
    assert asyncio.run(calls.at(TopicName.parse(TOPIC), "topic_stats")) == "topic_stats"
    assert bool(resolved) is not (knows and is_open)
