"""The etcd members that a cluster runs itself, as each of them answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from heliograph.base.errors import ServiceNotReadyError
from heliograph.client.discovery import METADATA_PREFIX
from heliograph.cluster.naming import sort_key
from heliograph.cluster.status.model import ClusterStatus

if TYPE_CHECKING:
    from heliograph.metadata.etcd_member.survey import MemberState


async def ask_members(status: ClusterStatus) -> None:
    """Add the addresses of the members and what is wrong with them. Nothing is done if the cluster runs none.

    Raises:
        ServiceNotReadyError: too few of them serve, which is noted, too.
    """
    actors = [actor for actor in status.actors if actor.name.startswith(METADATA_PREFIX)]
    if not actors:
        return
    # They load gRPC, which a cluster without etcd does without.
    from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
    from heliograph.metadata.etcd_member.survey import survey

    found = await survey(EtcdAddress.parse(status.metadata_url))
    by_name = named(found.members, (actor.name for actor in actors))
    for actor in actors:
        member = by_name.get(actor.name)
        if member is not None:
            actor.address = member.endpoint
            actor.note = actor.note or what_is_wrong_with(member)
    if found.trouble:
        status.operator_notes.append(found.trouble)
        raise ServiceNotReadyError(found.trouble)


def named(members: Sequence[MemberState], names: Iterable[str]) -> dict[str, MemberState]:
    """Return the members by name; those that do not say theirs have the names that are left, in order. Pure."""
    found = {member.name: member for member in members if member.name}
    left = sorted({*names} - found.keys(), key=sort_key)
    silent = [member for member in members if not member.name]
    return found | dict(zip(left, silent, strict=False))


def what_is_wrong_with(member: MemberState) -> str:
    """Return what is wrong with a member, with the way out; empty if it serves. Pure."""
    if member.why:
        return f"does not serve: {member.why}"
    if not member.is_serving:
        return "serves nothing: it knows no leader"
    if member.alarms:
        return f"alarm {', '.join(member.alarms)}: helio metadata defragment"
    return ""
