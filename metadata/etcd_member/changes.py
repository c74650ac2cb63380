"""Frees the space of compacted history, in one member of an etcd cluster after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import open_channel
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.etcd_member.survey import MemberState, survey

CHANGE_SECONDS = 15.0  # for one change of the members  # I15
DEFRAGMENT_SECONDS = 300.0  # for one member: it writes its whole database again  # I15


async def defragment(address: EtcdAddress, on_done: Callable[[MemberState, int], None]) -> None:
    """Let each serving member free the space of compacted history, the leader last; then end NOSPACE alarms.

    A member does not serve meanwhile, so one follows the other.

    Args:
        on_done: called with the state of each member before, and the present bytes of its database.

    Raises:
        ServiceNotReadyError: too few members serve, or one did not finish; the rest was not begun.
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
    """End all alarms of space. etcd raises them again if there is still too little."""
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


def _call(method: Any, request: Any, endpoint: str, seconds: float = CHANGE_SECONDS) -> Any:
    try:
        return method(request, timeout=seconds)
    except grpc.RpcError as error:
        raise ServiceNotReadyError(f"etcd at {endpoint}: {error.details() or error.code().name.lower()}") from error
