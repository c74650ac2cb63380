"""The etcd members that a cluster runs itself, as each of them answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from heliograph.client.discovery import METADATA_PREFIX
from heliograph.metadata.operator_records import PartReport

if TYPE_CHECKING:
    from heliograph.metadata.etcd_member.survey import MemberState


async def with_members(parts: Sequence[PartReport], metadata_url: str) -> tuple[list[PartReport], tuple[str, ...]]:
    """Return the parts with the addresses and problems of the members, and the problems of all together.

    Nothing is asked if the cluster runs none.
    """
    names = [part.name for part in parts if part.name.startswith(METADATA_PREFIX)]
    if not names or not metadata_url:
        return list(parts), ()
    # They load gRPC, which a cluster without etcd does without.
    from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
    from heliograph.metadata.etcd_member.survey import survey

    found = await survey(EtcdAddress.parse(metadata_url))
    by_name = named(found.members, names)

    def asked(part: PartReport) -> PartReport:
        if (member := by_name.get(part.name)) is None:
            return part
        said = problem_of(member)
        note = part.note if said in part.note else said if part.note in said else f"{said}; {part.note}"
        return replace(part, address=member.endpoint, note=note, is_warning=part.is_warning and not said)

    return [asked(part) for part in parts], (found.trouble,) if found.trouble else ()


async def members_trouble(metadata_url: str) -> str:
    """Return why the members of an etcd do not serve together; empty if they do, or the metadata is elsewhere."""
    if not metadata_url.startswith("etcd"):
        return ""
    from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
    from heliograph.metadata.etcd_member.survey import survey

    return (await survey(EtcdAddress.parse(metadata_url))).trouble


def named(members: Sequence[MemberState], names: Iterable[str]) -> dict[str, MemberState]:
    """Return the members by name; members that do not say theirs get the remaining names, in order. Pure."""
    found = {member.name: member for member in members if member.name}
    left = sorted({*names} - found.keys(), key=lambda name: (len(name), name))
    silent = [member for member in members if not member.name]
    return found | dict(zip(left, silent, strict=False))


def problem_of(member: MemberState) -> str:
    """Return the problem of a member, with the way out; empty if it serves. Pure."""
    if member.why:
        return f"does not serve: {member.why}"
    if not member.is_serving:
        return "serves nothing: it knows no leader"
    if member.alarms:
        return f"alarm {', '.join(member.alarms)}: helio metadata defragment"
    return ""
