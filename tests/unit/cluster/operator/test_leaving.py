"""Nodes that leave and come again: what the operator refuses, takes out and keeps, with Ray and the parts played."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.clock import wall_ms
from heliograph.base.errors import ConflictError, NotFoundError
from heliograph.base.settings import portable
from heliograph.cluster import deployment, labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.operator import operator as operators
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.changes.members import MemberRules
from heliograph.cluster.operator.operator import Operator, OperatorSettings
from heliograph.cluster.operator.planning import OperatorRules, Sight, plan
from heliograph.cluster.operator.ports import ActorState, PartFacts
from heliograph.cluster.operator.shortage import Shortage
from heliograph.cluster.operator.storage import load_roster, load_wish, save_roster, store_wish
from heliograph.cluster.parts import part_named
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.codec import encode
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import BookieRegistration, BrokerRegistration, Persistence
from heliograph.metadata.operator_records import Roster, Wish, WishKind, WishState
from heliograph.metadata.recipes.cluster_init import initialise, set_default_copies
from tests.waits import until

BOTH = {labels.BOOKIE: "true", labels.BROKER: "true"}
NODES = [Node(f"10.0.0.{number}", BOTH) for number in (1, 2, 3)]
OTHER = "10.0.0.3"


class PlayedCluster:
    """Ray with three nodes; bookie-n and broker-n are on the n-th, metadata on the first."""

    def __init__(self) -> None:
        self.nodes = list(NODES)
        self.running = {"metadata", *(f"{kind}-{n}" for kind in ("bookie", "broker") for n in (1, 2, 3))}
        self.asked: list[tuple[str, str]] = []
        self.shortage: Shortage | None = None
        self.is_drained = True
        self.fails: Exception | None = None  # of the auditor
        self.answers: dict[str, Any] = {}  # by method of a part; a function is called
        self.tasks: dict[str, Callable[..., Any]] = {}  # by name of a function that is run on a node

    async def sight(self, homes: Mapping[str, str]) -> Sight:
        return Sight(self.nodes, running=frozenset(self.running), homes=homes)

    async def facts(self, names: frozenset[str]) -> dict[str, PartFacts]:
        return {name: PartFacts("1", f"10.0.0.{name[-1] if name[-1].isdigit() else 1}") for name in names}

    async def actors(self, names: frozenset[str]) -> dict[str, ActorState]:
        return {name: ActorState("ALIVE", 0, True) for name in names}

    async def memory_shortage(self) -> Shortage | None:
        return self.shortage

    async def create(self, name: str, roster: Roster) -> None:
        self.running.add(name)

    async def started(self, name: str, seconds: float) -> str:
        return ""

    async def remove(self, name: str) -> None:
        self.asked.append((name, "remove"))
        self.running.discard(name)

    async def erase(self, name: str) -> bool:
        self.asked.append((name, "erase"))
        return name in self.running

    async def on_node(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        found = self.tasks[function.__name__](address, *arguments)
        return await found if inspect.isawaitable(found) else found

    async def shared(self) -> frozenset[str]:
        return frozenset()

    async def replace_shared(self, names: Sequence[str], roster: Roster) -> None:
        raise AssertionError("no parts share a process")

    async def ask(self, name: str, method: str, *arguments: Any) -> Any:
        self.asked.append((name, method))
        if self.fails is not None and name == "auditor":
            raise self.fails
        if method in self.answers:
            answer = self.answers[method]
            found = answer(*arguments) if callable(answer) else answer
            return await found if inspect.isawaitable(found) else found
        return {"is_drained": self.is_drained, "ledgers_left": 0 if self.is_drained else 7}


def first() -> Roster:
    roster = Roster(nodes=tuple(node.address for node in NODES))
    for node in NODES:
        roster = rosters.with_bookie(roster, Place({labels.BOOKIE: "true"}, node.address), "default")
        roster = rosters.with_broker(roster, Place({labels.BROKER: "true"}, node.address))
    return roster


@contextmanager
def fast() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "POLL_SECONDS", 0.001)
        yield


@asynccontextmanager
async def operated(
    ensemble_size: int = 2, *, members: MemberRules | None = None, **stored: Wish
) -> AsyncIterator[tuple[Operator, PlayedCluster, MemoryStore]]:
    """Yield an operator that leads, and its cluster with bookies and brokers that serve.

    Args:
        stored: wishes that are in the metadata before the operator begins.
    """
    with fast():
        store, cluster = MemoryServer().open_session(), PlayedCluster()
        await initialise(store)
        await set_default_copies(store, Persistence(ensemble_size, 2, 2))
        for number in (1, 2, 3):
            bookie = encode(BookieRegistration(f"bookie-{number}", f"10.0.0.{number}:1"))
            broker = encode(BrokerRegistration(f"broker-{number}", f"pulsar://10.0.0.{number}:2", f"broker-{number}"))
            await store.create(paths.bookie_available(f"bookie-{number}"), bookie, ephemeral=True)
            await store.create(paths.broker_available(f"broker-{number}"), broker, ephemeral=True)
        await save_roster(store, first())
        for wish in stored.values():
            await store.create(paths.wish(wish.subject), encode(wish), parents=True)
        others = tuple(each.name for each in members.members) if members else ("metadata",)
        settings = OperatorSettings("one", OperatorRules(), others, ensemble_size, 1.0, members=members)
        operator = Operator(store, cluster, settings)
        running = asyncio.create_task(operator.run())
        await until(lambda: operator._roster is not None)
        await operator._look(with_facts=True)
        try:
            yield operator, cluster, store
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await store.close()


async def leave(store: MemoryStore, address: str = OTHER, **arguments: str) -> Wish:
    """Wish that a node leaves, and wait for the end. Raises what refuses it."""
    await store_wish(store, Wish(WishKind.LEAVE, address, arguments, wall_ms()))
    while True:
        found = await load_wish(store, address)
        if found is not None and found.state is WishState.REFUSED:
            raise wishes.refusal(found)
        if found is not None and found.state is WishState.DONE:
            return found
        await asyncio.sleep(0.001)


async def join(store: MemoryStore, **arguments: str) -> Wish:
    await store_wish(store, Wish(WishKind.JOIN, OTHER, arguments, wall_ms()))
    while True:
        found = await load_wish(store, OTHER)
        if found is not None and found.state not in wishes.OPEN:
            return found
        await asyncio.sleep(0.001)


async def test_a_node_that_leaves_is_emptied_and_gets_nothing_again_until_it_joins() -> None:
    async with operated() as (operator, cluster, store):
        await leave(store)
        found = await operator.progress()
        assert not {"bookie-3", "broker-3"} & found["places"].keys()
        assert ("broker-3", "asked") in cluster.asked, "it gave its topics away"
        assert ("auditor", "decommission") in cluster.asked
        assert not {"bookie-3", "broker-3"} & cluster.running
        assert (found["wanted_bookies"], found["wanted_brokers"]) == (2, 2)
        await store_wish(store, Wish(WishKind.JOIN, OTHER, {}, wall_ms()))
        await until(lambda: "bookie-4" in cluster.running)
        assert (await operator.progress())["places"]["bookie-4"] == OTHER


async def test_a_node_with_a_member_of_etcd_stays() -> None:
    async with operated() as (operator, cluster, store):
        operator._settings = replace(operator._settings, others=("metadata-3",))
        cluster.running.add("metadata-3")
        await operator._look(with_facts=True)
        with pytest.raises(ConflictError, match=r"metadata store on its disk \(metadata-3\)"):
            await leave(store)
        assert ("bookie-3", "stop") not in cluster.asked


async def test_a_node_that_comes_again_keeps_its_parts() -> None:
    async with operated() as (operator, cluster, store):
        before = (await operator.progress())["places"]
        assert (await leave(store, data=wishes.KEEPS_DATA)).note == "bookie-3, broker-3 stopped in good order"
        assert cluster.asked[-3:] == [("broker-3", "asked"), ("broker-3", "stop"), ("bookie-3", "stop")]
        await join(store)
        assert (await operator.progress())["places"] == before


@pytest.mark.parametrize("is_emptied", [True, False])
async def test_a_node_that_topics_need_stays(is_emptied: bool) -> None:
    async with operated(ensemble_size=3) as (operator, cluster, store):
        with pytest.raises(ConflictError, match="ensemble of 3"):
            await leave(store, **({} if is_emptied else {"data": wishes.KEEPS_DATA}))
        assert (await operator.progress())["leaving"] == []
        assert "bookie-3" in cluster.running
        assert ("broker-3", "stop") not in cluster.asked
        if not is_emptied:  # a reboot of one of three
            await leave(store, data=wishes.KEEPS_DATA, force=wishes.FORCED)
            assert ("broker-3", "stop") in cluster.asked


async def test_a_node_that_joins_again_while_it_is_emptied_stays() -> None:
    async with operated() as (_operator, cluster, store):
        cluster.fails = ConflictError("too few")  # so that its bookie stays for now
        await store_wish(store, Wish(WishKind.LEAVE, OTHER, {}, 1))
        found = None
        while found is None or not found.outcome.get("left"):
            await asyncio.sleep(0.001)
            found = await load_wish(store, OTHER)
        assert found.outcome["left"]["bookie-3"] == "bookie-3 is on a node that is to leave, and stays for now: too few"
        joined = await join(store)
        assert (joined.kind, joined.note) == (WishKind.JOIN, "serving here: bookie-3")
        roster = await load_roster(store)
        assert roster is not None
        assert roster.leaving_nodes == ()
        assert "bookie-3" in cluster.running


async def test_a_part_of_a_node_that_joins_is_named_with_its_own_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is registered still: its session has not ended since its process did."""
    async with operated() as (_operator, cluster, store):
        why = "the cookie is of bookie-9"

        async def started(name: str, seconds: float) -> str:
            return why if name == "bookie-3" else ""

        monkeypatch.setattr(cluster, "started", started)
        await store_wish(store, Wish(WishKind.JOIN, OTHER, {"bookie": "bookie-7"}, wall_ms()))
        found = None
        while found is None or not found.note:
            await asyncio.sleep(0.001)
            found = await load_wish(store, OTHER)
        missing = {"bookie-3": why, "bookie-7": "the operator has not made it yet"}
        assert found.outcome == {"parts": ["bookie-3", "broker-3"], "missing": missing}
        assert found.note == f"waiting for bookie-3: {why}; bookie-7: the operator has not made it yet"
        assert found.state is WishState.ACCEPTED


async def test_the_node_of_the_metadata_store_and_the_last_one_for_brokers_stay() -> None:
    async with operated() as (_operator, cluster, store):
        with pytest.raises(ConflictError, match="metadata store"):
            await leave(store, "10.0.0.1")
        with pytest.raises(NotFoundError, match=r"10\.0\.0\.9"):
            await leave(store, "10.0.0.9")
        cluster.nodes[:2] = [replace(node, labels={labels.BOOKIE: "true"}) for node in NODES[:2]]
        with pytest.raises(ConflictError, match="nothing would serve clients"):
            await leave(store)


def test_replication_workers_follow_the_bookies() -> None:
    roster = first()
    rules = OperatorRules(has_replicators=True)
    running = {part.name for part in roster.parts} | {"replicator-1", "replicator-2", "replicator-9"}
    found = plan(roster, Sight(NODES, running=frozenset(running)), rules)
    assert (found.create, found.surplus) == (("replicator-3",), ("replicator-9",))
    found = plan(rosters.with_leaving(roster, ["bookie-2"]), Sight(NODES, running=frozenset(running)), rules)
    assert (found.create, found.surplus) == (("replicator-3",), ("replicator-2", "replicator-9"))
    without = plan(roster, Sight(NODES, running=frozenset(running)), OperatorRules())
    assert (without.create, without.surplus) == ((), ()), "the auditor does the work of all"


def test_a_bookie_that_is_named_on_the_label_of_a_node_is_at_that_node() -> None:
    roster = rosters.with_bookie(first(), Place({labels.BOOKIE: "bookie-7"}), "r1", "bookie-7")
    at = rosters.parts_at(roster, Node("10.0.0.9", {labels.BOOKIE: "bookie-7"}))
    assert [part.name for part in at] == ["bookie-7"]


@pytest.mark.parametrize(
    ("leaving", "departs"),
    [(["10.0.0.8"], False), (["10.0.0.9"], False), (["10.0.0.8", "10.0.0.9"], True), (["10.0.0.1"], False)],
)
def test_a_bookie_departs_when_the_last_node_of_its_name_is_to_leave(leaving: list[str], departs: bool) -> None:
    """It can run on either of the nodes that are labelled for it, so it has nothing to move while one stays."""
    roster = rosters.with_bookie(first(), Place({labels.BOOKIE: "bookie-7"}), "r1", "bookie-7")
    named = [Node(address, {labels.BOOKIE: "bookie-7"}) for address in ("10.0.0.8", "10.0.0.9")]
    running = frozenset(part.name for part in roster.parts)
    for drained, asked_for in ((leaving, ()), ((), leaving)):
        now = replace(roster, leaving_nodes=tuple(asked_for))
        found = plan(now, Sight([*NODES, *named], frozenset(drained), running), OperatorRules())
        assert ("bookie-7" in found.departures) is departs


@pytest.mark.parametrize("chosen", [{}, {"brokers": 2}])
def test_a_start_notes_whether_the_number_of_brokers_was_chosen(chosen: dict[str, int], tmp_path: Path) -> None:
    settings = ClusterConfig(home=tmp_path, host="10.0.0.1", insecure=True)
    url = f"memory://start-with-{len(chosen)}"

    def start(**more: int) -> bool:
        config = settings.model_copy(update=more)
        return asyncio.run(deployment._call_roll(config, url, [], NODES)).joining_bring_brokers

    assert start(**chosen) is not bool(chosen)
    assert start() is not bool(chosen), "it stays as it was"
    assert not start(brokers=2)


async def test_a_part_that_was_taken_out_meanwhile_is_not_created(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path)
    created = asyncio.to_thread(deployment.create_named, config, portable(()), "", "", "bookie-9", first())
    with pytest.raises(NotFoundError, match="no part 'bookie-9' any more"):
        await asyncio.wait_for(created, 60)


def test_a_start_brings_back_no_part_that_left_since_the_last_one(tmp_path: Path) -> None:
    config = ClusterConfig(home=tmp_path, bookies=3, brokers=3, host="10.0.0.1", insecure=True)
    parts = [part_named(name, config, Place()) for name in ("bookie-1", "broker-1")]
    url = "memory://start-after-a-leave"

    def start(settings: ClusterConfig, nodes: list[Node]) -> Roster:
        return asyncio.run(deployment._call_roll(settings, url, parts, nodes))

    def change(changed: Callable[[Roster], Roster]) -> None:
        async def write() -> None:
            store = await connect_store(url)
            found = await load_roster(store)
            assert found is not None
            await save_roster(store, changed(found))
            await store.close()

        asyncio.run(write())

    def numbers(roster: Roster) -> tuple[int, int]:
        return roster.wanted_bookies, roster.wanted_brokers

    assert numbers(start(config, NODES)) == (3, 3)
    change(lambda now: rosters.without(rosters.without(now, "bookie-3"), "broker-3"))
    roster = start(config, NODES[:2])
    assert numbers(roster) == (2, 2)
    assert {"bookie-3", "bookie-4", "broker-3"}.isdisjoint(part.name for part in roster.parts)
    assert numbers(start(config, NODES)) == (2, 2), "nor a later one"
    said = rosters.fewer_than(roster, bookies=config.bookies, brokers=config.brokers)
    assert [line.partition(" = ")[0] for line in said] == ["bookies", "brokers"]
    change(lambda now: rosters.scaled(now, "bookie", 3, []))  # helio scale, which writes the number to the file
    change(lambda now: rosters.without(now, "bookie-2"))
    assert numbers(start(config, NODES)) == (2, 2)
    more = config.model_copy(update={"bookies": 4})
    assert numbers(start(more, NODES)) == (4, 2), "a number that is new is meant"
