"""The etcd members that a cluster runs itself: another number of them, and one whose disk was lost.

One member joins or leaves at a time, and all serve before the next. A new one has no vote until it has the data of the
others; one whose disk was lost leaves the list and joins again. The outcome of a wish has the change that is under way
with its next step, so another operator goes on there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from heliograph.base.errors import ConflictError, HeliographError, NotFoundError, ResourceError, ServiceNotReadyError
from heliograph.base.lifecycle import Lifecycle
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.client.discovery import METADATA_PREFIX
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.etcd_members import record
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.naming import sort_key
from heliograph.cluster.operator import roster as rosters
from heliograph.cluster.operator.granting import Outcome, Progress, Way
from heliograph.cluster.operator.planning import OperatorRules
from heliograph.cluster.operator.ports import OperatorContext
from heliograph.cluster.parts import Part
from heliograph.metadata.etcd_member.membership import COUNTS, PORTS_OF_A_MEMBER, EtcdMember, EtcdMembership
from heliograph.metadata.etcd_member.resizing import ListedMember, MemberChange, check_wanted, next_change, without
from heliograph.metadata.operator_records import Roster, RosterMember, Wish

if TYPE_CHECKING:
    from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
    from heliograph.metadata.etcd_member.survey import Survey
    from heliograph.metadata.etcd_member.votes import EtcdVotes

ERASE_TRIES_MAX = 3  # calls to delete the data of a member that left, after which it is named as left over


@dataclass(frozen=True, slots=True)
class MemberRules:
    """Settings of the members.

    Attributes:
        cluster_id: of the etcd cluster.
        members: the members of the start that made this operator.
        port: for clients, of the first member.
        host: that listeners bind to.
        head, home: address of the node of ``helio up``, and the directory where it records the members.
    """

    cluster_id: str
    members: tuple[RosterMember, ...]
    port: int
    host: str
    tls: PeerTlsFiles | None
    head: str
    home: str


def rules_of(parts: Sequence[Part], config: ClusterConfig, head: str) -> MemberRules | None:
    """Return the rules by which etcd members are made; None: no part is a member."""
    membership = next((part.membership for part in parts if part.membership is not None), None)
    if membership is None:
        return None
    members, home = record.roster_members(parts), str(config.home_directory)
    return MemberRules(membership.cluster_id, members, config.etcd_port, config.host, config.peer_tls, head, home)


class MemberStep(Enum):
    """The next step for a member that joins or leaves."""

    REMOVE = "remove"
    CLEAR = "clear"
    ADD = "add"
    START = "start"
    VOTE = "vote"


MEMBER_LIFE = Lifecycle(
    {
        MemberStep.REMOVE: (
            "A leader hands over, and etcd takes the member off its list.",
            [MemberStep.CLEAR, MemberStep.ADD],
        ),
        MemberStep.CLEAR: ("It is off the roster, its data is deleted, and its actor ends.", []),
        MemberStep.ADD: ("etcd lists it without a vote, and the roster has it.", [MemberStep.START]),
        MemberStep.START: (
            "Its actor is made with the members of now, and begins on an empty disk.",
            [MemberStep.VOTE],
        ),
        MemberStep.VOTE: ("It gets its vote once it has the data.", []),
    }
)


class _MemberView(NamedTuple):
    """The members at one moment: of the roster, with a vote, and the names of the serving members."""

    membership: EtcdMembership
    voters: EtcdMembership
    serving: set[str]
    listed: list[ListedMember]
    votes: EtcdVotes

    def listed_at(self, url: str) -> ListedMember | None:
        """Return the member that etcd lists at an address."""
        return next((one for one in self.listed if url in one.peer_urls), None)


class Members:
    """The wishes for another number of members, and for a member that begins again on an empty disk."""

    def __init__(self, context: OperatorContext, rules: OperatorRules, own: MemberRules | None) -> None:
        self._cluster = context.cluster
        self._leading = context.leading
        self._change = context.change
        self._rules = rules
        self._own = own
        self._steps: dict[MemberStep, Callable[[Outcome], Awaitable[Progress]]] = {
            MemberStep.REMOVE: self._remove,
            MemberStep.CLEAR: self._clear,
            MemberStep.ADD: self._add,
            MemberStep.START: self._start,
            MemberStep.VOTE: self._vote,
        }

    def resizing(self) -> Way:
        """Return how another number of members is carried out."""
        return Way(self._begin_resizing, self._resize)

    def replacement(self) -> Way:
        """Return how a member whose disk was lost is replaced."""
        return Way(self._begin_replacement, self._replace)

    def store_url(self, roster: Roster) -> str:
        """Return the URL of the metadata store by the members of now; empty if the cluster runs none."""
        return "" if self._own is None else self._membership(roster).store_url(self._own.tls)

    # -- another number

    async def _begin_resizing(self, wish: Wish) -> Outcome:
        roster, wanted = await self._leading(), int(wish.arguments["count"])
        seen = await self._seen(self._membership(roster))
        check_wanted(seen.voters, seen.serving, wanted)
        missing = wanted - len(seen.membership.members) - len(self._candidates(roster, await self._nodes()))
        if missing > 0:
            raise ConflictError(
                f"{wanted} etcd members need a node each, and {missing} nodes labelled {labels.METADATA}={labels.ANY} "
                f"are missing: start them with `helio join --label {labels.METADATA}={labels.ANY}`",
                field="count",
            )
        for name in seen.serving:  # an earlier wish may have been taken back while one of them was to leave
            await self._retire(name, is_retiring=False)
        names = [member.name for member in seen.voters.members]
        return {"members": names, "joined": [], "leftover": {}, "silent": sorted({*names} - seen.serving)}

    async def _resize(self, wish: Wish) -> Progress:
        now, roster = wish.outcome, await self._leading()
        if now.get("change"):
            return await self._steps[MemberStep(now["change"]["step"])](now)
        seen = await self._seen(self._membership(roster))
        await self._align(seen)
        names = [member.name for member in seen.membership.members]
        silent = [name for name in names if name not in seen.serving and name not in now["silent"]]
        candidates = self._candidates(roster, await self._nodes())
        wanted, tls = int(wish.arguments["count"]), self._known().tls
        change = next_change(seen.membership, seen.listed, list(candidates), seen.serving, wanted, tls)
        if change is not None and not (silent and change.is_new):
            place = candidates.get(change.member) or self._place_of(roster, change.member.name)
            return Progress(False, "", {**now, "change": _begun(change, place)})
        if silent:
            return Progress(False, f"waiting for {', '.join(silent)} to serve", now)
        await self._record(roster)
        return Progress(True, f"all {len(names)} members serve", {**now, "members": names})

    async def _align(self, seen: _MemberView) -> None:
        """Have etcd list the address that an only member has now; it may have moved with its machine."""
        url = seen.membership.members[0].peer_url(self._known().tls)
        if len(seen.membership.members) == len(seen.listed) == 1 and url not in seen.listed[0].peer_urls:
            await asyncio.to_thread(seen.votes.move, seen.listed[0].member_id, url)
            raise ServiceNotReadyError(f"etcd has noted that its only member is at {url} now")

    # -- a lost disk

    async def _begin_replacement(self, wish: Wish) -> Outcome:
        roster, name = await self._leading(), wish.subject
        membership = self._membership(roster)
        names = [each.name for each in membership.members]
        if name not in names:
            raise NotFoundError(f"there is no etcd member {name!r}", field="member", limit=", ".join(names))
        if len(names) == 1:
            raise ConflictError(
                f"{name} is the only member: the data of its disk is lost; restore a backup (helio backup restore)"
            )
        seen, member = await self._seen(membership), membership.member(name)
        if name in seen.serving:
            raise ConflictError(f"{name} serves at {member.endpoint}: it has its disk")
        change = MemberChange(member, joins=True, listed=seen.listed_at(member.peer_url(self._known().tls)))
        return {"member": name, "is_serving": False, "change": _begun(change, self._place_of(roster, name))}

    async def _replace(self, wish: Wish) -> Progress:
        name, now = wish.subject, wish.outcome
        if now["change"]:
            return await self._steps[MemberStep(now["change"]["step"])](now)
        is_serving = name in (await self._seen(self._membership(await self._leading()))).serving
        note = "" if is_serving else f"waiting for {name} to serve"
        return Progress(is_serving, note, {**now, "is_serving": is_serving})

    # -- the steps of one change, each of which may be repeated

    async def _remove(self, now: Outcome) -> Progress:
        change, membership = now["change"], self._membership(await self._leading())
        member, number = _member(change), change["old"]
        await self._retire(member.name, is_retiring=True)
        is_known = any(each.name == member.name for each in membership.members)
        rest = without(membership, member.name) if is_known else membership
        seen = await self._seen(rest)
        if any(one.member_id == number for one in seen.listed):
            state = (await self._survey(replace(rest, members=(member,)))).members[0]
            if state.is_serving and "is_serving" in now:  # only a wish for a replacement has it: the disk is back
                await self._retire(member.name, is_retiring=False)
                raise ConflictError(
                    f"{member.name} serves again at {member.endpoint}: it has its disk, and stays a member"
                )
            if state.is_leader:
                heir = next(one for one in seen.listed if one.name in seen.serving and not one.is_learner)
                await asyncio.to_thread(seen.votes.hand_over, member.endpoint, heir.member_id)
            await asyncio.to_thread(seen.votes.remove, number)
        to = MemberStep.ADD if change["joins"] else MemberStep.CLEAR
        return _next(now, to, f"{member.name} is off the list of members")

    async def _clear(self, now: Outcome) -> Progress:
        """Delete the data of a member that left, which no member can use again, and remove its actor."""
        change, leftover = now["change"], now["leftover"]
        name, tries = change["name"], change.get("tries", 0) + 1
        note = f"{name} has left"
        await self._change(lambda roster: replace(roster, members=self._members(roster, without=name)))
        await self._record(await self._leading())
        if name:  # etcd has no name for one that never started
            try:
                await self._cluster.erase(name)
            except HeliographError as error:
                note = f"the directory of {name} could not be deleted: {error}"
                if tries < ERASE_TRIES_MAX:  # only its actor can delete it, so the actor stays
                    return Progress(False, f"{note}; it is tried again", {**now, "change": {**change, "tries": tries}})
                leftover = {**leftover, name: str(error)}
            await self._cluster.remove(name)
        return Progress(False, note, {**now, "leftover": leftover, "change": None})

    async def _add(self, now: Outcome) -> Progress:
        change = now["change"]
        member = _member(change)
        seen, url = await self._seen(self._membership(await self._leading())), member.peer_url(self._known().tls)
        if seen.listed_at(url) is None:
            await asyncio.to_thread(seen.votes.add_learner, url)
        await self._enlist(change)
        await self._cluster.remove(member.name)  # one that runs was made with the members of before
        note = f"{member.name} joins at {member.endpoint}, without a vote until it has the data"
        return _next(now, MemberStep.START, note)

    async def _enlist(self, change: Outcome) -> None:
        """Have the roster name a member that joins."""
        made = RosterMember(change["name"], change["host"], change["client_port"], change["place"])

        def with_member(roster: Roster) -> Roster:
            members = (*self._members(roster, without=made.name), made)
            return replace(roster, members=tuple(sorted(members, key=lambda each: sort_key(each.name))))

        await self._change(with_member)

    async def _start(self, now: Outcome) -> Progress:
        name = now["change"]["name"]
        await self._enlist(now["change"])  # a start since has the members that the first machine had noted
        roster = await self._leading()
        await self._cluster.create(name, roster)
        try:
            await self._cluster.ask(name, "permit", True)
        except (ConflictError, ResourceError) as error:  # the disk can be mended, or the wish taken back
            raise ServiceNotReadyError(f"{name}: {error}") from error
        await self._record(roster)  # no start does without it once it has its vote
        return _next(now, MemberStep.VOTE, f"{name} gets the data of the others")

    async def _vote(self, now: Outcome) -> Progress:
        member = _member(now["change"])
        seen = await self._seen(self._membership(await self._leading()))
        listed = seen.listed_at(member.peer_url(self._known().tls))
        if listed is None:
            raise ConflictError(f"{member.name} was taken off the list of members meanwhile", field="member")
        if listed.is_learner:
            await asyncio.to_thread(seen.votes.promote, listed.member_id)
        joined = {"joined": [*now["joined"], member.name]} if "joined" in now else {}
        return Progress(False, f"{member.name} has a vote", {**now, **joined, "change": None})

    # -- what is known of the members

    def _known(self) -> MemberRules:
        if self._own is None:
            raise NotFoundError("this cluster runs no etcd of its own: its metadata is elsewhere", field="metadata")
        return self._own

    def _members(self, roster: Roster, *, without: str = "") -> tuple[RosterMember, ...]:
        members = roster.members or self._known().members  # the roster of an earlier release has none
        return tuple(each for each in members if each.name != without)

    def _membership(self, roster: Roster) -> EtcdMembership:
        return record.of_roster(self._known().cluster_id, self._members(roster))

    def _place_of(self, roster: Roster, name: str) -> Place:
        found = next((each.place for each in self._members(roster) if each.name == name), {})
        return Place.parse(found)

    async def _record(self, roster: Roster) -> None:
        """Have the machine of ``helio up`` note the members, by which the next start finds them."""
        own, membership = self._known(), self._membership(roster)
        places = {member.name: member.place for member in self._members(roster)}
        url = membership.store_url(own.tls)
        try:
            await self._cluster.on_node(own.head, record.keep, own.home, membership.fields(), places, url)
        except ResourceError as error:
            raise ServiceNotReadyError(f"the machine of helio up has to note the members: {error}") from error

    async def _retire(self, name: str, *, is_retiring: bool) -> None:
        with contextlib.suppress(HeliographError):  # one that does not answer does not run etcd either
            await self._cluster.ask(name, "retire", is_retiring)

    async def _survey(self, membership: EtcdMembership) -> Survey:
        # It loads gRPC, which a cluster without etcd does without.
        from heliograph.metadata.etcd_member import survey

        return await survey.survey(self._address(membership))

    async def _seen(self, membership: EtcdMembership) -> _MemberView:
        """Ask all members for their state.

        Raises:
            ServiceNotReadyError: none of them serves, or etcd does not answer.
        """
        from heliograph.metadata.etcd_member import votes

        found = await self._survey(membership)
        pairs = list(zip(membership.members, found.members, strict=True))
        serving = {member.name for member, state in pairs if state.is_serving}
        if not serving:
            raise ServiceNotReadyError(found.trouble)
        helper = next(member.endpoint for member, state in pairs if state.is_serving)
        etcd = votes.EtcdVotes(self._address(membership), helper)
        listed = await asyncio.to_thread(etcd.listed)
        learners = {url for one in listed if one.is_learner for url in one.peer_urls}
        tls = self._known().tls
        voters = tuple(each for each in membership.members if each.peer_url(tls) not in learners)
        return _MemberView(membership, replace(membership, members=voters), serving, listed, etcd)

    def _address(self, membership: EtcdMembership) -> EtcdAddress:
        from heliograph.metadata.backends.etcd.wire.address import EtcdAddress

        return EtcdAddress.parse(membership.store_url(self._known().tls))

    async def _nodes(self) -> Sequence[Node]:
        return (await self._cluster.sight({})).nodes

    def _candidates(self, roster: Roster, nodes: Sequence[Node]) -> dict[EtcdMember, Place]:
        """Return the members that may join, in their order: each has a number and a place that none has now."""
        own, rules = self._known(), self._rules
        used = {member.name: Place.parse(member.place) for member in self._members(roster)}
        known = {part.name: rosters.place_of(part) for part in roster.parts} | used
        places = labels.further_member_places(
            nodes, known, is_local=rules.is_local, require_labels=rules.require_labels
        )
        free = (number for number in range(1, 2 * max(COUNTS)) if f"{METADATA_PREFIX}{number}" not in used)
        found = {}
        for number, place in zip(free, places, strict=False):
            port = own.port + PORTS_OF_A_MEMBER * (number - 1)
            found[EtcdMember(f"{METADATA_PREFIX}{number}", record.host_at(place, nodes, own.host), port)] = place
        return found


def _member(change: Outcome) -> EtcdMember:
    return EtcdMember(change["name"], change["host"], change["client_port"])


def _begun(change: MemberChange, place: Place) -> Outcome:
    """Return a change as the outcome of a wish has it, with its first step."""
    member, old = change.member, change.listed
    is_added = change.joins and (old is None or not old.name)  # one without a name has not started since it was added
    return {
        "step": (MemberStep.ADD if is_added else MemberStep.REMOVE).value,
        "joins": change.joins,
        "name": member.name,
        "host": member.host,
        "client_port": member.client_port,
        "place": place.fields(),
        "old": old.member_id if old is not None else None,
    }


def _next(now: Outcome, to: MemberStep, note: str) -> Progress:
    change = now["change"]
    step = MEMBER_LIFE.move(MemberStep(change["step"]), to)
    return Progress(False, note, {**now, "change": {**change, "step": step.value}})
