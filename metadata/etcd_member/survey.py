"""The states of an etcd cluster's members. Each is asked separately, so an unreachable member hides no other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc

from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import open_channel
from heliograph.metadata.backends.etcd.wire.modules import etcd_api

ANSWER_SECONDS = 2.0  # for one answer of one member  # I15


@dataclass(frozen=True, slots=True)
class MemberState:
    """The state of one member. If it does not answer, its fields have their defaults.

    Attributes:
        name: of the member; empty if it is unknown, as before its first start.
        leader: id of the leader by this member's knowledge; 0: it knows none.
        lag: entries of the common log that the member lacks and the most advanced member has.
        alarms: such as ``NOSPACE``.
        why: why it does not answer; empty if it does.
    """

    endpoint: str
    name: str = ""
    member_id: int = 0
    leader: int = 0
    version: str = ""
    db_bytes: int = 0
    raft_index: int = 0
    lag: int = 0
    alarms: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_serving(self) -> bool:
        """Whether the member answers and follows a leader, or is it."""
        return not self.why and self.leader != 0

    @property
    def is_leader(self) -> bool:
        return self.is_serving and self.leader == self.member_id


@dataclass(frozen=True, slots=True)
class Survey:
    """All members at one moment, in the order of their endpoints."""

    members: tuple[MemberState, ...]

    @property
    def quorum(self) -> int:
        """The number of members that have to serve so that anything can be read or written."""
        return len(self.members) // 2 + 1

    @property
    def has_quorum(self) -> bool:
        return sum(member.is_serving for member in self.members) >= self.quorum

    @property
    def trouble(self) -> str:
        """Why nothing can be read or written, with the remedy; empty if everything can."""
        if self.has_quorum:
            return ""
        silent = [member.endpoint for member in self.members if member.why]
        answering = len(self.members) - len(silent)
        if answering >= self.quorum:
            return f"no leader: {answering} of {len(self.members)} members answer, and have elected none yet"
        return (
            f"quorum lost: {answering} of {len(self.members)} members answer, {self.quorum} have to; nothing changes "
            f"owner until {self.quorum - answering} of these are back: {', '.join(silent)}"
        )


async def survey(address: EtcdAddress) -> Survey:
    """Return the answer of each endpoint of an address, waiting at most 2 s for each."""
    found = await asyncio.gather(*(asyncio.to_thread(_ask, address, endpoint) for endpoint in address.endpoints))
    names, alarms = _common(found)
    furthest = max((state.raft_index for state, _, _ in found), default=0)
    members = [
        replace(
            state,
            name=names.get(state.member_id, ""),
            lag=0 if state.why else furthest - state.raft_index,
            alarms=tuple(sorted(alarms.get(state.member_id, ()))),
        )
        for state, _, _ in found
    ]
    return Survey(tuple(members))


_Answer = tuple[MemberState, dict[int, str], dict[int, set[str]]]  # the member, and names and alarms by member id


def _common(found: Sequence[_Answer]) -> tuple[dict[int, str], dict[int, set[str]]]:
    names: dict[int, str] = {}
    alarms: dict[int, set[str]] = {}
    for _, some_names, some_alarms in found:
        names |= some_names
        for member_id, some in some_alarms.items():
            alarms.setdefault(member_id, set()).update(some)
    return names, alarms


def _ask(address: EtcdAddress, endpoint: str) -> _Answer:
    api = etcd_api()
    channel = open_channel(endpoint, address.tls)
    try:
        status = api.MaintenanceStub(channel).Status(api.StatusRequest(), timeout=ANSWER_SECONDS)
        state = MemberState(
            endpoint,
            member_id=status.header.member_id,
            leader=status.leader,
            version=status.version,
            db_bytes=status.dbSize,
            raft_index=status.raftIndex,
        )
        names = {
            member.ID: member.name
            for member in api.ClusterStub(channel).MemberList(api.MemberListRequest(), timeout=ANSWER_SECONDS).members
        }
        return state, names, _alarms(api, channel) if status.leader else {}
    except grpc.RpcError as error:
        return MemberState(endpoint, why=_said(error)), {}, {}
    finally:
        channel.close()


def _alarms(api: Any, channel: grpc.Channel) -> dict[int, set[str]]:
    request = api.AlarmRequest(action=api.AlarmRequest.GET)
    found: dict[int, set[str]] = {}
    try:
        answer = api.MaintenanceStub(channel).Alarm(request, timeout=ANSWER_SECONDS)
    except grpc.RpcError:
        return {}  # it goes through the leader, which may just have gone
    for alarm in answer.alarms:
        found.setdefault(alarm.memberID, set()).add(api.AlarmType.Name(alarm.alarm))
    return found


def _said(error: grpc.RpcError) -> str:
    code, details = error.code(), error.details()
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer in {ANSWER_SECONDS:.0f} s"
    if code is grpc.StatusCode.UNAVAILABLE and details:
        return str(details).rpartition(": ")[2].lower()  # the reason stands behind gRPC's own words
    return str(details or code.name.lower())
