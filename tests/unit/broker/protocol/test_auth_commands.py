"""CONNECT with credentials, refusals as Pulsar's, proxies, and credentials that end while a connection is open."""

from __future__ import annotations

import asyncio
import base64
import logging
from typing import Any

import pytest

from heliograph.actors.broker.protocol.connection import NO_REQUEST_ID, PulsarConnection
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import INTERNAL, Credentials, Principal, revocation_id
from heliograph.base.errors import AuthenticationError
from heliograph.base.guard.framed_connection import ConnectionState
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_command
from tests.unit.auth.keys import SECRET, token
from tests.unit.broker.clients import FakeTransport, LoneBroker, T
from tests.unit.broker.world import turns
from tests.waits import until

CHECK_SECONDS = 0.05
REFRESH = pb.FeatureFlags(supports_auth_refresh=True)


class Door:
    """One connection to a broker that asks for credentials."""

    def __init__(self, lone: LoneBroker, certificate: Any = None) -> None:
        self.transport = FakeTransport()
        found = self.transport.get_extra_info
        self.transport.get_extra_info = lambda name, default=None: (  # type: ignore[method-assign]
            certificate if name == "peercert" else found(name, default)
        )
        connection = lone.broker._server._connected()
        assert isinstance(connection, PulsarConnection)
        self.connection = connection
        connection.connection_made(self.transport)

    def say(self, **command: Any) -> None:
        self.connection.data_received(encode_command(T(**command)))

    def connect(self, data: bytes = b"", method: str = "token", **fields: Any) -> None:
        connect = pb.CommandConnect(
            client_version="test", protocol_version=20, auth_method_name=method, auth_data=data, **fields
        )
        self.say(type=T.CONNECT, connect=connect)

    def answer_challenge(self, data: bytes) -> None:
        response = pb.CommandAuthResponse(response=pb.AuthData(auth_method_name="token", auth_data=data))
        self.say(type=T.AUTH_RESPONSE, auth_response=response)

    def count(self, kind: int) -> int:
        return sum(answer.type == kind for answer in self.transport.answers)

    async def connected(self) -> Principal:
        await turns(lambda: bool(self.transport.answers))
        assert [answer.type for answer in self.transport.answers] == [T.CONNECTED]
        assert self.connection.state is ConnectionState.CONNECTED
        return self.connection.principal

    async def refused(
        self, error: pb.ServerError = pb.AUTHENTICATION_ERROR, says: str = "Failed to authenticate"
    ) -> None:
        await turns(lambda: self.transport.is_gone)
        (answer,) = self.transport.answers
        assert answer.type == T.ERROR
        assert (answer.error.request_id, answer.error.error, answer.error.message) == (NO_REQUEST_ID, error, says)
        self.connection.connection_lost(None)


def guarded(**settings: Any) -> LoneBroker:
    given: dict[str, Any] = {
        "enabled": True,
        "token_secret_key": base64.b64encode(SECRET).decode(),
        "superuser_roles": ("alice",),
        "refresh_check_seconds": CHECK_SECONDS,
        **settings,
    }
    return LoneBroker(auth=AuthConfig(**given))


async def test_connected_comes_after_the_check_and_names_the_role(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async with guarded() as lone:
        door = Door(lone)
        door.connect(token("bob"))
        assert not door.transport.answers
        assert door.connection.state is ConnectionState.AUTHENTICATING
        assert (await door.connected()).role == "bob"
        assert door.transport.answers[0].connected.feature_flags.supports_auth_refresh
        door.say(type=T.PING, ping=pb.CommandPing())
        await turns(lambda: door.count(T.PONG) == 1)
        for record in caplog.records:
            assert token("bob").decode()[:40] not in record.getMessage()


async def test_without_authentication_the_client_is_not_asked() -> None:
    async with guarded(enabled=False) as lone:
        door = Door(lone)
        door.connect(b"nonsense", original_principal="bob")
        assert await door.connected() is INTERNAL


@pytest.mark.parametrize(
    ("data", "method"),
    [
        (b"", "token"),
        (b"nonsense", "token"),
        (token(key=b"other" * 8), "token"),
        (token(seconds=-1), "token"),
        (b"x" * 8_000, "token"),
        (b"", "none"),
        (token(), "basic"),
        (b"", "tls"),
    ],
)
async def test_a_refused_client_hears_what_pulsar_says(data: bytes, method: str) -> None:
    async with guarded() as lone:
        door = Door(lone)
        door.connect(data, method)
        await door.refused()


async def test_methods_are_named_or_numbered() -> None:
    async with guarded(anonymous_role="guest") as lone:
        for connect in (
            pb.CommandConnect(client_version="old"),
            pb.CommandConnect(client_version="old", auth_method=pb.AuthMethodNone),
            pb.CommandConnect(client_version="old", auth_method=pb.AuthMethodYcaV1, auth_data=token()),
        ):
            door = Door(lone)
            door.say(type=T.CONNECT, connect=connect)
            assert (await door.connected()).role == "guest"


async def test_nothing_is_served_before_connected() -> None:
    commands: list[dict[str, Any]] = [
        {"type": T.PING, "ping": pb.CommandPing()},
        {"type": T.LOOKUP, "lookup": pb.CommandLookup(topic="t", request_id=1)},
        {"type": T.PRODUCER, "producer": pb.CommandProducer(topic="t", producer_id=1, request_id=1)},
        {"type": T.AUTH_RESPONSE, "auth_response": pb.CommandAuthResponse()},
        {"type": T.CONNECT, "connect": pb.CommandConnect(client_version="twice")},
    ]

    async with guarded() as lone:
        for command in commands:
            first = Door(lone)
            if command["type"] != T.CONNECT:
                first.say(**command)
                assert first.transport.is_gone
            behind = Door(lone)
            connect = pb.CommandConnect(client_version="test", auth_method_name="token", auth_data=token())
            behind.connection.data_received(
                encode_command(T(type=T.CONNECT, connect=connect)) + encode_command(T(**command))
            )
            assert behind.transport.is_gone
            await asyncio.sleep(0.001)
            assert not first.transport.answers
            assert not behind.transport.answers
            for door in (first, behind):
                door.connection.connection_lost(None)
        again = Door(lone)
        again.connect(token())
        await again.connected()
        again.connect(token("bob"))
        assert again.transport.is_gone
        assert again.connection.principal.role == "alice"


async def test_a_slow_check_ends_with_the_connection() -> None:
    async with guarded() as lone:

        async def never(credentials: Credentials, peer: str = "") -> Principal:
            await asyncio.sleep(60)
            raise AuthenticationError

        lone.broker.authenticator.authenticate = never  # type: ignore[method-assign]
        door = Door(lone)
        door.connect(token())
        await asyncio.sleep(0)
        door.connection._tick()
        assert door.transport.is_gone
        assert not door.transport.answers
        door.connection.connection_lost(None)
        await turns(lambda: not door.connection._tasks)


async def test_the_role_of_a_certificate() -> None:
    async with guarded() as lone:
        door = Door(lone, {"subject": ((("commonName", "carol"),),)})
        door.connect(method="tls")
        assert (await door.connected()).role == "carol"


async def test_a_proxy_names_the_caller_and_others_name_none() -> None:
    async with guarded(proxy_roles=("gateway",)) as lone:
        door = Door(lone)
        door.connect(token("gateway"), original_principal="bob")
        found = await door.connected()
        assert (found.role, found.via) == ("bob", "gateway")
        door = Door(lone)
        door.connect(token("gateway"), original_auth_data=token("carol").decode(), original_auth_method="token")
        assert (await door.connected()).roles == ("carol", "gateway")
        wrong = (("gateway", ""), ("alice", "bob"), ("gateway", "gateway"))
        for role, named in wrong:
            door = Door(lone)
            door.connect(token(role), original_principal=named)
            await door.refused(pb.AUTHORIZATION_ERROR, "Invalid roles.")
        door = Door(lone)
        door.connect(token("gateway"), original_principal="bob", original_auth_data="no", original_auth_method="token")
        await door.refused()


# -- credentials that end


async def expired(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Door:
    """A connection whose token has ended."""
    door = Door(lone)
    door.connect(token("bob", seconds=60), **fields)
    await door.connected()
    end = door.connection.principal.expires_ms
    assert end is not None
    monkeypatch.setattr("heliograph.actors.broker.protocol.auth_commands.wall_ms", lambda: end)
    return door


async def test_a_client_that_answers_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded() as lone:
        door = await expired(lone, monkeypatch, feature_flags=REFRESH)
        await until(lambda: door.count(T.AUTH_CHALLENGE) == 1)
        challenge = door.transport.answers[-1].auth_challenge.challenge
        assert (challenge.auth_method_name, challenge.auth_data) == ("token", b"PulsarAuthRefresh")
        door.answer_challenge(token("bob", seconds=3_600))
        await asyncio.sleep(3 * CHECK_SECONDS)
        assert not door.transport.is_gone
        assert door.count(T.AUTH_CHALLENGE) == 1
        assert door.connection.principal.role == "bob"
        door.connection.connection_lost(None)


async def test_a_token_that_a_proxy_shows_later_can_be_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(proxy_roles=("gateway",)) as lone:
        door = Door(lone)
        passed_on = {"original_auth_data": token("carol", jti="carol").decode(), "original_auth_method": "token"}
        door.connect(token("gateway", jti="first", seconds=60), feature_flags=REFRESH, **passed_on)
        await door.connected()
        end = door.connection.principal.expires_ms
        monkeypatch.setattr("heliograph.actors.broker.protocol.auth_commands.wall_ms", lambda: end)
        await until(lambda: door.count(T.AUTH_CHALLENGE) == 1)
        door.answer_challenge(token("gateway", jti="second", seconds=3_600))
        await until(lambda: revocation_id("second") in door.connection.principal.token_ids)
        assert revocation_id("carol") in door.connection.principal.token_ids
        lone.broker._close_revoked(frozenset([revocation_id("second")]))
        assert door.transport.is_gone
        door.connection.connection_lost(None)


@pytest.mark.parametrize("data", [token("alice", seconds=60), token("bob", seconds=-1), b"", b"nonsense"])
async def test_a_client_that_answers_wrongly_is_disconnected(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded() as lone:
        door = await expired(lone, monkeypatch, feature_flags=REFRESH)
        await until(lambda: door.count(T.AUTH_CHALLENGE) == 1)
        door.answer_challenge(data)
        await until(lambda: door.transport.is_gone)
        assert door.connection.principal.role == "bob"
        door.connection.connection_lost(None)


@pytest.mark.parametrize("fields", [{"feature_flags": REFRESH}, {}])
async def test_a_client_that_does_not_answer_is_disconnected(fields: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not know the question is not asked."""

    async with guarded() as lone:
        door = await expired(lone, monkeypatch, **fields)
        await until(lambda: door.transport.is_gone)
        assert door.count(T.AUTH_CHALLENGE) == len(fields)
        door.connection.connection_lost(None)


async def test_an_answer_without_a_challenge_ends_the_connection() -> None:
    async with guarded() as lone:
        door = Door(lone)
        door.connect(token("bob", seconds=60), feature_flags=REFRESH)
        await door.connected()
        door.answer_challenge(token("bob"))
        assert door.transport.is_gone
        door.connection.connection_lost(None)


async def test_a_proxy_that_shows_itself_again_speaks_for_the_same_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(proxy_roles=("gateway",)) as lone:
        door = Door(lone)
        door.connect(token("gateway", seconds=60), original_principal="bob", feature_flags=REFRESH)
        end = (await door.connected()).expires_ms
        assert end is not None
        monkeypatch.setattr("heliograph.actors.broker.protocol.auth_commands.wall_ms", lambda: end)
        await until(lambda: door.count(T.AUTH_CHALLENGE) == 1)
        door.answer_challenge(token("gateway", seconds=3_600))
        await until(lambda: door.connection.principal.expires_ms != end)
        assert door.connection.principal.roles == ("bob", "gateway")
        door.connection.connection_lost(None)
