"""Containers and nodes with a time to live at the endpoint: created, shown and reaped as ZooKeeper does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.endpoint.wire.codes import ErrorCode
from heliograph.metadata.endpoint.wire.codes import OpCode as O
from heliograph.metadata.endpoint.wire.jute import JuteReader, int64
from tests.contracts.endpoint.backends import EndpointOverEmbedded, EndpointOverEtcd, EndpointOverMemory
from tests.contracts.endpoint.wire.client import (
    DEADLINE_SECONDS,
    OPEN,
    AclTriples,
    Event,
    Stat,
    WireClient,
    auth,
    create,
    multi,
    path_and_version,
    path_and_watch,
)
from tests.waits import until

LIMITS = EndpointLimits(session_timeout_ms_min=100, container_check_ms=100)


@pytest.fixture(params=[EndpointOverMemory, EndpointOverEmbedded, EndpointOverEtcd])
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EndpointOverMemory]:
    made: EndpointOverMemory = request.param(tmp_path)
    made.endpoint = ZooKeeperEndpoint(made._open_behind, limits=LIMITS)
    await made.start()
    yield made
    await made.stop()


def create_ttl(path: str, ttl_ms: int, flags: int = 5, acl: AclTriples = OPEN) -> bytes:
    return create(path, b"v", flags, acl) + int64(ttl_ms)


async def made(client: WireClient, op: O, body: bytes) -> tuple[str, Stat]:
    reply = await client.call(op, body)
    assert reply.error == 0, reply
    reader = JuteReader(reply.body)
    return reader.string(), Stat.read(reader)


async def until_gone(client: WireClient, path: str) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while (await client.call(O.EXISTS, path_and_watch(path, True))).error != ErrorCode.NO_NODE:
            assert await client.hear() == Event(2, 3, path)


async def test_a_container_goes_after_its_last_child_and_not_before_its_first(backend: EndpointOverMemory) -> None:
    client = await WireClient.begin(backend.address)
    path, stat = await made(client, O.CREATE_CONTAINER, create("/c", b"v", 4))
    assert (path, stat.owner, stat.length) == ("/c", 0, 1)  # ZooKeeper does not show it either
    await made(client, O.CREATE_CONTAINER, create("/unused", b"", 4))
    await client.create("/c/x")
    await asyncio.sleep(0.4)
    assert (await client.call(O.EXISTS, path_and_watch("/c"))).error == 0
    await client.call(O.DELETE, path_and_version("/c/x"))
    await until_gone(client, "/c")
    assert (await client.call(O.EXISTS, path_and_watch("/unused"))).error == 0
    await client.close()


async def test_a_node_goes_after_its_time_to_live_and_its_acl_with_it(backend: EndpointOverMemory) -> None:
    client = await WireClient.begin(backend.address)
    await client.call(O.AUTH, auth("digest", b"u:p"), -4)
    path, stat = await made(client, O.CREATE_TTL, create_ttl("/t", 60_000))
    assert (path, stat.owner) == ("/t", 0)
    path, _ = await made(client, O.CREATE_TTL, create_ttl("/s-", 1, 6))
    assert path.startswith("/s-00000")
    await made(client, O.CREATE_TTL, create_ttl("/guarded", 1, 5, [(31, "auth", "")]))
    await until_gone(client, path)
    await until_gone(client, "/guarded")
    await until(lambda: backend.endpoint.directory.find("/guarded") is None)
    assert (await client.call(O.EXISTS, path_and_watch("/t"))).error == 0
    await client.close()


async def test_they_may_be_part_of_a_multi_and_are_answered_with_their_stats(backend: EndpointOverMemory) -> None:
    client = await WireClient.begin(backend.address)
    reply = await client.call(
        O.MULTI,
        multi(
            (O.CREATE_CONTAINER, create("/c", b"", 4)), (O.CREATE_TTL, create_ttl("/c/t", 9_000)),
            (O.CREATE2, create("/c/e", b"abc", 1)), (O.CREATE, create("/c/p")),
        ),
    )  # fmt: skip
    reader = JuteReader(reply.body)
    shown: list[tuple[int, str, int]] = []
    for _ in range(4):
        op, _, error = reader.int32(), reader.boolean(), reader.int32()
        assert error == 0
        shown.append((op, reader.string(), Stat.read(reader).owner if op == O.CREATE2 else 0))
    assert shown == [
        (O.CREATE2, "/c", 0), (O.CREATE2, "/c/t", 0),
        (O.CREATE2, "/c/e", client.session_id), (O.CREATE, "/c/p", 0),
    ]  # fmt: skip
    await client.close()


@pytest.mark.parametrize(
    ("op", "body"),
    [
        (O.CREATE_TTL, create_ttl("/x", 0)),
        (O.CREATE_TTL, create_ttl("/x", -5)),
        (O.CREATE_TTL, create_ttl("/x", 1 << 40)),
        (O.CREATE_TTL, create_ttl("/x", 5, 0)),
        (O.CREATE_TTL, create_ttl("/x", -1, 0)),
        (O.CREATE, create("/x", b"", 5)),
        (O.CREATE_CONTAINER, create("/x", b"", 77)),
    ],
)
def test_what_zookeeper_refuses_is_refused(tmp_path: Path, op: O, body: bytes) -> None:
    async def whole() -> None:
        backend = EndpointOverMemory(tmp_path)
        await backend.start()
        client = await WireClient.begin(backend.address)
        assert (await client.call(op, body)).error == ErrorCode.BAD_ARGUMENTS
        # Only the operation makes a container, as in ZooKeeper: its flag alone makes a plain node.
        await client.create("/plain", b"", 4)
        reply = await client.call(O.EXISTS, path_and_watch("/plain"))
        assert Stat.read(JuteReader(reply.body)).owner == 0
        await client.close()
        await backend.stop()

    asyncio.run(whole())


def test_one_of_several_endpoints_reaps_and_another_takes_over(tmp_path: Path) -> None:
    async def whole() -> None:
        backend = EndpointOverMemory(tmp_path)
        endpoints = [ZooKeeperEndpoint(backend._open_behind, limits=LIMITS) for _ in range(3)]
        for endpoint in endpoints:
            await endpoint.start()
        client = await WireClient.begin(await endpoints[0].listen("127.0.0.1", 0))

        async def reaped() -> None:
            await made(client, O.CREATE_CONTAINER, create("/c", b"", 4))
            await client.create("/c/x")
            await client.call(O.DELETE, path_and_version("/c/x"))
            await until_gone(client, "/c")
            await asyncio.sleep(0)

        for _ in range(4):
            await reaped()
        counts = [endpoint.reaper.reaped for endpoint in endpoints]
        assert sorted(counts)[:2] == [0, 0], counts
        first = endpoints[counts.index(max(counts))]
        before = first.reaper.reaped
        assert first._reaping is not None
        first._reaping.cancel()  # as if it had died
        for _ in range(2):
            await reaped()
        assert sum(endpoint.reaper.reaped for endpoint in endpoints) > before
        await client.close()
        for endpoint in endpoints:
            await endpoint.stop()

    asyncio.run(whole())
