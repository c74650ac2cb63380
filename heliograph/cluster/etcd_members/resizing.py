"""Another number of etcd members in a running cluster: one joins or leaves at a time, and all serve before the next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.exceptions

from heliograph.base.errors import ConflictError, HeliographError, ServiceNotReadyError
from heliograph.base.home import ClusterHome
from heliograph.base.peer import is_loopback
from heliograph.client import discovery
from heliograph.client.discovery import METADATA_PREFIX
from heliograph.cluster import diagnosis, labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.diagnosis import reason
from heliograph.cluster.etcd_members.record import host_of
from heliograph.cluster.etcd_members.replacement import known_members, permit_joining
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.parts import Part, part_named
from heliograph.cluster.removal import existing, remove
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.membership import COUNTS, EtcdMember, EtcdMembership
from heliograph.metadata.etcd_member.resizing import (
    MemberChange,
    check_wanted,
    next_change,
    with_member,
    without,
)
from heliograph.metadata.etcd_member.survey import Survey, survey
from heliograph.metadata.etcd_member.votes import EtcdVotes

ANSWER_SECONDS = 10.0  # of a member's actor
ERASE_SECONDS = 60.0
POLL_SECONDS = 1.0

Progress = Callable[[str], None]
CreateMember = Callable[[Part], None]  # creates the actor of a member


@dataclass(frozen=True, slots=True)
class ResizeOutcome:
    """The members, and what is left of those that went.

    Attributes:
        joined: those that are new.
        done: whether there are as many as wanted, and all serve; otherwise another call goes on.
        leftover: directories that could not be deleted, by member, with the reasons.
    """

    members: tuple[str, ...]
    done: bool
    joined: tuple[str, ...]
    leftover: dict[str, str]


class MemberResize:
    """One change of the number of members. The process has joined the cluster's Ray.

    Args:
        create: creates the actor of a new member.
        wait_seconds: longest wait for one member to have the others' data and to serve.
    """

    def __init__(
        self, config: ClusterConfig, create: CreateMember, wait_seconds: float, progress: Progress = lambda _: None
    ) -> None:
        self._config = config
        self._home = ClusterHome(config.home_directory)
        self._create = create
        self._wait_seconds = wait_seconds
        self._say = progress
        self._leftover: dict[str, str] = {}

    def run(self, wanted: int) -> ResizeOutcome:
        """Have ``wanted`` members. A call that was interrupted is finished by another.

        Raises:
            NotFoundError: the cluster runs no etcd.
            BadRequestError: so many members make no sense.
            ConflictError: a majority would be lost, or there is no node for a new member; nothing was done.
            ServiceNotReadyError: a majority is lost, or etcd refuses for too long; repeat the call.
        """
        before = membership = known_members(self._home)
        check_wanted(membership, self._serving(membership), wanted)
        missing = wanted - len(membership.members) - len(self._candidates(membership))
        if missing > 0:
            raise ConflictError(
                f"{wanted} etcd members need a node each, and {missing} nodes labelled {labels.METADATA}={labels.ANY} "
                f"are missing: start them with `helio join --label {labels.METADATA}={labels.ANY}`",
                field="count",
            )
        while (change := self._next(membership, wanted)) is not None:
            done = self._join(membership, change) if change.joins else self._leave(membership, change)
            if done is None:
                return self._outcome(membership, before, done=False)
            membership = done
            if not self._until_all_serve(membership):
                return self._outcome(membership, before, done=False)
        return self._outcome(membership, before, done=True)

    def _outcome(self, membership: EtcdMembership, before: EtcdMembership, *, done: bool) -> ResizeOutcome:
        names = tuple(member.name for member in membership.members)
        joined = tuple(member.name for member in membership.members if member not in before.members)
        return ResizeOutcome(names, done, joined, self._leftover)

    def _next(self, membership: EtcdMembership, wanted: int) -> MemberChange | None:
        found = self._survey(membership)
        self._align(membership, found)
        listed = self._votes(membership, found).listed()
        serving = self._serving(membership, found)
        tls = self._config.peer_tls
        return next_change(membership, listed, self._candidates(membership), serving, wanted, tls)

    # -- one member

    def _join(self, membership: EtcdMembership, change: MemberChange) -> EtcdMembership | None:
        member = change.member
        wider = with_member(membership, member)
        place = self._place(member)
        url = member.peer_url(self._config.peer_tls)
        deadline = time.monotonic() + self._wait_seconds
        if change.listed is None and not self._try(lambda: self._votes(membership).add_learner(url), deadline):
            return None
        self._say(f"{member.name} joins at {member.endpoint}, without a vote until it has the data")
        part = replace(part_named(member.name, self._config, place), membership=wider)
        if existing(member.name, self._config.namespace) is None:
            self._create(part)
        permit_joining(member.name, self._config.namespace)

        def promote() -> None:
            votes = self._votes(membership)
            own = next(one for one in votes.listed() if url in one.peer_urls)
            if own.is_learner:
                votes.promote(own.member_id)

        if not self._try(promote, deadline):
            return None
        self._home.keep_places({member.name: place.fields()})
        self._home.keep_members(wider.fields())
        self._say(f"{member.name} has a vote")
        return wider

    def _leave(self, membership: EtcdMembership, change: MemberChange) -> EtcdMembership | None:
        member = change.member
        is_known = member in membership.members
        left = without(membership, member.name) if is_known else membership
        handle = existing(member.name, self._config.namespace)
        _told(handle, is_retiring=True)
        if change.listed is not None:
            number = change.listed.member_id
            deadline = time.monotonic() + self._wait_seconds
            try:
                if not self._try(lambda: self._remove(left, member, number), deadline):
                    return None
            except BaseException:
                _told(handle, is_retiring=False)
                raise
        self._say(f"{member.name} is off the list of members")
        if is_known:
            self._home.keep_members(left.fields())
            self._home.forget_place(member.name)
        self._clear(member.name, handle)
        return left

    def _remove(self, left: EtcdMembership, member: EtcdMember, number: int) -> None:
        found = self._survey(left)
        votes = self._votes(left, found)
        alone = self._survey(replace(left, members=(member,))).members[0]
        if alone.is_leader:
            heir = next(each for each in found.members if each.is_serving)
            votes.hand_over(member.endpoint, heir.member_id)
        if any(one.member_id == number for one in votes.listed()):
            votes.remove(number)

    def _clear(self, name: str, handle: Any) -> None:
        """Delete the data of a member that left, which no member can use again, and remove its actor."""
        if handle is None:
            return
        try:
            ray.get(handle.erase.remote(), timeout=ERASE_SECONDS)
        except (ray.exceptions.RayError, TimeoutError) as error:
            self._leftover[name] = reason(error)
            self._say(f"the directory of {name} could not be deleted: {reason(error)}")
        remove([name], self._config.namespace)

    # -- the state of all

    def _until_all_serve(self, membership: EtcdMembership) -> bool:
        deadline = time.monotonic() + self._wait_seconds
        while not all(member.is_serving for member in self._survey(membership).members):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        self._say(f"all {len(membership.members)} members serve")
        return True

    def _try(self, change: Callable[[], None], deadline: float) -> bool:
        """Change the list of members; etcd refuses while members are not connected or have not caught up."""
        said = ""
        while True:
            try:
                change()
                return True
            except ServiceNotReadyError as error:
                if time.monotonic() > deadline:
                    self._say(f"{error}; repeat this command to go on")
                    return False
                if (line := str(error)) != said:
                    self._say(f"waiting: {line}")
                said = line
            time.sleep(POLL_SECONDS)

    def _align(self, membership: EtcdMembership, found: Survey) -> None:
        """Have etcd list the address that an only member has now; it may have moved with its machine."""
        if len(membership.members) > 1:
            return
        votes = self._votes(membership, found)
        url = membership.members[0].peer_url(self._config.peer_tls)
        own = [one for one in votes.listed() if one.member_id == found.members[0].member_id]
        if own and url not in own[0].peer_urls:
            votes.move(own[0].member_id, url)

    def _votes(self, membership: EtcdMembership, found: Survey | None = None) -> EtcdVotes:
        found = self._survey(membership) if found is None else found
        if trouble := found.trouble:
            raise ServiceNotReadyError(trouble)
        helper = next(each.endpoint for each in found.members if each.is_serving)
        return EtcdVotes(self._address(membership), helper)

    def _survey(self, membership: EtcdMembership) -> Survey:
        return asyncio.run(survey(self._address(membership)))

    def _serving(self, membership: EtcdMembership, found: Survey | None = None) -> set[str]:
        found = self._survey(membership) if found is None else found
        pairs = zip(membership.members, found.members, strict=True)
        return {member.name for member, state in pairs if state.is_serving}

    def _address(self, membership: EtcdMembership) -> EtcdAddress:
        return EtcdAddress.parse(membership.store_url(self._config.peer_tls))

    # -- nodes for members

    def _candidates(self, membership: EtcdMembership) -> list[EtcdMember]:
        """Return the members that may join, in their order: each has a number and a place that none has now."""
        nodes = diagnosis.living_nodes()
        used = {member.name for member in membership.members}
        names = [name for number in range(1, 2 * max(COUNTS)) if (name := f"{METADATA_PREFIX}{number}") not in used]
        return [self._member(name, place, nodes) for name, place in zip(names, self._free(nodes), strict=False)]

    def _member(self, name: str, place: Place, nodes: Sequence[Node]) -> EtcdMember:
        part = part_named(name, self._config, place)
        return EtcdMember(name, host_of(part, nodes, self._config), part.port)

    def _place(self, member: EtcdMember) -> Place:
        nodes = diagnosis.living_nodes()
        for place in self._free(nodes):
            if self._member(member.name, place, nodes) == member:
                return place
        raise ConflictError(f"the node of {member.name} is away", field="count")

    def _free(self, nodes: Sequence[Node]) -> list[Place]:
        known = {name: Place.parse(place) for name, place in self._home.places().items()}
        is_local = is_loopback(self._config.host)
        return labels.further_member_places(nodes, known, is_local=is_local, require_labels=self._config.require_labels)


def resize(
    wanted: int, config: ClusterConfig, create: CreateMember, *, wait_seconds: float, progress: Progress
) -> ResizeOutcome:
    """Join the cluster's Ray, and have ``wanted`` etcd members; errors are those of ``MemberResize.run``."""
    state = ClusterHome(config.home_directory).load()
    known_members(ClusterHome(config.home_directory))
    discovery.attach(config.namespace, home=config.home_directory, address=state.ray_address if state else None)
    return MemberResize(config, create, wait_seconds, progress).run(wanted)


def _told(handle: Any, *, is_retiring: bool) -> None:
    """Tell the actor of a member; one that does not answer does not run etcd either."""
    if handle is None:
        return
    try:
        ray.get(handle.retire.remote(is_retiring), timeout=ANSWER_SECONDS)
    except (ray.exceptions.RayError, HeliographError, TimeoutError, AttributeError):
        return
