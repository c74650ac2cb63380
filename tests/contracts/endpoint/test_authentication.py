"""The endpoint with authentication: tokens, refused clients, roles in ACLs, superusers, and Heliograph's own nodes."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from heliograph.auth.audit import AuditLog
from heliograph.auth.config import AuditConfig, AuthConfig
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode
from heliograph.metadata.endpoint.wire.jute import JuteReader
from heliograph.metadata.recipes.revoked_tokens import revoke
from tests.contracts.endpoint.backends import EndpointOverMemory
from tests.contracts.endpoint.wire.client import (
    DEADLINE_SECONDS,
    Event,
    Reply,
    WireClient,
    add_watch,
    auth,
    create,
    multi,
    path_and_version,
    path_and_watch,
    set_acl,
    set_data,
    set_watches,
)
from tests.unit.auth.keys import SECRET, token

XID_AUTH = -4
CREATED = 1
AUTH = AuthConfig(
    enabled=True,
    token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
    superuser_roles=("admin",),
    proxy_roles=("gateway",),
)


@asynccontextmanager
async def served(
    config: AuthConfig = AUTH, limits: EndpointLimits | None = None, audit: AuditLog | None = None
) -> AsyncIterator[EndpointOverMemory]:
    """Yield an endpoint with authentication, over an empty store in this process."""
    backend = EndpointOverMemory(Path())
    backend.endpoint = ZooKeeperEndpoint(backend._open_behind, auth=config, limits=limits, audit=audit)
    await backend.start()
    try:
        async with asyncio.timeout(2 * DEADLINE_SECONDS):
            yield backend
    finally:
        await backend.stop()


async def caller(backend: EndpointOverMemory, role: str = "alice") -> WireClient:
    """Return a client that has shown a token of a role."""
    client = await WireClient.begin(backend.address)
    assert (await show(client, token(role))).error == ErrorCode.OK
    return client


async def show(client: WireClient, credential: bytes, scheme: str = "token") -> Reply:
    return await client.call(OpCode.AUTH, auth(scheme, credential), XID_AUTH)


@pytest.mark.parametrize(
    ("op", "body"),
    [(OpCode.GET_DATA, path_and_watch("/")), (OpCode.CREATE, create("/a")), (OpCode.SYNC, path_and_watch("/")),
     (OpCode.ADD_WATCH, add_watch("/", 1)), (OpCode.MULTI, multi((OpCode.CREATE, create("/a")))),
     (OpCode.SET_WATCHES, set_watches(0, ["/"], [], [])), (OpCode.WHO_AM_I, b"")],
)  # fmt: skip
async def test_a_client_that_shows_nothing_is_answered_once_and_hung_up_on(op: OpCode, body: bytes) -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        assert (await client.call(OpCode.PING, xid=-2)).error == ErrorCode.OK
        assert (await client.call(op, body)).error == ErrorCode.SESSION_CLOSED_REQUIRE_AUTH
        assert await client.rest() == b""
        assert backend.endpoint.statistics.requests["create"] == 0
        await client.close()


async def test_a_caller_that_is_not_let_in_has_a_line_in_the_audit_log(tmp_path: Path) -> None:
    async with served(audit=AuditLog(AuditConfig(file=str(tmp_path / "audit.json")), "endpoint-2181")) as backend:
        await (await caller(backend)).close()
        client = await WireClient.begin(backend.address)
        assert (await show(client, token("alice", b"x" * 32))).error == ErrorCode.AUTH_FAILED
        await client.close()
    [line] = [json.loads(line) for line in (tmp_path / "audit-refused.json").read_text().splitlines()]
    noted = line["operation"], line["outcome"], line["broker"], line["method"], line["reason"]
    assert noted == ("login", "refused", "endpoint-2181", "token", "the token's signature is wrong")
    assert line["peer"].startswith("127.0.0.1:")


async def test_writes_behind_a_refused_one_do_not_run() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        for name in ("/a", "/b"):
            client.send(OpCode.CREATE, create(name))
        heard = await client.hear()
        assert isinstance(heard, Reply)
        assert heard.error == ErrorCode.SESSION_CLOSED_REQUIRE_AUTH
        assert await client.rest() == b""
        alice = await caller(backend)
        for name in ("/a", "/b"):
            assert (await alice.call(OpCode.EXISTS, path_and_watch(name))).error == ErrorCode.NO_NODE
        await client.close()
        await alice.close()


@pytest.mark.parametrize(
    "credential",
    [b"", b"nonsense", token("alice", b"x" * 32), token("alice", seconds=-10), token(""), token("gateway"),
     b"." * 9_000],
    ids=["empty", "nonsense", "another key", "expired", "no role", "a proxy that names nobody", "too long"],
)  # fmt: skip
async def test_a_wrong_token_is_refused_and_the_connection_closes(credential: bytes) -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        client.send(OpCode.AUTH, auth("token", credential), XID_AUTH)
        client.send(OpCode.CREATE, create("/a"))
        heard = await client.hear()
        assert isinstance(heard, Reply)
        assert (heard.xid, heard.error) == (XID_AUTH, ErrorCode.AUTH_FAILED)
        assert await client.rest() == b""
        await client.close()


async def test_a_digest_does_not_show_who_a_client_is() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        assert (await show(client, b"admin:admin", "digest")).error == ErrorCode.OK
        assert (await client.create("/a")).error == ErrorCode.SESSION_CLOSED_REQUIRE_AUTH
        await client.close()


async def test_a_role_is_an_identity_of_acls_and_a_superuser_passes_all() -> None:
    async with served() as backend:
        alice, bob, admin = [await caller(backend, role) for role in ("alice", "bob", "admin")]
        assert (await alice.create("/mine", b"v", 0, [(31, "auth", "")])).error == ErrorCode.OK
        assert (await alice.create("/shared", b"v", 0, [(31, "token", "alice"), (1, "token", "bob")])).error == 0
        found = await alice.call(OpCode.GET_ACL, path_and_watch("/mine"))
        reader = JuteReader(found.body)
        assert (reader.int32(), reader.int32(), reader.string(), reader.string()) == (1, 31, "token", "alice")
        for client, path, right, wrong in (
            (bob, "/mine", ErrorCode.NO_AUTH, ErrorCode.NO_AUTH), (bob, "/shared", ErrorCode.OK, ErrorCode.NO_AUTH),
            (alice, "/mine", ErrorCode.OK, ErrorCode.OK), (admin, "/mine", ErrorCode.OK, ErrorCode.OK),
        ):  # fmt: skip
            assert (await client.call(OpCode.GET_DATA, path_and_watch(path))).error == right
            assert (await client.call(OpCode.SET_DATA, set_data(path, b"w"))).error == wrong
        assert (await admin.call(OpCode.SET_ACL, set_acl("/mine", [(1, "token", "bob")]))).error == ErrorCode.OK
        assert (await bob.call(OpCode.GET_DATA, path_and_watch("/mine"))).error == ErrorCode.OK
        assert (await bob.create("/x", b"", 0, [(31, "token", " ")])).error == ErrorCode.INVALID_ACL
        for client in (alice, bob, admin):
            await client.close()


@pytest.mark.parametrize("path", ["/ledgers", "/ledgers/0000/1", "/cluster", "/settings/brokers", "/endpoint-acls"])
async def test_heliographs_own_nodes_are_closed_to_all_but_superusers(path: str) -> None:
    async with served() as backend:
        alice, admin = await caller(backend), await caller(backend, "admin")
        for op, body in (
            (OpCode.GET_DATA, path_and_watch(path)), (OpCode.EXISTS, path_and_watch(path)),
            (OpCode.GET_CHILDREN2, path_and_watch(path)), (OpCode.GET_ACL, path_and_watch(path)),
            (OpCode.SET_DATA, set_data(path, b"")), (OpCode.DELETE, path_and_version(path)),
            (OpCode.CREATE, create(path)), (OpCode.CREATE, create(f"{path}/x")), (OpCode.ADD_WATCH, add_watch(path, 1)),
            (OpCode.GET_ALL_CHILDREN_NUMBER, path_and_watch(path)[:-1]),
            (OpCode.SET_ACL, set_acl(path, [(31, "token", "alice")])),
        ):  # fmt: skip
            assert (await alice.call(op, body)).error == ErrorCode.NO_AUTH, op
            if not path.startswith("/endpoint-acls"):
                assert (await admin.call(op, body)).error != ErrorCode.NO_AUTH, op
        for client in (alice, admin):
            await client.close()


async def test_a_watch_of_everything_does_not_tell_of_heliographs_own_nodes() -> None:
    async with served() as backend:
        alice, admin = await caller(backend), await caller(backend, "admin")
        for client in (alice, admin):
            await client.call(OpCode.ADD_WATCH, add_watch("/", 1))
        for path in ("/cluster", "/seen"):
            assert (await admin.create(path)).error == ErrorCode.OK
        assert await alice.hear() == Event(CREATED, 3, "/seen")
        assert [event.path for event in admin.events] == ["/cluster", "/seen"]
        found = await alice.call(OpCode.GET_ALL_CHILDREN_NUMBER, path_and_watch("/")[:-1])
        seen = JuteReader(found.body).int32()
        found = await admin.call(OpCode.GET_ALL_CHILDREN_NUMBER, path_and_watch("/")[:-1])
        assert JuteReader(found.body).int32() == seen + 1
        for client in (alice, admin):
            await client.close()


async def test_connections_end_with_the_token_and_without_one_after_a_while() -> None:
    async with served(limits=EndpointLimits(handshake_ms_max=300)) as backend:
        silent, brief, alice = await WireClient.begin(backend.address), await WireClient.begin(backend.address), None
        assert (await show(brief, token("alice", seconds=30))).error == ErrorCode.OK
        alice = await caller(backend)
        (connection,) = [one for one in backend.endpoint._connections if one.caller and one.caller._expires_ms]
        assert connection.caller is not None
        connection.caller._expires_ms = 1
        assert await brief.rest() == b""
        assert await silent.rest() == b""
        assert (await alice.create("/still")).error == ErrorCode.OK
        for client in (silent, brief, alice):
            await client.close()


async def test_a_revoked_token_ends_its_connection_and_opens_no_other() -> None:
    async with served() as backend:
        revoked, kept = token("alice", jti="stolen"), token("alice", jti="own")
        clients = [await WireClient.begin(backend.address) for _ in range(3)]
        for client, shown in zip(clients, (revoked, kept), strict=False):
            assert (await show(client, shown)).error == ErrorCode.OK
        await revoke(backend.endpoint._store_session.store, "stolen", None)
        assert await clients[0].rest() == b""
        assert (await show(clients[2], revoked)).error == ErrorCode.AUTH_FAILED
        assert (await clients[1].create("/still")).error == ErrorCode.OK
        for client in clients:
            await client.close()


async def test_an_anonymous_role_is_served_and_a_bad_token_is_not() -> None:
    async with served(replace(AUTH, anonymous_role="guest")) as backend:
        client = await WireClient.begin(backend.address)
        assert (await client.create("/a", b"", 0, [(31, "auth", "")])).error == ErrorCode.OK
        assert (await client.call(OpCode.GET_DATA, path_and_watch("/ledgers"))).error == ErrorCode.NO_AUTH
        assert (await show(client, b"bad")).error == ErrorCode.AUTH_FAILED
        assert await client.rest() == b""
        await client.close()


async def test_without_authentication_there_are_no_tokens() -> None:
    async with served(AuthConfig()) as backend:
        client = await WireClient.begin(backend.address)
        assert (await client.create("/cluster")).error == ErrorCode.OK
        assert (await show(client, token("alice"))).error == ErrorCode.AUTH_FAILED
        await client.close()
