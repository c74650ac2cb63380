"""Connections to etcd that are accepted and that are refused: endpoints, TLS, users, prefixes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from heliograph.base.errors import HeliographError, InvalidConfigError, NotPermittedError
from heliograph.metadata.backends.etcd.client import EtcdStore
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.store import SessionState
from tests.cluster.metadata.etcd_world import QUICK, Shadowed, etcd, fresh_prefix, session
from tests.contracts.metadata.etcd_server import EtcdServer
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CONNECTED, SUSPENDED = SessionState.CONNECTED, SessionState.SUSPENDED


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


async def test_unreachable_endpoints_are_each_named_with_their_failure_in_time(server: EtcdServer) -> None:
    url = "etcd://127.0.0.1:1,no.such.host.invalid:2379/p"
    with pytest.raises(ConnectionLossError) as raised:
        await EtcdStore.connect(url, connect_timeout_ms=1_500)
    assert "127.0.0.1:1: " in str(raised.value)
    assert "no.such.host.invalid:2379: " in str(raised.value)
    async with session(f"etcd://127.0.0.1:1,{server.address}{fresh_prefix()}") as store:
        await store.create("/a")


async def refused(url: str, error: type[HeliographError], words: str) -> None:
    with pytest.raises(error, match=words):
        await EtcdStore.connect(url, connect_timeout_ms=1_500)


async def test_tls_with_certificates_on_both_sides(tmp_path: Path) -> None:
    authority, another = trustme.CA(), trustme.CA()
    files = {"ca": authority.cert_pem, "other": another.cert_pem}
    for name, identity in (("server", "127.0.0.1"), ("client", "me@example.org")):
        certificate = authority.issue_cert(identity)
        files[f"{name}.crt"], files[f"{name}.key"] = certificate.cert_chain_pems[0], certificate.private_key_pem
    for name, content in files.items():
        content.write_to_path(str(tmp_path / name))
    flags = {
        **QUICK,
        "cert-file": str(tmp_path / "server.crt"),
        "key-file": str(tmp_path / "server.key"),
        "client-cert-auth": "true",
        "trusted-ca-file": str(tmp_path / "ca"),
    }
    with etcd(tmp_path / "data", scheme="https", flags=flags) as server:
        ours = f"&cert={tmp_path}/client.crt&key={tmp_path}/client.key"
        async with session(f"etcds://{server.address}/p?ca={tmp_path}/ca{ours}") as store:
            await store.create("/a")
            told = Shadowed()
            await store.watch("/", told)
            await store.create("/b", ephemeral=True)
            assert told.paths == {"/b"}
        await asyncio.gather(*(
            refused(url, ConnectionLossError, server.address)
            for url in (
                f"etcds://{server.address}/p?ca={tmp_path}/other{ours}",
                f"etcds://{server.address}/p?ca={tmp_path}/ca",
                f"etcd://{server.address}/p",
            )
        ))  # fmt: skip
        await refused(f"etcds://{server.address}/p?ca={tmp_path}/none", InvalidConfigError, "none")


async def test_users_with_passwords_whose_tokens_run_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    (tmp_path / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    (tmp_path / "pub").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    token = f"jwt,pub-key={tmp_path}/pub,priv-key={tmp_path}/key,sign-method=RS256,ttl=1s"
    root = "--user=root:secret"
    with etcd(tmp_path / "data", flags={**QUICK, "auth-token": token, "bcrypt-cost": "4"}) as server:
        for arguments in (
            ("user", "add", "root:secret"), ("user", "grant-role", "root", "root"), ("role", "add", "ours"),
            ("role", "grant-permission", "ours", "readwrite", "/p:", "--prefix=true"), ("user", "add", "h@l:p w"),
            ("user", "grant-role", "h@l", "ours"), ("auth", "enable"),
        ):  # fmt: skip
            await asyncio.to_thread(server.ctl, *arguments)
        url = f"etcd://h%40l:p%20w@{server.address}/p"
        async with session(url) as store, session(url) as observer:
            told = Shadowed()
            await observer.watch("/", told)
            for number in range(4):
                await store.create(f"/n{number}", ephemeral=number == 0)
                await asyncio.sleep(0.6)  # over more than one token's time
            assert store.state is observer.state is CONNECTED
            server.kill()
            await until(lambda: store.state is SUSPENDED)
            await asyncio.to_thread(server.start)
            await until(lambda: store.state is CONNECTED)
            await store.create("/again")
            await observer.sync()
            assert told.paths == {"/n0", "/n1", "/n2", "/n3", "/again"}
            monkeypatch.setenv("HELIOGRAPH_METADATA_PASSWORD", "p w")
            async with session(f"etcd://h%40l@{server.address}/p") as third:
                assert await third.exists("/n0") is not None
        await refused(f"etcd://h%40l:wrong@{server.address}/p", NotPermittedError, "invalid user ID or password")
        await refused(f"etcd://{server.address}/p", NotPermittedError, "user name is empty")
        await refused(f"{url}elsewhere", NotPermittedError, "permission denied")
        server.ctl(root, "auth", "disable")
        async with session(url) as store:  # a user where none is needed does no harm
            await store.sync()


async def test_a_prefix_that_holds_something_else_is_refused(server: EtcdServer) -> None:
    server.ctl("put", "/taken:v", "something else")
    await refused(f"etcd://{server.address}/taken", RecordError, "checksum")
