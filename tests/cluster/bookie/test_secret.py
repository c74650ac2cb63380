"""The cluster's secret: both ends prove it before the first request, and strangers get nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.errors import BookieError, BookieUnavailableError, FrameError
from heliograph.actors.ledger.driver import LedgerClient, LedgerClientConfig
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.greeting import ClientGreeting, Greeting
from heliograph.actors.wire.messages import PROTOCOL_VERSION, Answer, BookieOp, BookieRequest, Status
from heliograph.base.errors import InvalidConfigError
from heliograph.base.guard.handshake import NONCE_BYTES
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.deployment import _class_and_arguments
from heliograph.cluster.parts import Part
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from tests.cluster.support.bookie_peer import BookiePeer, small_config

SECRET = "a secret that is long enough"
OTHER = "another one, of some other cluster"


async def ask(bookie_id: str, address: str, secret: str | None, count: int = 3) -> list[Answer | BookieError]:
    """Send some requests at once over one new connection."""
    loop = asyncio.get_running_loop()
    connection = BookieConnection(bookie_id, address, lambda: int(loop.time() * 1000), secret=secret)
    answers: list[asyncio.Future[Answer | BookieError]] = [loop.create_future() for _ in range(count)]

    def on_answer(future: asyncio.Future[Answer | BookieError], answer: Any, body: memoryview) -> None:
        future.set_result(answer)

    for future in answers:
        connection.request(BookieRequest(BookieOp.READ, 0, 1, 0), b"", on_answer, future, 60_000)
    try:
        return await asyncio.wait_for(asyncio.gather(*answers), 60)
    finally:
        connection.close()


async def started(home: Path, **changes: Any) -> Any:
    from heliograph.actors.bookie.bookie import Bookie

    bookie = Bookie(small_config(home, **changes), None)
    await bookie.start()
    return bookie


@pytest.mark.parametrize(
    ("bookies", "clients", "is_served"),
    [
        (SECRET, SECRET, True),
        (None, None, True),
        (SECRET, OTHER, False),
        (SECRET, None, False),
        (None, SECRET, False),  # it may not belong to the cluster
        (f"{OTHER}\n{SECRET}", SECRET, True),  # while the secret is changed
        (SECRET, f"{OTHER}\n{SECRET}", True),
        (f"{OTHER}\n{SECRET}", OTHER, True),
        (f"{OTHER}\n{SECRET}", f"{OTHER}\n{SECRET}", True),
    ],
)
async def test_only_the_same_secret_is_served(
    tmp_path: Path, bookies: str | None, clients: str | None, is_served: bool
) -> None:
    bookie = await started(tmp_path, cluster_secret=bookies)
    try:
        for answer in await ask("b1", bookie.address, clients):
            if is_served:
                assert isinstance(answer, Answer)
                assert answer.status is Status.NO_LEDGER
            else:
                assert isinstance(answer, BookieUnavailableError)
                assert "secret" in str(answer)
        if bookies is not None and clients is None:
            assert bookie.statistics()["clients_refused"] == 1
    finally:
        await bookie.stop()


async def test_strangers_get_no_answer_but_refusal(tmp_path: Path) -> None:
    bookie = await started(tmp_path, cluster_secret=SECRET)
    try:
        for bodies in ([b""], [b"x" * NONCE_BYTES, b"y" * NONCE_BYTES], [b"x" * NONCE_BYTES, b""]):
            host, port = bookie.address.rsplit(":", 1)
            _, peer = await asyncio.get_running_loop().create_connection(BookiePeer, host, int(port))
            for body in bodies:
                answer, _ = await peer.call(BookieOp.HELLO, PROTOCOL_VERSION, body=body)
            assert answer.status is Status.UNAUTHORIZED
            with pytest.raises(ConnectionError):
                await peer.call(BookieOp.READ, 1, 0)
        _, peer = await asyncio.get_running_loop().create_connection(BookiePeer, host, int(port))
        with pytest.raises(ConnectionError):
            await peer.call(BookieOp.READ, 1, 0)  # no hello at all
        _, peer = await asyncio.get_running_loop().create_connection(BookiePeer, host, int(port))
        with pytest.raises(ConnectionError):  # I15: more than a greeting has
            await peer.call(BookieOp.HELLO, PROTOCOL_VERSION, body=bytes(1 << 20))
    finally:
        await bookie.stop()


def test_proofs_serve_once_and_for_one_bookie() -> None:
    client, bookie = ClientGreeting(SECRET), Greeting(SECRET)
    status, challenge = bookie.answer(client.nonce, "b1")
    assert status is Status.CHALLENGE
    proof = client.prove(challenge, "b1")
    assert bookie.answer(proof, "b1") == (Status.OK, b"")
    with pytest.raises(FrameError, match="malformed or comes twice"):
        client.prove(challenge, "b1")
    again = Greeting(SECRET)
    again.answer(client.nonce, "b1")
    assert again.answer(proof, "b1")[0] is Status.UNAUTHORIZED, "another connection has another nonce"
    with pytest.raises(FrameError, match="does not know"):
        ClientGreeting(SECRET).prove(challenge, "b1")
    elsewhere = ClientGreeting(SECRET)
    _, challenge = Greeting(SECRET).answer(elsewhere.nonce, "b2")
    with pytest.raises(FrameError, match="does not know"):
        elsewhere.prove(challenge, "b1")
    with pytest.raises(FrameError, match="may not belong to the cluster"):
        ClientGreeting(SECRET).check_welcome()


async def test_ledgers_are_written_and_read_with_the_secret(tmp_path: Path) -> None:
    from heliograph.actors.bookie.bookie import Bookie

    url = "memory://bookie-secret"
    await initialise(await connect_store(url))
    bookies = []
    for number in range(3):
        home = tmp_path / str(number)
        config = small_config(home, bookie_id=f"b{number}", cluster_secret=SECRET)
        bookies.append(Bookie(config, await connect_store(url)))
        await bookies[-1].start()
    client = await LedgerClient.start(await connect_store(url), LedgerClientConfig(cluster_secret=SECRET))
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
    assert await asyncio.gather(*[writer.add(b"%d" % n) for n in range(100)]) == list(range(100))
    await writer.close()
    reader = await client.open(writer.ledger_id)
    assert [entry.payload for entry in await reader.read(0, 99)] == [b"%d" % n for n in range(100)]
    await client.close()
    for bookie in bookies:
        await bookie.stop()


def test_secrets_are_checked_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="shorter"):
        small_config(tmp_path, cluster_secret="short")
    with pytest.raises(InvalidConfigError, match="shorter"):
        LedgerClientConfig(cluster_secret="short")
    with pytest.raises(InvalidConfigError, match="shorter"):
        ClusterConfig(cluster_secret="short")
    for wrong in (f"{SECRET}\nshort", ""):
        with pytest.raises(InvalidConfigError, match="shorter"):
            small_config(tmp_path, cluster_secret=wrong)
    with pytest.raises(InvalidConfigError, match="3 secrets"):
        small_config(tmp_path, cluster_secret=f"{SECRET}\n{OTHER}\n{SECRET}")
    with pytest.raises(InvalidConfigError, match="give the cluster a secret"):
        small_config(tmp_path, host="0.0.0.0")
    shown: list[object] = [
        small_config(tmp_path, host="0.0.0.0", cluster_secret=SECRET),
        LedgerClientConfig(cluster_secret=SECRET),
        ClusterConfig(cluster_secret=SECRET),
    ]
    assert all(SECRET not in repr(config) for config in shown)
    assert isinstance(shown[0], BookieConfig)


def test_the_cluster_hands_its_secret_to_all_who_need_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_CLUSTER_SECRET", SECRET)
    monkeypatch.setenv("HELIOGRAPH_STATE_ROOT", str(tmp_path))
    config = ClusterConfig()
    for kind in ("bookie", "broker", "auditor"):
        part = Part(f"{kind}-1", kind, directory=tmp_path)
        _, arguments = _class_and_arguments(part, config, "memory://none", "")
        assert arguments[0].cluster_secret == SECRET
        assert SECRET not in repr(arguments)
