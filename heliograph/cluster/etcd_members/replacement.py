"""The replacement of an etcd member whose disk was lost: it begins again as a new member, from the others' data."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import ray
import ray.exceptions

from heliograph.base.errors import ConflictError, NotFoundError, ResourceError, ServiceNotReadyError
from heliograph.base.home import ClusterHome
from heliograph.client import discovery
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.diagnosis import reason
from heliograph.cluster.etcd_members.record import membership_of
from heliograph.cluster.removal import existing
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.etcd_member.changes import make_room_for
from heliograph.metadata.etcd_member.membership import EtcdMembership
from heliograph.metadata.etcd_member.survey import survey

PERMIT_SECONDS = 60.0  # for the member's actor, which may be starting again
ANSWER_SECONDS = 10.0
POLL_SECONDS = 1.0

Progress = Callable[[str], None]


def known_members(home: ClusterHome) -> EtcdMembership:
    """Return the etcd members that the cluster of a home runs itself.

    Raises:
        NotFoundError: it runs none.
    """
    membership = membership_of(home)
    if membership is None:
        raise NotFoundError(
            f"{home.directory} knows no etcd members: the cluster's metadata_kind is another, or another machine "
            "started it",
            field="home",
        )
    return membership


def replace(name: str, config: ClusterConfig, *, wait_seconds: float, progress: Progress = lambda _: None) -> bool:
    """Have a member whose disk was lost begin on an empty one, and return whether it serves. Joins the cluster's Ray.

    Another call goes on where this one ended.

    Args:
        wait_seconds: longest wait for the member to serve.

    Raises:
        NotFoundError: there is no such member.
        ConflictError: it serves, it is the only one, or its directory holds another member's data.
        ServiceNotReadyError: too few other members serve, or the member's actor does not answer.
        ClusterNotFoundError: there is no cluster.
    """
    home = ClusterHome(config.home_directory)
    membership = known_members(home)
    names = [each.name for each in membership.members]
    if name not in names:
        raise NotFoundError(f"there is no etcd member {name!r}", field="member", limit=", ".join(names))
    state = home.load()
    discovery.attach(config.namespace, home=config.home_directory, address=state.ray_address if state else None)
    asyncio.run(make_room_for(membership.member(name), membership, config.peer_tls))
    progress(f"the other members have {name} as a new one")
    permit_joining(name, config.namespace)
    progress(f"{name} may begin on its empty disk")
    return _serves(name, membership, config, time.monotonic() + wait_seconds)


def permit_joining(name: str, namespace: str) -> None:
    """Let a member that the others added begin on an empty disk.

    Raises:
        ServiceNotReadyError: its actor does not answer.
        ConflictError, ResourceError: its directory cannot be used.
    """
    deadline = time.monotonic() + PERMIT_SECONDS
    while True:
        handle = existing(name, namespace)
        if handle is None:
            raise ServiceNotReadyError(f"{name} has no process: `helio up` starts it, then repeat this")
        try:
            ray.get(handle.permit.remote(is_joining=True), timeout=ANSWER_SECONDS)
            return
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, ConflictError | ResourceError):
                raise error.cause from error
            why = reason(error)
        except (ray.exceptions.RayError, TimeoutError) as error:  # Ray starts it again
            why = reason(error)
        if time.monotonic() > deadline:
            raise ServiceNotReadyError(f"{name} does not answer: {why}; repeat this")
        time.sleep(POLL_SECONDS)


def _serves(name: str, membership: EtcdMembership, config: ClusterConfig, deadline: float) -> bool:
    address = EtcdAddress.parse(membership.store_url(config.peer_tls))
    place = [each.name for each in membership.members].index(name)
    handle: Any = existing(name, config.namespace)
    if handle is not None:
        handle.start.remote()
    while not asyncio.run(survey(address)).members[place].is_serving:
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
