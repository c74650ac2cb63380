"""Members of etcd as a cluster runs them, in this process; and one in a process of its own, to be killed.

Run as a program with a directory and a port: it runs a lone member there and prints the pid of etcd.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from heliograph.base.peer import ListenAddress
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.cluster.ports import is_free
from heliograph.metadata.etcd_member.actor import EtcdMemberActor
from heliograph.metadata.etcd_member.command import MemberPlan
from heliograph.metadata.etcd_member.config import EtcdConfig
from heliograph.metadata.etcd_member.membership import EtcdMember, EtcdMembership
from tests.contracts.metadata.etcd_server import free_ports

HOST = "127.0.0.1"
QUICK = EtcdConfig(heartbeat_ms=50, election_ms=500, quota_bytes=64 << 20)


def free_run(ports: int) -> int:
    """Return the first of so many free ports in a row."""
    while True:
        first = free_ports(1)[0]
        if all(is_free(port, HOST) for port in range(first, first + ports)):
            return first


def membership_of(count: int) -> EtcdMembership:
    """Return a cluster of so many members on free ports."""
    first = free_run(2 * count)
    members = tuple(EtcdMember(f"metadata-{number + 1}", HOST, first + 2 * number) for number in range(count))
    return EtcdMembership("c1", members)


def member_in(
    directory: Path, name: str, membership: EtcdMembership, tls: PeerTlsFiles | None = None, allowed_name: str = ""
) -> EtcdMemberActor:
    """Return the actor of a member, which is not started."""
    plan = MemberPlan(name, membership, QUICK, tls, allowed_name)
    return EtcdMemberActor(str(directory / name), ListenAddress(HOST, plan.member.client_port), plan)


@asynccontextmanager
async def formed(
    directory: Path, membership: EtcdMembership, tls: PeerTlsFiles | None = None, allowed_name: str = ""
) -> AsyncIterator[dict[str, EtcdMemberActor]]:
    """Run a new cluster for the length of the block; members that the block puts in are stopped, too."""
    actors = {each.name: member_in(directory, each.name, membership, tls, allowed_name) for each in membership.members}
    try:
        for actor in actors.values():
            await actor.permit(is_joining=False)
        await asyncio.gather(*(actor.start() for actor in actors.values()))
        yield actors
    finally:
        await asyncio.gather(*(actor.stop() for actor in actors.values()))


async def _run_alone(directory: Path, port: int) -> None:
    membership = EtcdMembership("c1", (EtcdMember("metadata-1", HOST, port),))
    async with formed(directory, membership) as actors:
        print(await actors["metadata-1"].etcd_pid(), flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_run_alone(Path(sys.argv[1]), int(sys.argv[2])))
