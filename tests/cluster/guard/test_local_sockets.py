"""Bookies and brokers are reached by Unix sockets on their own machine, unless they have TLS or the setting is off."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

import heliograph
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.frame import decode_batch
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.base.guard.local_socket import connected_socket
from heliograph.base.tls.contexts import ClientTls
from tests.cluster.bookie.test_tls import certificates
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, small_config
from tests.cluster.support.served_broker import ServedBroker

SECRET = "a secret that is long enough"
SECONDS_MAX = 60.0

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    found: Run = request.param
    return found


def connection_to(address: str, **options: Any) -> BookieConnection:
    loop = asyncio.get_running_loop()
    return BookieConnection("b1", address, lambda: int(loop.time() * 1000), **options)


async def answer_of(connection: BookieConnection) -> Any:
    """Return the answer to a READ_LAC of a ledger that nobody has, or the error."""
    found: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request = BookieRequest(BookieOp.READ_LAC, 0, 99)
    connection.request(request, b"", lambda _, answer, body: found.set_result(answer), None, 60_000)
    async with asyncio.timeout(SECONDS_MAX):
        return await found


async def batch_of(connection: BookieConnection, ledger_id: int) -> tuple[Any, list[bytes]]:
    """Return the answer to a READ_BATCH from entry 0 on, or the error, and the entries."""
    found: asyncio.Future[tuple[Any, memoryview]] = asyncio.get_running_loop().create_future()
    request = BookieRequest(BookieOp.READ_BATCH, 0, ledger_id, 0)
    connection.request(request, b"", lambda _, answer, body: found.set_result((answer, body)), None, 60_000)
    async with asyncio.timeout(SECONDS_MAX):
        answer, body = await found
    return answer, [bytes(entry) for entry in decode_batch(body)]


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


@pytest.mark.parametrize(("options", "ways"), [({}, 1), ({"local_sockets": False}, 0)], ids=["on", "off"])
@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
async def test_parts_reach_a_bookie_by_its_unix_socket(
    tmp_path: Path, run: Run, options: dict[str, Any], ways: int, secret: str | None
) -> None:
    bookie = Bookie(small_config(tmp_path, cluster_secret=secret, **options), None)
    await bookie.start()
    connection = connection_to(bookie.address, secret=secret)
    answer = await answer_of(connection)
    assert isinstance(answer, Answer)
    assert answer.status is Status.NO_LEDGER
    statistics = bookie.statistics()
    assert (statistics["connections"], statistics["connections_local"]) == (1, ways)
    connection.close()
    await bookie.stop()
    assert connected_socket("127.0.0.1", port_of(bookie.address)) is None


async def test_a_wrong_secret_is_refused_there_too(tmp_path: Path) -> None:
    bookie = Bookie(small_config(tmp_path, cluster_secret=SECRET), None)
    await bookie.start()
    connection = connection_to(bookie.address, secret="another secret of enough length")
    assert not isinstance(await answer_of(connection), Answer)
    assert (bookie.statistics()["connections_local"], bookie.statistics()["entries_added"]) == (1, 0)
    connection.close()
    await bookie.stop()


@pytest.mark.parametrize("options", [{}, {"local_sockets": False}, {"advertised_host": "127.0.0.2"}], ids=str)
async def test_batches_pass_the_socket_of_a_bookie_in_the_same_process(tmp_path: Path, options: dict[str, Any]) -> None:
    bookie = Bookie(small_config(tmp_path, cluster_secret=None, **options), None)
    await bookie.start()
    peer = await BookiePeer.connect(f"127.0.0.1:{port_of(bookie.address)}")
    stored = [entry_bytes(5, number, b"x" * 100_000) for number in range(3)]
    for number in range(3):
        await peer.add(5, number, b"x" * 100_000)
    connection = connection_to(f"127.0.0.1:{port_of(bookie.address)}")
    for _ in range(2):  # from the write cache, then from the disk
        answer, entries = await batch_of(connection, 5)
        assert answer.status is Status.OK
        assert entries == stored
        await bookie.checkpoint()
    answer, entries = await batch_of(connection, 6)
    assert (answer.status, entries) == (Status.NO_LEDGER, [])
    assert bookie.statistics()["connections"] == (2 if options else 1), "the peer's, and perhaps ours"
    bookie.fail(OSError("the disk is gone"))
    answer, _ = await batch_of(connection, 5)
    assert not isinstance(answer, Answer)
    connection.close()
    peer.close()
    await bookie.stop()


async def test_a_batch_past_the_socket_takes_the_secret_too(tmp_path: Path) -> None:
    bookie = Bookie(small_config(tmp_path, cluster_secret=SECRET), None)
    await bookie.start()
    wrong, right = (connection_to(bookie.address, secret=secret) for secret in (SECRET + "x", SECRET))
    assert not isinstance((await batch_of(wrong, 5))[0], Answer)
    assert (await batch_of(right, 5))[0].status is Status.NO_LEDGER
    await bookie.stop()
    assert not isinstance((await batch_of(right, 5))[0], Answer)
    wrong.close()
    right.close()


async def test_a_bookie_with_tls_has_no_unix_socket(tmp_path: Path) -> None:
    tls = certificates(tmp_path / "tls")
    bookie = Bookie(small_config(tmp_path, cluster_secret=SECRET, tls=tls), None)
    await bookie.start()
    assert connected_socket("127.0.0.1", port_of(bookie.address)) is None
    connection = connection_to(bookie.address, secret=SECRET, tls=ClientTls(tls.as_client))
    assert isinstance(await answer_of(connection), Answer)
    assert bookie.statistics()["connections_local"] == 0
    connection.close()
    await bookie.stop()


async def test_one_address_has_as_many_connections_as_it_may_whatever_their_kind(tmp_path: Path) -> None:
    bookie = Bookie(small_config(tmp_path, connections_per_address_max=2), None)
    await bookie.start()
    peer = await BookiePeer.connect(bookie.address)  # by TCP
    first, second = connection_to(bookie.address), connection_to(bookie.address)
    assert isinstance(await answer_of(first), Answer)
    assert not isinstance(await answer_of(second), Answer)
    statistics = bookie.statistics()
    assert (statistics["connections"], statistics["connections_refused"]) == (2, 1)
    for each in (peer, first, second):
        each.close()
    await bookie.stop()


async def test_a_bookie_that_fails_leaves_its_unix_socket_at_once(tmp_path: Path) -> None:
    bookie = Bookie(small_config(tmp_path), None)
    await bookie.start()
    connection = connection_to(bookie.address)
    assert isinstance(await answer_of(connection), Answer)
    bookie.fail(OSError("the disk is gone"))
    assert connected_socket("127.0.0.1", port_of(bookie.address)) is None
    assert not isinstance(await answer_of(connection), Answer)
    connection.close()
    await bookie.stop()


@pytest.mark.parametrize(("options", "is_local"), [({}, True), ({"local_sockets": False}, False)], ids=["on", "off"])
def test_clients_reach_a_broker_by_its_unix_socket(options: dict[str, Any], is_local: bool) -> None:
    async def scenario() -> None:
        async with await heliograph.connect_async(broker.url) as client, client.producer("orders") as producer:
            await producer.send(b"one")

    broker = ServedBroker(**options)
    try:
        asyncio.run(scenario())
        assert (broker.connections_local_total > 0) is is_local
    finally:
        broker.stop()
