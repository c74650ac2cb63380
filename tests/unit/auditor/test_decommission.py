"""Decommission: which bookies may leave, refusals, the move of data, and when a bookie may be forgotten."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.decommission import Decommission
from heliograph.base.errors import ConflictError, NotFoundError, ServiceNotReadyError
from heliograph.cluster.operator.departure import require_others
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import RecordError
from heliograph.metadata.model import (
    VACANCY,
    BookieRegistration,
    LedgerMetadata,
    LedgerState,
    NamespacePolicies,
    PartitionedTopicRecord,
    Persistence,
    Segment,
    TopicPolicies,
    TopicRecord,
)
from heliograph.metadata.recipes.cluster_init import initialise
from tests.unit.auditor.world import NOW, World, ledger


class Stage(World):
    """A cluster of three bookies and a spare one. ``b3`` is to leave."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(NOW)
        self.decommission = Decommission(self.store, self.auditor, AuditorConfig(**settings))

    async def begin_with(self, *bookies: str) -> None:
        await self.start(*bookies)
        await self.store.create(paths.bookie_cookie("b3"))

    async def turn_read_only(self, bookie_id: str) -> None:
        record = encode(BookieRegistration(bookie_id, "h:1"))
        await self.store.create(paths.bookie_readonly(bookie_id), record, ephemeral=True)
        await self.store.delete(paths.bookie_available(bookie_id))


async def test_a_live_bookie_is_emptied_and_forgotten_once_it_has_gone() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3", "spare1")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    await stage.ledgers.add(ledger(2, "b1 b2 spare1"))
    await stage.ledgers.add(ledger(3, "b3 b1 b2", LedgerState.OPEN))
    found = await stage.decommission.begin("b3")
    assert (found["ledgers_left"], found["ledgers_open"], found["is_drained"]) == (2, 1, False)
    await stage.turn_read_only("b3")
    assert (await stage.auditor.audit())["marked"] == 2
    assert await stage.worker.work_once()
    assert stage.ledgers.records[1].last_segment.bookies == ("b1", "b2", "spare1")
    found = await stage.decommission.progress("b3")
    assert (found["ledgers_left"], found["ledgers_open"]) == (1, 1)
    with pytest.raises(ConflictError, match="1 ledgers name b3"):
        await stage.decommission.finish("b3")
    stage.clock.now += 501  # its writer had time to replace the bookie
    assert await stage.worker.work_once()
    assert stage.ledgers.recovered == [3]
    found = await stage.decommission.progress("b3")
    assert (found["ledgers_left"], found["is_drained"]) == (0, True)
    with pytest.raises(ServiceNotReadyError, match="registered still"):
        await stage.decommission.finish("b3")
    await stage.store.delete(paths.bookie_readonly("b3"))
    await stage.decommission.finish("b3")
    assert await stage.store.exists(paths.bookie_cookie("b3")) is None
    assert await stage.store.children(paths.BOOKIES_DRAINING) == []
    with pytest.raises(NotFoundError, match="not being decommissioned"):
        await stage.decommission.finish("b3")


async def test_a_bookie_that_a_ledger_with_an_unreadable_record_may_need_is_not_forgotten() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "spare1")
    await stage.decommission.begin("b3")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    whole, _ = await stage.store.get(paths.ledger(1))
    assert whole is not None
    await stage.store.set(paths.ledger(1), b"?" + whole)
    for step in (stage.decommission.begin, stage.decommission.progress, stage.decommission.finish):
        with pytest.raises(RecordError, match="1 ledgers, such as 1, are damaged"):
            await step("b3")
    assert await stage.store.exists(paths.bookie_cookie("b3")) is not None
    await stage.store.set(paths.ledger(1), whole)
    assert (await stage.decommission.progress("b3"))["ledgers_left"] == 1


async def test_a_bookie_that_takes_entries_still_is_not_drained() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3", "b4")
    found = await stage.decommission.begin("b3")
    assert (found["ledgers_left"], found["is_read_only"], found["is_drained"]) == (0, False, False)


async def test_a_dead_bookie_is_emptied_without_waiting_for_it() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "spare1")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    assert not (await stage.decommission.begin("b3"))["is_alive"]
    await stage.auditor.audit()
    assert await stage.worker.work_once()
    await stage.decommission.finish("b3")
    assert await stage.store.exists(paths.bookie_cookie("b3")) is None


async def test_a_dead_bookie_with_all_copies_of_some_entries_is_refused_and_nothing_is_done() -> None:
    stage = Stage(ensemble_size=2)
    await stage.begin_with("b1", "spare1", "spare2")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))  # b1 serves it
    segments = (Segment(0, ("b2", "b3")),)
    both = LedgerMetadata(2, 2, 2, 2, segments, state=LedgerState.CLOSED, last_entry_id=9)
    await stage.ledgers.add(both)
    with pytest.raises(ConflictError, match=r"entries of 1 ledgers, such as 2: start it, or b2, first") as refused:
        await stage.decommission.begin("b3")
    assert "helio ledgers describe 2" in str(refused.value)
    assert await stage.store.children(paths.BOOKIES_DRAINING) == []
    await stage.store.create(paths.bookie_available("b2"), encode(BookieRegistration("b2", "h:1")), ephemeral=True)
    assert (await stage.decommission.begin("b3"))["ledgers_left"] == 2


async def test_one_bookie_too_few_is_refused_and_nothing_is_done() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3")
    with pytest.raises(ConflictError, match=r"2 writable bookies would be left.*ensemble of 3"):
        await stage.decommission.begin("b3")
    assert await stage.store.children(paths.BOOKIES_DRAINING) == []


WIDE = Persistence(4, 3, 2)
COPIES = ("ensemble_size", "write_quorum", "ack_quorum")
WISHES = {
    "namespace": (paths.namespace("acme", "wide"), NamespacePolicies(persistence=WIDE)),
    "topic's policies": (paths.topic_policies("acme", "shop", "t"), TopicPolicies(dict.fromkeys(COPIES, 4))),
    "topic": (paths.topic("acme", "shop", "t"), TopicRecord("persistent://acme/shop/t", persistence=WIDE)),
    "partitioned topic": (
        paths.partitioned_topic("acme", "shop", "t"),
        PartitionedTopicRecord("persistent://acme/shop/t", 2, persistence=WIDE),
    ),
}


async def test_an_ensemble_that_a_ledger_has_counts() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3", "b4")
    bookies = ("b1", "b2", "b3", "b4")
    await stage.ledgers.add(replace(ledger(1, "b1 b2 b3"), ensemble_size=4, segments=(Segment(0, bookies),)))
    with pytest.raises(ConflictError, match="ensemble of 4"):
        await stage.decommission.begin("b3")


@pytest.mark.parametrize("where", WISHES)
async def test_an_ensemble_that_the_next_ledger_of_a_topic_would_have_counts(where: str) -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3", "b4")
    path, record = WISHES[where]
    await stage.store.create(path, encode(record), parents=True)
    await stage.store.create(paths.topic_policies("acme", "shop", "other"), encode(TopicPolicies()), parents=True)
    with pytest.raises(ConflictError, match="ensemble of 4"):
        await stage.decommission.begin("b3")


@pytest.mark.parametrize(("own", "needed"), [((), 4), (("ensemble_size", "write_quorum", "ack_quorum"), 3), (None, 3)])
async def test_namespaces_that_do_not_set_an_ensemble_have_the_clusters(
    own: tuple[str, ...] | None, needed: int
) -> None:
    stage = Stage(ensemble_size=4)
    await stage.begin_with("b1", "b2", "b3", "b4")
    await stage.store.set(paths.namespace("public", "default"), encode(NamespacePolicies(own=own)))
    if needed == 4:
        with pytest.raises(ConflictError, match="ensemble of 4"):
            await stage.decommission.begin("b3")
    else:
        assert (await stage.decommission.begin("b3"))["ledgers_left"] == 0


async def test_a_cluster_of_narrow_defaults_lets_its_third_bookie_go() -> None:
    stage = Stage(ensemble_size=2)
    await stage.begin_with("b1", "b2", "b3")
    await stage.store.set(paths.namespace("public", "default"), encode(NamespacePolicies(own=())))
    assert (await stage.decommission.begin("b3"))["ledgers_left"] == 0


async def test_a_topics_own_policies_go_before_what_it_was_created_with() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3", "b4")
    record = TopicRecord("persistent://acme/shop/t-partition-0", persistence=WIDE)
    await stage.store.create(paths.topic("acme", "shop", "t-partition-0"), encode(record), parents=True)
    narrow = TopicPolicies(dict.fromkeys(COPIES, 3))
    await stage.store.create(paths.topic_policies("acme", "shop", "t"), encode(narrow), parents=True)
    assert (await stage.decommission.begin("b3"))["ledgers_left"] == 0


async def test_two_at_once_count_together() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3", "b4")
    await stage.decommission.begin("b3")
    assert await stage.decommission.begin("b3")  # it may be repeated
    with pytest.raises(ConflictError, match="2 writable bookies"):
        await stage.decommission.begin("b4")


async def test_a_bookie_that_may_stay_gets_its_copies_checked_where_they_are() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "live3", "spare1")
    await stage.ledgers.add(ledger(1, "b1 b2 live3"))
    await stage.decommission.begin("live3")
    await stage.auditor.audit()
    await stage.decommission.cancel("live3")
    assert await stage.worker.work_once()
    assert stage.ledgers.records[1].last_segment.bookies == ("b1", "b2", "live3")
    with pytest.raises(NotFoundError):
        await stage.decommission.cancel("live3")


async def test_a_bookie_that_nobody_knows_is_named_with_those_there_are() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2")
    with pytest.raises(NotFoundError, match="no bookie b9") as raised:
        await stage.decommission.begin("b9")
    assert raised.value.limit == "b1, b2"


async def world(held: str, alive: str) -> MemoryStore:
    """Return a store with one ledger of Qw=3 and Qa=2, and with bookies that serve."""
    store = MemoryServer().open_session()
    await initialise(store)
    for name in alive.split():
        await store.create(paths.bookie_available(name), encode(BookieRegistration(name, f"{name}:1")), parents=True)
    segments = (Segment(0, tuple(held.split())),)
    closed = LedgerMetadata(1, 3, 3, 2, segments, state=LedgerState.CLOSED, last_entry_id=9)
    await store.create(paths.ledger(1), encode(closed), parents=True)
    return store


async def test_a_dead_bookie_beside_a_vacancy_may_leave() -> None:
    store = await world(f"b1 b2 {VACANCY}2", "b1 b3 b4")
    await require_others(store, ["b2"], 3)


async def test_a_dead_bookie_that_may_have_the_last_copy_stays() -> None:
    store = await world("b1 b2 b5", "b1 b3 b4")
    with pytest.raises(ConflictError, match=r"b2 may hold the last copies of entries in 1 ledgers, such as 1"):
        await require_others(store, ["b2"], 3)


async def test_too_few_bookies_are_refused_as_by_a_decommission() -> None:
    store = await world("b1 b2 b3", "b1 b2 b3")
    with pytest.raises(ConflictError, match=r"without b1, 2 writable bookies would be left.*ensemble of 3") as refused:
        await require_others(store, ["b1"], 2)
    assert (refused.value.field, refused.value.limit) == ("count", "at least 3 left")
    assert "keep more bookies, start others first, or lower ensemble_size" in str(refused.value)
