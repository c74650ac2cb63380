"""What is done to the members of an etcd cluster: one that lost its disk is added again, full ones get space back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import grpc

from heliograph.base.errors import ConflictError, ServiceNotReadyError
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import open_channel
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.etcd_member.membership import EtcdMember, EtcdMembership
from heliograph.metadata.etcd_member.survey import MemberState, survey

CHANGE_SECONDS = 15.0  # for one change of the members  # I15
ADD_SECONDS = 60.0  # for etcd to take a member: it waits until all others have been connected for some seconds  # I15
PAUSE_SECONDS = 1.0
DEFRAGMENT_SECONDS = 300.0  # for one member: it writes its whole database again  # I15


async def make_room_for(member: EtcdMember, membership: EtcdMembership, tls: PeerTlsFiles | None) -> None:
    """Remove a member that lost its disk, and add one of its name and addresses that begins without data. Idempotent.

    Raises:
        ConflictError: the member serves, or it is the only one; nothing was done.
        ServiceNotReadyError: too few of the other members serve, or etcd refused; what was done is completed by
            another call.
    """
    address = EtcdAddress.parse(membership.store_url(tls))
    if len(membership.members) == 1:
        raise ConflictError(
            f"{member.name} is the only member: what its disk held is lost; restore a backup (helio backup restore)"
        )
    found = await survey(address)
    own = found.members[membership.members.index(member)]
    if own.is_serving:
        raise ConflictError(f"{member.name} serves at {member.endpoint}: it has its disk")
    if trouble := found.trouble:
        raise ServiceNotReadyError(f"{member.name} cannot be replaced: {trouble}")
    helper = next(each.endpoint for each in found.members if each.is_serving)
    await asyncio.to_thread(_exchange, address, helper, member.peer_url(tls))


async def defragment(address: EtcdAddress, on_done: Callable[[MemberState, int], None]) -> None:
    """Have each member that serves give the space of compacted history back, the leader last; then end NOSPACE alarms.

    A member serves nothing while it does so, so one follows the other.

    Args:
        on_done: called with each member as it was, and the bytes of its database now.

    Raises:
        ServiceNotReadyError: too few members serve, or one did not finish; the others are as they are.
    """
    found = await survey(address)
    if trouble := found.trouble:
        raise ServiceNotReadyError(trouble)
    for member in sorted(found.members, key=lambda each: each.is_leader):
        if member.is_serving:
            on_done(member, await asyncio.to_thread(_defragment, address, member.endpoint))
    helper = next(each.endpoint for each in found.members if each.is_serving)
    await asyncio.to_thread(_end_alarms, address, helper)


def _defragment(address: EtcdAddress, endpoint: str) -> int:
    api = etcd_api()
    channel = open_channel(endpoint, address.tls)
    stub = api.MaintenanceStub(channel)
    try:
        _call(stub.Defragment, api.DefragmentRequest(), endpoint, DEFRAGMENT_SECONDS)
        return int(_call(stub.Status, api.StatusRequest(), endpoint).dbSize)
    finally:
        channel.close()


def _end_alarms(address: EtcdAddress, endpoint: str) -> None:
    """End all alarms of space. etcd raises them again where there is still none."""
    api = etcd_api()
    channel = open_channel(endpoint, address.tls)
    alarm = api.MaintenanceStub(channel).Alarm
    try:
        for raised in _call(alarm, api.AlarmRequest(action=api.AlarmRequest.GET), endpoint).alarms:
            if raised.alarm == api.NOSPACE:
                request = api.AlarmRequest(
                    action=api.AlarmRequest.DEACTIVATE, memberID=raised.memberID, alarm=raised.alarm
                )
                _call(alarm, request, endpoint)
    finally:
        channel.close()


def _exchange(address: EtcdAddress, helper: str, peer_url: str) -> None:
    api = etcd_api()
    channel = open_channel(helper, address.tls)
    stub = api.ClusterStub(channel)
    try:
        for known in _call(stub.MemberList, api.MemberListRequest(), helper).members:
            if peer_url not in known.peerURLs:
                continue
            if not known.name:
                return  # added by an earlier call, and not started since
            _call(stub.MemberRemove, api.MemberRemoveRequest(ID=known.ID), helper)
        deadline = time.monotonic() + ADD_SECONDS
        while True:
            try:
                _call(stub.MemberAdd, api.MemberAddRequest(peerURLs=[peer_url]), helper)
                return
            except ServiceNotReadyError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE_SECONDS)
    finally:
        channel.close()


def _call(method: Any, request: Any, endpoint: str, seconds: float = CHANGE_SECONDS) -> Any:
    try:
        return method(request, timeout=seconds)
    except grpc.RpcError as error:
        raise ServiceNotReadyError(f"etcd at {endpoint}: {error.details() or error.code().name.lower()}") from error
