"""Chooses the member that an etcd cluster gains or loses next on its way to another number of members. Pure.

A member joins as a learner, which has no vote, so the majority does not suffer if it does not start; it is promoted
once it has the others' data. One member joins or leaves at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from heliograph.base.errors import BadRequestError, ConflictError, ServiceNotReadyError
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.metadata.etcd_member.membership import COUNTS, EtcdMember, EtcdMembership


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member as etcd lists it. ``name`` is empty until its first start."""

    member_id: int
    name: str
    peer_urls: tuple[str, ...]
    is_learner: bool = False


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One member that joins or leaves.

    Attributes:
        listed: its entry in etcd's list; None: it is still to be added, or an earlier call removed it.
        is_new: no step of the change was taken yet.
    """

    member: EtcdMember
    joins: bool
    listed: ListedMember | None = None
    is_new: bool = False


def check_wanted(membership: EtcdMembership, serving: Collection[str], wanted: int) -> None:
    """Check that the number of members can become ``wanted`` without losing their majority on the way.

    Args:
        serving: names of the recorded members that serve.

    Raises:
        BadRequestError: so many members survive no more failures than one member fewer.
        ServiceNotReadyError: there is no majority now, so nothing can be changed.
        ConflictError: a member that does not serve is needed.
    """
    if wanted not in COUNTS:
        raise BadRequestError(
            f"{wanted} members survive no more failures than one less, or too many take part in each write",
            field="count",
            limit=", ".join(map(str, COUNTS)),
        )
    names = [member.name for member in membership.members]
    silent = [name for name in names if name not in serving]
    if len(names) - len(silent) < membership.quorum:
        raise ServiceNotReadyError(
            f"quorum lost: {len(names) - len(silent)} of {len(names)} members serve, {membership.quorum} have to; "
            f"start {', '.join(silent)} first"
        )
    if wanted > len(names) and silent:
        raise ConflictError(
            f"{', '.join(silent)} does not serve, and with more members one more would have to: start it, or have it "
            "begin again with `helio metadata replace`, first",
            field="count",
        )
    left = membership
    while len(left.members) > wanted:
        left = without(left, leaving(left, serving).name)
        here = sum(member.name in serving for member in left.members)
        if here < left.quorum:
            raise ConflictError(
                f"with {len(left.members)} members, {left.quorum} have to serve, and {here} would: start "
                f"{', '.join(silent)} first",
                field="count",
            )


def leaving(membership: EtcdMembership, serving: Collection[str]) -> EtcdMember:
    """Return the member that leaves first: a member that does not serve, else the last one."""
    return max(membership.members, key=lambda member: (member.name not in serving, membership.members.index(member)))


def next_change(
    membership: EtcdMembership,
    listed: Sequence[ListedMember],
    candidates: Sequence[EtcdMember],
    serving: Collection[str],
    wanted: int,
    tls: PeerTlsFiles | None,
) -> MemberChange | None:
    """Return the next step; None if all is done. Steps begun by an earlier call are finished or undone first.

    Args:
        membership: the recorded one.
        listed: the present members by etcd's list.
        candidates: the members that may join, in their order.
        serving: names of the members that serve.

    Raises:
        ConflictError: etcd has a member that is not ours, or there is no candidate left.
    """
    by_url = {url: one for one in listed for url in one.peer_urls}
    known = {member.peer_url(tls) for member in membership.members}
    for one in listed:
        if known.isdisjoint(one.peer_urls):
            begun = [member for member in candidates if member.peer_url(tls) in one.peer_urls]
            if begun:
                return MemberChange(begun[0], joins=len(membership.members) < wanted, listed=one)
            if not one.is_learner:
                where = ", ".join(one.peer_urls)
                raise ConflictError(
                    f"etcd has a member at {where} that this cluster does not know: remove it first, with etcdctl "
                    "member remove",
                    field="count",
                )
            return MemberChange(_at(one), joins=False, listed=one)  # its node is gone
    for member in membership.members:
        found = by_url.get(member.peer_url(tls))
        if found is None:
            return MemberChange(member, joins=False)
        if found.is_learner:
            return MemberChange(member, joins=len(membership.members) <= wanted, listed=found)
    if len(membership.members) < wanted:
        if not candidates:
            raise ConflictError(f"there is no node for {wanted - len(membership.members)} more members", field="count")
        return MemberChange(candidates[0], joins=True, is_new=True)
    if len(membership.members) > wanted:
        member = leaving(membership, serving)
        return MemberChange(member, joins=False, listed=by_url[member.peer_url(tls)], is_new=True)
    return None


def _at(listed: ListedMember) -> EtcdMember:
    """Return a member, with the host in its peer URL."""
    parts = urlsplit(listed.peer_urls[0])
    return EtcdMember(listed.name, parts.hostname or "", (parts.port or 1) - 1)


def without(membership: EtcdMembership, name: str) -> EtcdMembership:
    assert len(membership.members) > 1, "the last member stays"
    return replace(membership, members=tuple(each for each in membership.members if each.name != name))
