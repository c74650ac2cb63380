"""Changes the members of a running etcd cluster, by one call of etcd's API for each change. Calls block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from heliograph.base.errors import ServiceNotReadyError
from heliograph.metadata.backends.etcd.wire.address import EtcdAddress
from heliograph.metadata.backends.etcd.wire.connection import open_channel
from heliograph.metadata.backends.etcd.wire.modules import etcd_api
from heliograph.metadata.etcd_member.resizing import ListedMember

CHANGE_SECONDS = 15.0  # for one change of the members  # I15
# The description of etcd's API that we have is older than this call, whose messages look like those of two others.
_PROMOTE = "/etcdserverpb.Cluster/MemberPromote"


class EtcdVotes:
    """The list of members, changed through a serving member.

    Args:
        address: of the cluster, with its files of TLS.
        endpoint: ``host:port`` of a serving member that stays.

    Every method raises ServiceNotReadyError when etcd does not answer or refuses; a change may be repeated.
    """

    def __init__(self, address: EtcdAddress, endpoint: str) -> None:
        self._address = address
        self._endpoint = endpoint

    def listed(self) -> list[ListedMember]:
        api = etcd_api()
        with self._channel() as channel:
            answer = self._call(api.ClusterStub(channel).MemberList, api.MemberListRequest())
        return [ListedMember(one.ID, one.name, tuple(one.peerURLs), one.isLearner) for one in answer.members]

    def add_learner(self, peer_url: str) -> None:
        """Add a member that gets all data and has no vote."""
        api = etcd_api()
        with self._channel() as channel:
            request = api.MemberAddRequest(peerURLs=[peer_url], isLearner=True)
            self._call(api.ClusterStub(channel).MemberAdd, request)

    def promote(self, member_id: int) -> None:
        """Give a learner its vote; refused until it has the others' data."""
        api = etcd_api()
        with self._channel() as channel:
            call = channel.unary_unary(
                _PROMOTE,
                request_serializer=api.MemberRemoveRequest.SerializeToString,
                response_deserializer=api.MemberListResponse.FromString,
            )
            self._call(call, api.MemberRemoveRequest(ID=member_id))

    def remove(self, member_id: int) -> None:
        """Remove a member from the list; its process ends by itself."""
        api = etcd_api()
        with self._channel() as channel:
            self._call(api.ClusterStub(channel).MemberRemove, api.MemberRemoveRequest(ID=member_id))

    def move(self, member_id: int, peer_url: str) -> None:
        """Note another address of a member."""
        api = etcd_api()
        with self._channel() as channel:
            request = api.MemberUpdateRequest(ID=member_id, peerURLs=[peer_url])
            self._call(api.ClusterStub(channel).MemberUpdate, request)

    def hand_over(self, leader_endpoint: str, member_id: int) -> None:
        """Let the leader transfer the leadership to a member."""
        api = etcd_api()
        with self._channel(leader_endpoint) as channel:
            self._call(api.MaintenanceStub(channel).MoveLeader, api.MoveLeaderRequest(targetID=member_id))

    @contextmanager
    def _channel(self, endpoint: str = "") -> Iterator[grpc.Channel]:
        channel = open_channel(endpoint or self._endpoint, self._address.tls)
        try:
            yield channel
        finally:
            channel.close()

    def _call(self, method: Any, request: Any) -> Any:
        try:
            return method(request, timeout=CHANGE_SECONDS)
        except grpc.RpcError as error:
            why = error.details() or error.code().name.lower()
            raise ServiceNotReadyError(f"etcd at {self._endpoint}: {why}") from error
