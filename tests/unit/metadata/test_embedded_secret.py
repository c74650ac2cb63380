"""The greeting of the embedded metadata store: both ends prove the secret before the first request, and say their
releases."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from heliograph.base import version
from heliograph.base.errors import AuthenticationError, HeliographError, InvalidConfigError, VersionMismatchError
from heliograph.base.guard.handshake import METADATA, ClientHandshake
from heliograph.base.home import ClusterHome
from heliograph.metadata.backends.embedded import protocol, session
from heliograph.metadata.backends.embedded.actor import StoreAccess
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    PROTOCOL_VERSION,
    SERVER_NAME,
    EmbeddedFrameDecoder,
    EmbeddedOp,
    encode_frame,
    greeting_version,
)
from heliograph.metadata.backends.embedded.server import service
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.credentials import with_secrets, without_password

SECRET = "a secret, of this cluster"
OTHER = "the secret of some other one"
BOTH = f"{OTHER}\n{SECRET}"


@asynccontextmanager
async def serving(directory: Path, secret: str | None) -> AsyncIterator[str]:
    server = EmbeddedServer(directory, "127.0.0.1", secret=secret)
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


@pytest.mark.parametrize(
    ("servers", "clients", "refusal"),
    [
        (None, None, None),
        (SECRET, SECRET, None),
        (BOTH, SECRET, None),
        (BOTH, OTHER, None),
        (SECRET, BOTH, None),
        (BOTH, BOTH, None),
        (SECRET, None, "asks for the cluster's secret"),
        (SECRET, OTHER, "does not know the cluster's secret"),
        (None, SECRET, "may not belong to the cluster"),
    ],
)
def test_only_the_same_secret_is_served(
    tmp_path: Path, servers: str | None, clients: str | None, refusal: str | None
) -> None:
    async def scenario() -> None:
        async with serving(tmp_path, servers) as address:
            url = with_secrets(f"embedded://{address}", clients)
            if refusal is not None:
                with pytest.raises(AuthenticationError, match=refusal) as refused:
                    await connect_store(url)
                assert refused.value.field == "cluster_secret"
                return
            store = await connect_store(url)
            await store.create("/a", b"1")
            assert (await store.get("/a"))[0] == b"1"
            await store.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "frames",
    [
        [[1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1_000, 0, ""]],
        [[1, EmbeddedOp.RESUME, MAGIC, PROTOCOL_VERSION, 1, "", "owner", True]],
        [[1, EmbeddedOp.GET, "/", 0]],
        [[1, EmbeddedOp.PROVE, bytes(32)]],
        [[1, EmbeddedOp.CHALLENGE, MAGIC, PROTOCOL_VERSION, bytes(32)], [2, EmbeddedOp.PROVE, bytes(32)]],
        [[1, EmbeddedOp.CHALLENGE, MAGIC, PROTOCOL_VERSION, bytes(32)], [2, EmbeddedOp.GET, "/", 0]],
        [[n, EmbeddedOp.CHALLENGE, MAGIC, PROTOCOL_VERSION, bytes(32)] for n in (1, 2)],
        [[1, EmbeddedOp.CHALLENGE, MAGIC, PROTOCOL_VERSION, b"short"]],
        [[1, EmbeddedOp.CHALLENGE, "", PROTOCOL_VERSION, bytes(32)]],
    ],
)
async def test_strangers_get_no_answer_but_refusal(tmp_path: Path, frames: list[list[object]]) -> None:
    async with serving(tmp_path, SECRET) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"".join(encode_frame(frame) for frame in frames))
        async with asyncio.timeout(30):
            try:
                answers = EmbeddedFrameDecoder().feed(await reader.read())
            except ConnectionResetError:
                answers = []
        writer.close()
        granted = [answer for answer in answers if answer[1] == 0]
        assert all(type(answer[2]) is bytes for answer in granted), "challenges only"
        assert len(granted) < len(frames)


async def test_a_proof_serves_one_connection(tmp_path: Path) -> None:
    async def ask(address: str, frames: list[list[object]]) -> list[list[object]]:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        decoder, answers = EmbeddedFrameDecoder(), []
        for frame in frames:
            writer.write(encode_frame(frame))
            answers += decoder.feed(await reader.read(1 << 16))
        writer.close()
        return answers

    async with serving(tmp_path, SECRET) as address:
        client = ClientHandshake(SECRET, METADATA)
        hello = [1, EmbeddedOp.CHALLENGE, MAGIC, PROTOCOL_VERSION, client.nonce]
        ((_, _, challenge),) = await ask(address, [hello])
        assert isinstance(challenge, bytes)
        proof = client.prove(challenge, SERVER_NAME)
        answers = await ask(address, [hello, [2, EmbeddedOp.PROVE, proof]])
        assert answers[1][1] != 0, "another connection has another nonce"


def test_no_store_is_open_to_other_machines(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="give the cluster a secret"):
        EmbeddedServer(tmp_path, "0.0.0.0")
    EmbeddedServer(tmp_path, "0.0.0.0", secret=SECRET)
    with pytest.raises(InvalidConfigError, match="shorter"):
        EmbeddedServer(tmp_path, "127.0.0.1", secret="short")


def test_the_secret_is_not_shown(tmp_path: Path) -> None:
    url = with_secrets("embedded://localhost:1", BOTH)
    assert quote(SECRET, safe="") in url
    assert without_password(url) == "embedded://cluster@localhost:1"
    assert SECRET not in repr(StoreAccess(SECRET))
    with pytest.raises(HeliographError) as refused:
        asyncio.run(connect_store("embedded://cluster:hidden@localhost"))
    assert "hidden" not in str(refused.value)


def test_commands_find_the_secret_in_the_home(tmp_path: Path) -> None:
    home = ClusterHome(tmp_path)
    assert home.secret() is None
    home.keep_secret(BOTH)
    assert home.secret() == BOTH
    assert stat.S_IMODE((tmp_path / "cluster.secret").stat().st_mode) == 0o600
    home.keep_secret(None)
    assert home.secret() is None


async def test_the_environment_has_the_secret_where_the_url_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HELIOGRAPH_CLUSTER_SECRET", OTHER)
    monkeypatch.setenv("HELIOGRAPH_PREVIOUS_CLUSTER_SECRET", SECRET)
    async with serving(tmp_path, SECRET) as address:
        store = await connect_store(f"embedded://{address}")
        await store.close()


@pytest.mark.parametrize("secret", [None, "a secret, of this cluster"])
@pytest.mark.parametrize(
    ("server", "client", "refusal"),
    [
        ("0.2.0", "0.2.0", ""),
        ("0.2.0", "0.1.0", ""),
        ("0.1.0", "0.2.0", ""),
        ("0.3.0", "0.1.0", r"has version 0\.1\.0, and here is 0\.3\.0"),
        ("0.1.0", "0.3.0", r"has version 0\.3\.0, and here is 0\.1\.0"),
        ("said not", "0.2.0", ""),
        ("said not", "0.3.0", r"has version 0\.1\.0, and here is 0\.3\.0"),
        ("0.2.0", "said not", ""),
        ("0.3.0", "said not", r"has version 0\.1\.0, and here is 0\.3\.0"),
    ],
)
def test_neighbours_talk_and_others_are_told_both_versions(
    secret: str | None, server: str, client: str, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ends are in one process: what a server checks, and what a client says, are replaced."""
    is_old_server, is_old_client = server == "said not", client == "said not"
    monkeypatch.setattr(version, "VERSION", client if is_old_server else server)
    if is_old_server:
        monkeypatch.setattr(service, "split_version", lambda said: (said, version.own_release()))
        monkeypatch.setattr(service, "says_release", lambda said: False)
    elif not is_old_client:
        said = PROTOCOL_VERSION | version.release_of(client).number << protocol._RELEASE_SHIFT
        monkeypatch.setattr(session, "greeting_version", lambda with_release: said)
        monkeypatch.setattr(session, "require_meeting", lambda release, name: None)  # the server does, in these cases
    else:
        monkeypatch.setattr(session, "greeting_version", lambda with_release: PROTOCOL_VERSION)
        monkeypatch.setattr(session, "require_meeting", lambda release, name: None)

    async def scenario() -> None:
        serving = EmbeddedServer(tmp_path, "127.0.0.1", secret=secret)
        await serving.start()
        url = with_secrets(f"embedded://{serving.address}", secret)
        try:
            if refusal:
                with pytest.raises(VersionMismatchError, match=refusal):
                    await connect_store(url)
                return
            store = await connect_store(url)
            await store.create("/a", b"1")
            await store.close()
        finally:
            await serving.stop()

    asyncio.run(scenario())


def test_the_version_of_a_greeting_begins_with_the_protocol() -> None:
    assert greeting_version(with_release=False) == PROTOCOL_VERSION
    assert protocol.split_version(greeting_version(with_release=True)) == (PROTOCOL_VERSION, version.own_release())
