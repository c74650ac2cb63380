"""A store that is away for a while: clients of an endpoint over it are disconnected, and keep their sessions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph.metadata.connect import connect_store
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.endpoint.session import store_session
from heliograph.metadata.endpoint.wire.codes import OpCode as O
from heliograph.metadata.store import MetadataStore
from tests.contracts.endpoint.test_moving_sessions import owner_of
from tests.contracts.endpoint.wire.client import WireClient, set_data
from tests.contracts.metadata.etcd_server import EtcdServer
from tests.contracts.metadata.zookeeper_server import ZooKeeperServer, missing
from tests.waits import until

TIMEOUT_MS = 20_000
OWN_TIMEOUT_MS = 1_000  # of the endpoint's own session, which ends long before a client's
NO_ZOOKEEPER = pytest.mark.skipif(bool(missing()), reason=missing())
OUTAGES = [
    pytest.param("zk", "restart", marks=NO_ZOOKEEPER),
    pytest.param("zk", "silence", marks=[NO_ZOOKEEPER, pytest.mark.full]),
    pytest.param("etcd", "restart", marks=pytest.mark.full),
    ("etcd", "silence"),
]


@asynccontextmanager
async def endpoint_over(url: str) -> AsyncIterator[ZooKeeperEndpoint]:
    async def open_behind(timeout_ms: int, token: str | None) -> MetadataStore:
        return await connect_store(url, session_timeout_ms=timeout_ms, token=token)

    endpoint = ZooKeeperEndpoint(open_behind, limits=EndpointLimits(session_timeout_ms_min=100))
    await endpoint.start()
    await endpoint.listen("127.0.0.1", 0)
    try:
        yield endpoint
    finally:
        await endpoint.stop()


@pytest.mark.parametrize(("scheme", "away"), OUTAGES)
def test_the_end_of_the_endpoints_own_session_ends_no_clients(
    scheme: str, away: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_session, "OWN_TIMEOUT_MS", OWN_TIMEOUT_MS)
    server = ZooKeeperServer(tmp_path, is_durable=True) if scheme == "zk" else EtcdServer(tmp_path, is_durable=True)
    leave, come_back = (server.kill, server.start) if away == "restart" else (server.pause, server.resume)

    async def scenario() -> None:
        async with asyncio.timeout(100), endpoint_over(f"{scheme}://{server.address}/root") as endpoint:
            before = endpoint._store_session.store
            first = await WireClient.begin(endpoint.address, timeout_ms=TIMEOUT_MS)
            await first.create("/e", b"", 1)
            leave()
            try:
                assert await first.rest() == b"", "the client is disconnected, as by a server without a quorum"
                await asyncio.sleep(3 * OWN_TIMEOUT_MS / 1000)
            finally:
                come_back()
            await until(lambda: endpoint.facts().is_ready)
            if away == "silence":
                assert endpoint._store_session.store is not before, "the endpoint's own session has ended"
            second = await WireClient.resume(endpoint.address, first, TIMEOUT_MS)
            assert (second.session_id, second.timeout_ms) == (first.session_id, TIMEOUT_MS)
            assert await owner_of(second, "/e") == first.session_id
            assert (await second.call(O.SET_DATA, set_data("/e", b"2"))).error == 0
            await second.call(O.CLOSE_SESSION)
            for client in (first, second):
                await client.close()

    server.start()
    try:
        asyncio.run(scenario())
    finally:
        server.kill()
