"""The etcd members that a cluster runs itself, as each of them answers."""

from __future__ import annotations

from heliograph.base.errors import ServiceNotReadyError
from heliograph.client.discovery import METADATA_PREFIX
from heliograph.cluster.status.model import ClusterStatus
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.survey import MemberState, survey


async def ask_members(status: ClusterStatus) -> None:
    """Add the addresses of the members and what is wrong with them. Nothing is done if the cluster runs none.

    Raises:
        ServiceNotReadyError: too few of them serve, which is noted, too.
    """
    actors = [actor for actor in status.actors if actor.name.startswith(METADATA_PREFIX)]
    if not actors:
        return
    found = await survey(EtcdAddress.parse(status.metadata_url))
    by_name = {f"{METADATA_PREFIX}{number}": member for number, member in enumerate(found.members, start=1)}
    for actor in actors:
        member = by_name.get(actor.name)
        if member is not None:
            actor.address = member.endpoint
            actor.note = actor.note or what_is_wrong_with(member)
    if found.trouble:
        status.operator_notes.append(found.trouble)
        raise ServiceNotReadyError(found.trouble)


def what_is_wrong_with(member: MemberState) -> str:
    """Return what is wrong with a member, with the way out; empty if it serves. Pure."""
    if member.why:
        return f"does not serve: {member.why}"
    if not member.is_serving:
        return "serves nothing: it knows no leader"
    if member.alarms:
        return f"alarm {', '.join(member.alarms)}: helio metadata defragment"
    return ""
