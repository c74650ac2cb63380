"""Another number of etcd members, and one that lost its disk: the steps and what survives an operator, etcd played."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ResourceError, ServiceNotReadyError
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.etcd_members.record import parts_of_roster, with_membership
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.operator import wishes
from heliograph.cluster.operator.changes.members import ERASE_TRIES_MAX, MemberRules
from heliograph.cluster.operator.granting import Outcome, Progress
from heliograph.cluster.operator.operator import Operator
from heliograph.cluster.operator.storage import load_roster, store_wish
from heliograph.cluster.parts import part_named
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.etcd_member.resizing import ListedMember
from heliograph.metadata.etcd_member.survey import MemberState, Survey
from heliograph.metadata.operator_records import Roster, RosterMember, Wish, WishKind, WishState
from tests.unit.cluster.operator.test_leaving import PlayedCluster, operated
from tests.unit.cluster.operator.test_wishes import ended, until_state
from tests.waits import until

HEAD = "10.0.0.1"
LABELS = {labels.METADATA: "true", labels.BOOKIE: "true"}
NODES = [Node(f"10.0.0.{number}", LABELS) for number in range(1, 6)]


def member(number: int) -> RosterMember:
    place = Place({labels.METADATA: "true"}, f"10.0.0.{number}").fields()
    return RosterMember(f"metadata-{number}", f"10.0.0.{number}", 2377 + 2 * number, place)


def resize(count: int, asked_ms: int = 1) -> Wish:
    return Wish(WishKind.MEMBERS, "metadata", {"count": str(count)}, asked_ms)


class PlayedEtcd:
    """etcd on nodes 1 to 5, with ``count`` members at first; the leader is the last voter that runs."""

    def __init__(self, cluster: PlayedCluster, count: int) -> None:
        self.names = {f"10.0.0.{number}:{2377 + 2 * number}": f"metadata-{number}" for number in range(1, 6)}
        self.peers = {name: f"http://{end.partition(':')[0]}:{int(end[-4:]) + 1}" for end, name in self.names.items()}
        self.listed: dict[int, ListedMember] = {}
        self.running: dict[str, int] = {}  # member ids, by name
        self.is_catching_up = False
        self.is_head_away = False
        self.returning = ""  # a member that serves again just when etcd has refused once to remove it
        self.retiring: set[str] = set()
        self.kept: list[list[str]] = []  # what the head noted
        self.log: list[str] = []
        self._last = 0
        self._cluster = cluster
        self._ask = cluster.ask
        for number in range(1, count + 1):
            name = f"metadata-{number}"
            self._list(name, is_learner=False)
            self._run(name)
            cluster.running.add(name)
        cluster.running.discard("metadata")
        cluster.nodes = list(NODES)
        cluster.tasks["keep"] = self._keep
        cluster.ask = self.ask  # type: ignore[method-assign]

    def _list(self, name: str, *, is_learner: bool) -> None:
        self._last += 1
        self.listed[self._last] = ListedMember(self._last, "", (self.peers[name],), is_learner)

    def _run(self, name: str) -> None:
        for number, one in self.listed.items():
            if one.peer_urls == (self.peers[name],):
                self.listed[number] = replace(one, name=name)
                self.running[name] = number

    def voters(self) -> list[str]:
        return [one.name for one in self.listed.values() if not one.is_learner]

    def lose(self, name: str) -> None:
        del self.running[name]

    async def ask(self, name: str, method: str, *arguments: Any) -> Any:
        if not name.startswith("metadata"):
            return await self._ask(name, method, *arguments)
        self.log.append(f"{method} {name}")
        if method == "retire":
            (self.retiring.add if arguments[0] else self.retiring.discard)(name)
        if method == "permit":
            assert name in self._cluster.running
            if name not in self.running:
                self._run(name)
        return None

    def _keep(self, at: str, home: str, membership: Mapping[str, Any], places: Mapping[str, Any], url: str) -> None:
        assert (at, home) == (HEAD, "/home")
        names = [one["name"] for one in membership["members"]]
        if self.is_head_away:
            raise ResourceError("the node at 10.0.0.1 is gone", field="node")
        assert list(places) == names
        assert url == "etcd://" + ",".join(end for end, name in self.names.items() if name in names)
        self.kept.append(names)

    async def survey(self, address: EtcdAddress) -> Survey:
        voters = self.voters()
        up = [name for name in voters if name in self.running]
        leader = self.running[up[-1]] if len(up) > len(voters) // 2 else 0
        found = []
        for endpoint in address.endpoints:
            number = self.running.get(self.names[endpoint], 0)
            is_there = number in self.listed
            found.append(
                MemberState(
                    endpoint, self.names[endpoint], number, leader if is_there else 0, why="" if is_there else "away"
                )
            )
        return Survey(tuple(found))

    def votes(self, address: EtcdAddress, endpoint: str) -> PlayedVotes:
        assert self.names[endpoint] in self.running, "the helper serves"
        return PlayedVotes(self)


class PlayedVotes:
    """The list of members of a played etcd."""

    def __init__(self, etcd: PlayedEtcd) -> None:
        self._etcd = etcd

    def listed(self) -> list[ListedMember]:
        return list(self._etcd.listed.values())

    def add_learner(self, peer_url: str) -> None:
        assert all(peer_url not in one.peer_urls for one in self.listed()), "etcd refuses an address twice"
        assert not any(one.is_learner for one in self.listed()), "one at a time"
        name = next(name for name, url in self._etcd.peers.items() if url == peer_url)
        self._etcd.log.append(f"add {name}")
        self._etcd._list(name, is_learner=True)

    def promote(self, member_id: int) -> None:
        one = self._etcd.listed[member_id]
        if self._etcd.is_catching_up:
            raise ServiceNotReadyError("can only promote a learner member which is in sync with leader")
        assert self._etcd.running[one.name] == member_id
        assert one.name in self._etcd.kept[-1], "the head has noted it before it has a vote"
        self._etcd.log.append(f"promote {one.name}")
        self._etcd.listed[member_id] = replace(one, is_learner=False)

    def remove(self, member_id: int) -> None:
        if self._etcd.listed[member_id].name == self._etcd.returning:
            self._etcd._run(self._etcd.returning)
            self._etcd.returning = ""
            raise ServiceNotReadyError("etcdserver: unhealthy cluster")
        one = self._etcd.listed.pop(member_id)
        self._etcd.is_catching_up &= not one.is_learner  # one that begins again gets the data
        self._etcd.log.append(f"remove {one.name}")
        self._etcd.running.pop(one.name, None)

    def hand_over(self, leader_endpoint: str, member_id: int) -> None:
        assert not self._etcd.listed[member_id].is_learner
        self._etcd.log.append(f"{self._etcd.names[leader_endpoint]} hands over to {self._etcd.listed[member_id].name}")


@asynccontextmanager
async def with_etcd(
    count: int, *, is_repeated: bool = False, lost: str = ""
) -> AsyncIterator[tuple[Operator, PlayedCluster, MemoryStore, PlayedEtcd]]:
    """Yield an operator of a cluster with so many members.

    Args:
        is_repeated: each step is done twice, as by the next operator if one ends before it has recorded the step.
        lost: a member that does not run.
    """
    rules = MemberRules("c1", tuple(map(member, range(1, count + 1))), 2379, "node", None, HEAD, "/home")
    with pytest.MonkeyPatch.context() as patch:
        async with operated(members=rules) as (operator, cluster, store):
            etcd = PlayedEtcd(cluster, count)
            patch.setattr("heliograph.metadata.etcd_member.survey.survey", etcd.survey)
            patch.setattr("heliograph.metadata.etcd_member.votes.EtcdVotes", etcd.votes)
            if lost:
                etcd.lose(lost)
            if is_repeated:
                steps = operator._members._steps
                steps.update({step: twice(do) for step, do in steps.items()})
            yield operator, cluster, store, etcd


def twice(do: Callable[[Outcome], Awaitable[Progress]]) -> Callable[[Outcome], Any]:
    async def done(now: Outcome) -> Progress:
        await do(now)
        return await do(now)

    return done


async def names_of(store: MemoryStore) -> list[str]:
    roster = await load_roster(store)
    assert roster is not None
    return [each.name for each in roster.members]


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_members_join_one_at_a_time_and_vote_when_they_have_the_data(is_repeated: bool) -> None:
    async with with_etcd(1, is_repeated=is_repeated) as (_operator, cluster, store, etcd):
        await store_wish(store, resize(3))
        done = await ended(store, "metadata")
        assert (done.state, done.note) == (WishState.DONE, "all 3 members serve")
        assert (done.outcome["members"], done.outcome["joined"]) == (
            ["metadata-1", "metadata-2", "metadata-3"],
            ["metadata-2", "metadata-3"],
        )
        changes = [line for line in etcd.log if line.startswith(("add", "promote"))]
        assert changes == ["add metadata-2", "promote metadata-2", "add metadata-3", "promote metadata-3"]
        assert etcd.voters() == etcd.kept[-1] == await names_of(store) == done.outcome["members"]
        assert {"metadata-2", "metadata-3"} <= cluster.running


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_the_last_ones_leave_and_a_leader_hands_over_before(is_repeated: bool) -> None:
    async with with_etcd(3, is_repeated=is_repeated) as (operator, cluster, store, etcd):
        await store_wish(store, resize(1))
        done = await ended(store, "metadata")
        assert (done.state, done.outcome["leftover"]) == (WishState.DONE, {})
        assert etcd.voters() == etcd.kept[-1] == await names_of(store) == ["metadata-1"]
        assert "metadata-3 hands over to metadata-1" in etcd.log
        removed = [call for call in cluster.asked if call[0].startswith("metadata")]
        assert list(dict.fromkeys(removed)) == [
            (name, what) for name in ("metadata-3", "metadata-2") for what in ("erase", "remove")
        ]
        await operator._look(with_facts=False)
        assert {"metadata-2", "metadata-3"}.isdisjoint(cluster.running), "nothing creates them again"
        assert operator._members.store_url(await operator._leading()) == "etcd://10.0.0.1:2379"


async def test_a_member_that_is_away_leaves_first_and_all_others_serve_before_the_next() -> None:
    async with with_etcd(5, lost="metadata-2") as (_operator, _cluster, store, etcd):
        await store_wish(store, resize(3))
        assert (await ended(store, "metadata")).outcome["members"] == ["metadata-1", "metadata-3", "metadata-4"]
        assert [line for line in etcd.log if line.startswith("remove")] == ["remove metadata-2", "remove metadata-5"]


async def test_a_member_that_ends_meanwhile_is_waited_for() -> None:
    async with with_etcd(3) as (_operator, _cluster, store, etcd):
        etcd.is_catching_up = True
        await store_wish(store, resize(5))
        await until(lambda: "metadata-4" in etcd.running)
        etcd.lose("metadata-1")
        etcd.is_catching_up = False
        waiting = await until_state(store, "metadata", WishState.ACCEPTED)
        while waiting.note != "waiting for metadata-1 to serve":
            waiting = await until_state(store, "metadata", WishState.ACCEPTED)
        assert etcd.voters() == ["metadata-1", "metadata-2", "metadata-3", "metadata-4"]
        etcd._run("metadata-1")
        assert (await ended(store, "metadata")).state is WishState.DONE


async def test_another_number_takes_back_what_was_begun() -> None:
    async with with_etcd(1) as (_operator, cluster, store, etcd):
        etcd.is_catching_up = True  # and does so for ever
        await store_wish(store, resize(3))
        await until(lambda: "metadata-2" in etcd.running)
        waiting = await until_state(store, "metadata", WishState.ACCEPTED)
        while "in sync with leader; it is tried again" not in waiting.note:
            waiting = await until_state(store, "metadata", WishState.ACCEPTED)
        await store_wish(store, resize(1, asked_ms=2))
        assert (await ended(store, "metadata")).outcome["members"] == ["metadata-1"]
        assert (etcd.voters(), len(etcd.listed)) == (["metadata-1"], 1)
        assert "metadata-2" not in cluster.running
        assert await names_of(store) == ["metadata-1"]


async def test_a_learner_that_serves_begins_again_for_another_number() -> None:
    async with with_etcd(1) as (_operator, _cluster, store, etcd):
        etcd.is_catching_up = True
        await store_wish(store, resize(3))
        await until(lambda: "metadata-2" in etcd.running)
        await store_wish(store, resize(5, asked_ms=2))
        done = await ended(store, "metadata")
        assert (done.state, len(etcd.voters())) == (WishState.DONE, 5)
        assert "remove metadata-2" in etcd.log


@pytest.mark.parametrize(("failures", "leftover"), [(1, []), (ERASE_TRIES_MAX - 1, []), (1_000, ["metadata-3"])])
async def test_data_that_could_not_be_deleted_is_tried_again_before_its_actor_ends(
    failures: int, leftover: list[str]
) -> None:
    async with with_etcd(3) as (_operator, cluster, store, _etcd):
        erase, left = cluster.erase, [failures]

        async def erased(name: str) -> bool:
            found = await erase(name)
            left[0] -= name == "metadata-3"
            if name == "metadata-3" and left[0] >= 0:
                raise ServiceNotReadyError(f"{name} does not answer within 60 s")
            return found

        cluster.erase = erased  # type: ignore[method-assign]
        await store_wish(store, resize(1))
        done = await ended(store, "metadata")
        assert (done.state, list(done.outcome["leftover"])) == (WishState.DONE, leftover)
        calls = [what for name, what in cluster.asked if name == "metadata-3"]
        assert calls == ["erase"] * min(failures + 1, ERASE_TRIES_MAX) + ["remove"]


async def test_no_member_gets_a_vote_before_the_machine_of_the_start_has_noted_it() -> None:
    async with with_etcd(1) as (_operator, _cluster, store, etcd):
        etcd.is_head_away = True
        await store_wish(store, resize(3))
        waiting = await until_state(store, "metadata", WishState.ACCEPTED)
        while "has to note the members" not in waiting.note:
            waiting = await until_state(store, "metadata", WishState.ACCEPTED)
        assert etcd.voters() == ["metadata-1"]
        etcd.is_head_away = False
        assert (await ended(store, "metadata")).state is WishState.DONE


async def test_a_start_of_the_cluster_before_a_new_member_is_noted_ends_no_wish() -> None:
    async with with_etcd(1) as (operator, cluster, store, etcd):
        create, is_started = cluster.create, [False]

        async def created(name: str, roster: Roster) -> None:
            if name == "metadata-2" and not is_started[0]:
                is_started[0] = True
                await operator._change(lambda now: replace(now, members=(member(1),)))  # as helio up does
                raise ServiceNotReadyError("Ray does not answer")
            assert name != "metadata-2" or name in [each.name for each in roster.members]
            await create(name, roster)

        cluster.create = created  # type: ignore[method-assign]
        await store_wish(store, resize(3))
        assert (await ended(store, "metadata")).outcome["members"] == etcd.voters()


@pytest.mark.parametrize("is_repeated", [False, True])
async def test_a_member_whose_disk_was_lost_leaves_the_list_and_joins_again(is_repeated: bool) -> None:
    async with with_etcd(3, is_repeated=is_repeated, lost="metadata-3") as (_operator, cluster, store, etcd):
        await store_wish(store, Wish(WishKind.REPLACE, "metadata-3", {}, 1))
        done = await ended(store, "metadata-3")
        assert done.outcome == {"member": "metadata-3", "is_serving": True, "change": None}
        changes = [line for line in etcd.log if line.startswith(("add", "promote", "remove"))]
        assert changes == ["remove metadata-3", "add metadata-3", "promote metadata-3"]
        assert ("metadata-3", "remove") in cluster.asked, "its actor was made with the members of before"
        assert "metadata-3" in cluster.running
        assert await names_of(store) == etcd.voters()


async def test_a_member_that_returns_with_its_disk_before_it_is_replaced_stays() -> None:
    async with with_etcd(3, lost="metadata-3") as (_operator, cluster, store, etcd):
        etcd.returning = "metadata-3"
        await store_wish(store, Wish(WishKind.REPLACE, "metadata-3", {}, 1))
        refused = await ended(store, "metadata-3")
        assert (refused.state, refused.note) == (
            WishState.REFUSED,
            "metadata-3 serves again at 10.0.0.3:2383: it has its disk, and stays a member",
        )
        assert type(wishes.refusal(refused)) is ConflictError
        assert (etcd.voters()[-1], etcd.retiring) == ("metadata-3", set())
        assert ("metadata-3", "remove") not in cluster.asked


@pytest.mark.parametrize(
    ("count", "wish", "error", "why"),
    [
        (3, Wish(WishKind.REPLACE, "metadata-2", {}, 1), ConflictError, "it has its disk"),
        (3, Wish(WishKind.REPLACE, "metadata-7", {}, 1), NotFoundError, "no etcd member 'metadata-7'"),
        (1, Wish(WishKind.REPLACE, "metadata-1", {}, 1), ConflictError, "restore a backup"),
        (3, resize(2), BadRequestError, "survive no more failures"),
        (0, resize(3), NotFoundError, "runs no etcd of its own"),
    ],
)
async def test_what_cannot_be_is_refused(count: int, wish: Wish, error: type[Exception], why: str) -> None:
    async with with_etcd(count) if count else operated() as made:
        store = made[2]
        await store_wish(store, wish)
        refused = await ended(store, wish.subject)
        assert refused.state is WishState.REFUSED
        assert type(wishes.refusal(refused)) is error
        assert why in refused.note


async def test_without_a_node_for_each_member_nothing_is_done() -> None:
    async with with_etcd(1) as (_operator, cluster, store, etcd):
        cluster.nodes = NODES[:2]
        await store_wish(store, resize(3))
        assert "1 nodes labelled heliograph.io/metadata=true are missing" in (await ended(store, "metadata")).note
        assert etcd.log == []


def test_members_are_not_changed_while_all_parts_restart_or_one_is_replaced() -> None:
    for other in (
        Wish(WishKind.RESTART, wishes.PARTS),
        Wish(WishKind.REPLACE, "metadata-2"),
        Wish(WishKind.LEAVE, "10.0.0.2"),
    ):
        for one, two in ((resize(3), other), (other, resize(3))):
            with pytest.raises(ConflictError, match="exclude each other"):
                wishes.require_possible(one, [two])
    wishes.require_possible(resize(3), [Wish(WishKind.REPLACE, "bookie-2"), Wish(WishKind.MOVE, "bookie-1"), resize(5)])


def test_the_members_of_the_roster_are_made_in_place_of_those_of_the_start() -> None:
    config = ClusterConfig(metadata_kind="etcd", host="node")
    place = Place({labels.METADATA: "true"}, "10.0.0.1")
    first = with_membership([part_named("metadata-1", config, place)], NODES, config, _NoHome())  # type: ignore[arg-type]
    found = parts_of_roster(first, [member(1), member(3)], config)
    assert [(part.name, part.place.address, part.port) for part in found] == [
        ("metadata-1", "10.0.0.1", 2379),
        ("metadata-3", "10.0.0.3", 2383),
    ]
    assert all(part.membership == found[0].membership for part in found)
    assert found[1].membership is not None
    assert found[1].membership.store_url(None) == "etcd://10.0.0.1:2379,10.0.0.3:2383"
    assert parts_of_roster(first, [], config) == first


class _NoHome:
    """A home in which nothing is recorded."""

    def members(self) -> None:
        return None

    def keep_members(self, membership: Mapping[str, Any]) -> None:
        """Forget it."""
