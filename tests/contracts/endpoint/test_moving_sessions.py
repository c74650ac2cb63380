"""Sessions that move between two endpoints of one store: password, timeout and ephemerals go with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.endpoint.wire.codes import ErrorCode
from heliograph.metadata.endpoint.wire.codes import OpCode as O
from heliograph.metadata.endpoint.wire.jute import JuteReader, string
from tests.contracts.endpoint.backends import (
    EndpointOverEmbedded,
    EndpointOverEtcd,
    EndpointOverMemory,
    EndpointOverZooKeeper,
)
from tests.contracts.endpoint.wire.client import (
    Event,
    Stat,
    WireClient,
    path_and_watch,
    set_data,
    set_watches,
)
from tests.waits import until

LIMITS = EndpointLimits(session_timeout_ms_min=100)
TIMEOUT_MS = 3_000
Scenario = Callable[[EndpointOverMemory, ZooKeeperEndpoint, str], Awaitable[None]]
Serve = Callable[[Scenario], None]


BACKENDS = [
    EndpointOverEmbedded,
    EndpointOverEtcd,
    *(pytest.param(backend, marks=pytest.mark.full) for backend in (EndpointOverMemory, EndpointOverZooKeeper)),
]


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EndpointOverMemory]:
    made: EndpointOverMemory = request.param(tmp_path)
    made.endpoint = ZooKeeperEndpoint(made._open_behind, limits=LIMITS)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def other(backend: EndpointOverMemory) -> AsyncIterator[ZooKeeperEndpoint]:
    """Yield another endpoint over the same store."""
    made = ZooKeeperEndpoint(backend._open_behind, limits=LIMITS)
    await made.start()
    yield made
    await made.stop()


@pytest.fixture
async def address(other: ZooKeeperEndpoint) -> str:
    return await other.listen("127.0.0.1", 0)


async def kill(endpoint: ZooKeeperEndpoint) -> None:
    """Do what the death of an endpoint's process does: its connections break, and its sessions are left alone."""
    endpoint._stopping = True
    if endpoint._listener is not None:
        endpoint._listener.close()
    for session in endpoint.sessions:
        await session.store.detach()


async def ephemerals_of(client: WireClient, prefix: str) -> list[str]:
    reply = await client.call(O.GET_EPHEMERALS, string(prefix))
    assert reply.error == 0
    return JuteReader(reply.body).strings()


async def owner_of(client: WireClient, path: str) -> int | None:
    reply = await client.call(O.EXISTS, path_and_watch(path))
    return None if reply.error == ErrorCode.NO_NODE else Stat.read(JuteReader(reply.body)).owner


async def test_a_client_rides_over_the_death_of_its_endpoint(
    backend: EndpointOverMemory, other: ZooKeeperEndpoint, address: str
) -> None:
    witness = await WireClient.begin(address)
    first = await WireClient.begin(backend.address, timeout_ms=TIMEOUT_MS)
    await first.create("/e", b"1", 1)
    await first.create("/p")
    await first.create("/q")
    await first.create("/q/e", b"", 1)
    await first.create("/q/p")
    seen = await first.call(O.GET_DATA, path_and_watch("/p", True))
    await kill(backend.endpoint)
    assert await first.rest() == b""
    await witness.call(O.SET_DATA, set_data("/p", b"changed"))

    second = await WireClient.begin(address, first.session_id, first.password, timeout_ms=TIMEOUT_MS)
    assert (second.session_id, second.password, second.timeout_ms) == (
        first.session_id, first.password, TIMEOUT_MS,
    )  # fmt: skip
    await second.call(O.SET_WATCHES, set_watches(seen.zxid, ["/p"], [], []), -8)
    assert second.events == [Event(3, 3, "/p")]
    assert await owner_of(second, "/e") == first.session_id
    for _ in range(TIMEOUT_MS * 3 // 500):  # longer than the store would wait for the dead endpoint
        await asyncio.sleep(0.5)
        assert (await second.call(O.PING, xid=-2)).error == 0
    assert await owner_of(witness, "/e") == first.session_id
    assert (await second.call(O.SET_DATA, set_data("/e", b"2"))).error == 0
    assert (await second.create("/e2", b"", 1)).error == 0
    assert await ephemerals_of(second, "/") == ["/e", "/e2", "/q/e"]
    assert await ephemerals_of(second, "/q") == ["/q/e"]
    assert await ephemerals_of(second, "/nowhere") == []
    assert await ephemerals_of(witness, "/") == []
    assert other.facts().moved_sessions == 1
    await second.call(O.CLOSE_SESSION)
    assert [await owner_of(witness, path) for path in ("/e", "/e2", "/q/e")] == [None, None, None]
    for client in (first, second, witness):
        await client.close()


async def test_a_session_that_moved_is_closed_where_it_was(
    backend: EndpointOverMemory, other: ZooKeeperEndpoint, address: str
) -> None:
    first = await WireClient.begin(backend.address, timeout_ms=TIMEOUT_MS)
    await first.create("/e", b"", 1)
    second = await WireClient.begin(address, first.session_id, first.password, timeout_ms=TIMEOUT_MS)
    assert second.session_id == first.session_id
    first.send(O.SET_DATA, set_data("/e", b"late"))  # fenced: it is not applied, and the connection ends
    assert await first.rest() == b""
    await until(lambda: len(backend.endpoint.sessions) == 0)
    value = JuteReader((await second.call(O.GET_DATA, path_and_watch("/e"))).body).buffer()
    assert value == b""
    # And back again.
    third = await WireClient.begin(backend.address, first.session_id, first.password, timeout_ms=TIMEOUT_MS)
    assert third.session_id == first.session_id
    assert (await third.call(O.SET_DATA, set_data("/e", b"third"))).error == 0
    second.send(O.SET_DATA, set_data("/e", b"late"))
    assert await second.rest() == b""
    assert await owner_of(third, "/e") == first.session_id
    for client in (first, second, third):
        await client.close()


async def test_a_session_whose_endpoint_died_expires_without_its_client(
    backend: EndpointOverMemory, other: ZooKeeperEndpoint, address: str
) -> None:
    witness = await WireClient.begin(address)
    gone = await WireClient.begin(backend.address, timeout_ms=1_000)
    await gone.create("/e", b"", 1)
    await kill(backend.endpoint)
    await witness.call(O.EXISTS, path_and_watch("/e", True))
    assert await witness.hear() == Event(2, 3, "/e")
    late = await WireClient.begin(address, gone.session_id, gone.password)
    assert (late.timeout_ms, late.session_id) == (0, 0)
    for client in (witness, gone, late):
        await client.close()


async def test_only_the_password_moves_a_session(
    backend: EndpointOverMemory, other: ZooKeeperEndpoint, address: str
) -> None:
    first = await WireClient.begin(backend.address, timeout_ms=TIMEOUT_MS)
    for session_id, password in (
        (first.session_id, bytes(16)), (first.session_id, b""), (first.session_id + 1, first.password), (-7, b"x"),
    ):  # fmt: skip
        thief = await WireClient.begin(address, session_id, password)
        assert thief.timeout_ms == 0
        await thief.close()
    if isinstance(backend, EndpointOverZooKeeper):
        # ZooKeeper closes a session's connection before it looks at the password; the session stands.
        await first.close()
        first = await WireClient.resume(backend.address, first, TIMEOUT_MS)
        assert first.timeout_ms == TIMEOUT_MS
    assert (await first.create("/mine")).error == 0
    await first.close()
