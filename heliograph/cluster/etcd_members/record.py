"""The record of the etcd members, with their addresses, which each has for as long as it is one."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heliograph.base.errors import ConflictError, InvalidConfigError
from heliograph.base.home import ClusterHome, private_files
from heliograph.base.peer import NODE, is_wildcard
from heliograph.client.discovery import METADATA, METADATA_PREFIX
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.labels import Node, Place
from heliograph.cluster.parts import Part, part_named
from heliograph.metadata.etcd_member.command import MemberPlan
from heliograph.metadata.etcd_member.membership import EtcdMember, EtcdMembership
from heliograph.metadata.operator_records import RosterMember

CLUSTER_ID_BYTES = 8
NAME_OF_OWN_CERTIFICATES = "localhost"  # in each certificate of parts that ``tls = "auto"`` makes, and in no client's


def membership_of(home: ClusterHome) -> EtcdMembership | None:
    """Return the recorded membership; None before the first start.

    Raises:
        ResourceError: the record cannot be read.
    """
    found = home.members()
    return None if found is None else EtcdMembership.parse(found)


def check_moved(config: ClusterConfig, home: ClusterHome) -> None:
    """Check that a cluster whose metadata is in a store of its own is not started with an empty one of the other kind.

    Raises:
        ConflictError: it is; names the command that moves the metadata.
    """
    embedded = config.data_root / METADATA
    has_members, has_embedded = home.members() is not None, METADATA in home.places() or embedded.exists()
    if config.has_etcd_members and has_embedded and not has_members:
        source, target = str(embedded), "etcd"
    elif config.has_embedded_store and has_members and not has_embedded:
        source, target = "etcd", str(embedded)
    else:
        return
    raise ConflictError(
        f"the cluster's metadata is in its other store: move it with `helio metadata migrate --from {source} --to "
        f"{target}` first, or leave metadata_kind as it was",
        field="metadata_kind",
    )


def with_membership(
    parts: Sequence[Part], nodes: Sequence[Node], config: ClusterConfig, home: ClusterHome
) -> list[Part]:
    """Return the parts, those that are etcd members with the membership, which is recorded before the first start.

    Raises:
        ResourceError: the record cannot be read.
        InvalidConfigError: ``etcd_port`` is another than at the first start.
    """
    own = [part for part in parts if part.kind == "metadata"]
    if not config.has_etcd_members:
        return list(parts)
    members = tuple(EtcdMember(part.name, host_at(part.place, nodes, config.host), part.port) for part in own)
    membership = membership_of(home)
    if membership is None:
        membership = EtcdMembership(secrets.token_hex(CLUSTER_ID_BYTES), members)
    elif {each.client_port for each in membership.members} != {each.client_port for each in members}:
        first = membership.members[0].client_port
        raise InvalidConfigError(
            f"the etcd members have their ports from {first} on since their first start: leave etcd_port at that",
            field="etcd_port",
            limit=str(first),
        )
    elif len(members) == 1:  # nobody else has to find it, so it may move with its machine
        membership = replace(membership, members=members)
    home.keep_members(membership.fields())
    return [replace(part, membership=membership) if part in own else part for part in parts]


def note_formed(parts: Sequence[Part], home: ClusterHome) -> None:
    """Record that the members have served: from then on none of them begins on an empty disk by itself."""
    for part in parts:
        if part.membership is not None:
            home.keep_members(replace(part.membership, is_formed=True).fields())
            return


def plan_of(part: Part, config: ClusterConfig) -> MemberPlan:
    """Return the plan with which the actor of a member starts."""
    assert part.membership is not None, "it is an etcd member"
    own = NAME_OF_OWN_CERTIFICATES if config.has_own_authority else ""
    return MemberPlan(part.name, part.membership, config.etcd_config(), config.peer_tls, own)


def host_at(place: Place, nodes: Sequence[Node], host: str) -> str:
    """Return the host by which others reach what runs at a place and listens on ``host``."""
    named = [node.labels.get(labels.HOST, "") for node in nodes if place.admits(node)]
    if named and named[0]:
        return named[0]
    return place.address if host == NODE or is_wildcard(host) else host


def of_roster(cluster_id: str, members: Iterable[RosterMember]) -> EtcdMembership:
    found = (EtcdMember(member.name, member.host, member.client_port) for member in members)
    return EtcdMembership(cluster_id, tuple(found), is_formed=True)


def roster_members(parts: Iterable[Part]) -> tuple[RosterMember, ...]:
    return tuple(
        RosterMember(part.name, member.host, member.client_port, part.place.fields())
        for part in parts
        if part.membership is not None and (member := part.membership.member(part.name))
    )


def parts_of_roster(parts: Sequence[Part], members: Sequence[RosterMember], config: ClusterConfig) -> list[Part]:
    """Return the parts with the etcd members of the roster in place of those of the start, unless it has none."""
    first = next((part.membership for part in parts if part.membership is not None), None)
    if first is None or not members:
        return list(parts)
    membership = of_roster(first.cluster_id, members)
    own = [
        replace(part_named(member.name, config, Place.parse(member.place)), membership=membership) for member in members
    ]
    return [*own, *(part for part in parts if part.membership is None)]


def members_note(config: ClusterConfig, parts: Iterable[Part]) -> list[str]:
    """Return a note if the settings ask for another number of etcd members than the cluster has."""
    count = sum(part.membership is not None for part in parts)
    if config.metadata_members in (None, count) or not count:
        return []
    return [
        f"metadata_members = {config.metadata_members} in the settings, and the cluster has {count}: helio metadata "
        f"members {config.metadata_members} changes that"
    ]


def keep(directory: str, membership: Mapping[str, Any], places: Mapping[str, Any], store_url: str) -> None:
    """Note the members and their places in the cluster's home, where a start and commands look for them.

    The operator runs this on the machine of ``helio up``. It may be repeated.

    Raises:
        ResourceError: the directory cannot be written.
    """
    home = ClusterHome(Path(directory))
    with private_files():
        home.keep_places(places)
        for name in home.places():
            if name.startswith(METADATA_PREFIX) and name not in places:
                home.forget_place(name)
        home.keep_members(membership)
        if (state := home.load()) is not None and state.metadata_url != store_url:
            home.save(replace(state, metadata_url=store_url))
