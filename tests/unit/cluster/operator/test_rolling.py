"""The order of a rolling restart, what it waits for, and how it stops. A metadata store in memory, and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typing_extensions import override

from heliograph.cluster.operator.planning import Sight
from heliograph.cluster.operator.ports import ActorState, ClusterPort, OperatorContext, PartFacts
from heliograph.cluster.operator.rolling import Rolling
from heliograph.cluster.operator.shortage import Shortage
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.bookie_records import UnderReplicatedLedger
from heliograph.metadata.codec import encode
from heliograph.metadata.operator_records import RollingRestart, Roster, RosterPart
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore

PARTS = ("bookie-1", "bookie-2", "broker-1")


@dataclass
class Parts(ClusterPort):
    """Parts that are their registrations. ``broken`` do not serve again."""

    store: MetadataStore
    broken: frozenset[str] = frozenset()
    events: list[str] = field(default_factory=list)
    sharing: frozenset[str] = frozenset()
    on_create: Callable[[], None] = lambda: None

    @override
    async def sight(self, homes: Mapping[str, str]) -> Sight:
        raise NotImplementedError

    @override
    async def facts(self, names: frozenset[str]) -> dict[str, PartFacts]:
        raise NotImplementedError

    @override
    async def actors(self, names: frozenset[str]) -> dict[str, ActorState]:
        raise NotImplementedError

    @override
    async def memory_shortage(self) -> Shortage | None:
        raise NotImplementedError

    @override
    async def create(self, name: str, roster: Roster) -> None:
        self.events.append(f"create {name}")
        self.on_create()

    @override
    async def started(self, name: str, seconds: float) -> str:
        if name in self.broken:
            return "its disk is gone"
        await register(self.store, name)
        return ""

    @override
    async def remove(self, name: str) -> None:
        self.events.append(f"remove {name}")
        if await self.store.exists(registration(name)):
            await self.store.delete(registration(name))

    @override
    async def erase(self, name: str) -> bool:
        raise AssertionError("no data is to be deleted")

    @override
    async def on_node(self, address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        raise NotImplementedError

    @override
    async def shared(self) -> frozenset[str]:
        return self.sharing

    @override
    async def replace_shared(self, names: Sequence[str], roster: Roster) -> None:
        for name in names:
            await self.store.delete(registration(name))
        self.events.append(f"restart {', '.join(names)}")

    @override
    async def ask(self, name: str, method: str, *arguments: Any) -> Any:
        self.events.append(f"{method} {name}")


def registration(name: str) -> str:
    return paths.bookie_available(name) if name.startswith("bookie") else paths.broker_available(name)


async def register(store: MetadataStore, name: str) -> None:
    await store.create(registration(name), b"", parents=True)


def restarted(
    serving: tuple[str, ...],
    broken: frozenset[str] = frozenset(),
    *,
    is_lacking: bool = False,
    sharing: frozenset[str] = frozenset(),
    wanted: tuple[str, ...] = PARTS,
    leaving: str = "",
) -> tuple[list[str], Roster]:
    """Return what a restart of all parts did, and the roster that it left.

    Args:
        is_lacking: a ledger lacks copies until the restart says that it waits for them.
        sharing: parts that share a process.
        wanted: parts that are to be restarted.
        leaving: a part that is taken out while the first one is restarted.
    """

    async def scenario() -> tuple[list[str], Roster]:
        store = MemoryServer().open_session()
        await initialise(store)
        for name in serving:
            await register(store, name)
        rosters = [Roster(tuple(RosterPart(name, {}) for name in PARTS), 2, 1, 2, restart=RollingRestart(wanted))]
        notes: list[str] = []
        cluster = Parts(store, broken, sharing=sharing)
        if is_lacking:
            await store.create(paths.underreplicated(7), encode(UnderReplicatedLedger(7, ("bookie-9",))), parents=True)

        async def change(changed: Callable[[Roster], Roster]) -> None:
            rosters.append(changed(rosters[-1]))

        def note(name: str, text: str) -> None:
            notes.append(text)
            if is_lacking and "lack copies" in text:
                cluster.events.append("waits for copies")
                work = store.delete(paths.underreplicated(7))
                tasks.add(asyncio.get_running_loop().create_task(work))

        tasks: set[asyncio.Task[None]] = set()

        async def leading() -> Roster:
            return rosters[-1]

        if leaving:
            cluster.on_create = lambda: rosters.append(
                replace(rosters[-1], parts=tuple(part for part in rosters[-1].parts if part.name != leaving))
            )
        context = OperatorContext(store, cluster, leading, change, note, lambda name: "", 1, 0.01)
        await Rolling(context).run()
        return cluster.events, rosters[-1]

    return asyncio.run(scenario())


def created(events: list[str]) -> list[str]:
    return [event.removeprefix("create ") for event in events if event.startswith("create ")]


def test_all_parts_are_restarted_in_their_order() -> None:
    events, roster = restarted(PARTS)
    assert created(events) == [*PARTS]
    assert roster.restart is None
    assert roster.failure == ""


@pytest.mark.parametrize("leaving", ["bookie-2", "broker-1"])
def test_a_part_that_is_taken_out_meanwhile_is_not_created_again(leaving: str) -> None:
    events, roster = restarted(PARTS, leaving=leaving)
    assert created(events) == [name for name in PARTS if name != leaving]
    assert (roster.restart, roster.failure) == (None, "")


def test_parts_that_share_a_process_are_restarted_with_it() -> None:
    """The operator is one of them, so what is left is recorded before: another one goes on."""
    events, roster = restarted(PARTS, sharing=frozenset(["bookie-1", "bookie-2", "operator"]))
    assert events[:2] == ["restart bookie-1, bookie-2", "trigger_audit auditor"]
    assert created(events) == ["broker-1"]
    assert roster.restart is None
    assert roster.failure == ""


def test_the_operator_of_a_shared_process_goes_on_when_all_parts_serve() -> None:
    """Its predecessor has ended with the process, and has recorded that it is the next."""
    events, roster = restarted(PARTS, sharing=frozenset({*PARTS, "operator"}), wanted=("operator",))
    assert events == []
    assert roster.restart is None
    assert roster.failure == ""


def test_one_part_of_a_shared_process_is_restarted_alone() -> None:
    events, _ = restarted(PARTS, sharing=frozenset(PARTS), wanted=("bookie-2",))
    assert created(events) == ["bookie-2"]
    assert not [event for event in events if event.startswith("restart")]


def test_what_does_not_serve_is_restarted_first() -> None:
    """It may lack the code that the restart gives it; the others would wait for it."""
    events, roster = restarted(("bookie-1", "broker-1"))
    assert created(events) == ["bookie-2", "bookie-1", "broker-1"]
    assert roster.failure == ""


def test_a_part_that_does_not_serve_again_ends_it_with_the_reason() -> None:
    events, roster = restarted(PARTS, broken=frozenset(["bookie-2"]))
    assert created(events) == ["bookie-1", "bookie-2"]
    assert roster.restart is None
    assert "bookie-2 does not serve" in roster.failure
    assert "its disk is gone; not restarted: bookie-2, broker-1" in roster.failure


def test_nothing_is_stopped_while_a_ledger_lacks_copies() -> None:
    events, _ = restarted(PARTS, is_lacking=True)
    assert events[0] == "waits for copies"
    assert created(events) == [*PARTS]
