"""Sessions of the embedded server, on a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from heliograph.base.guard.framed_connection import ConnectionState
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.protocol import MAGIC, PROTOCOL_VERSION, EmbeddedFrameDecoder, EmbeddedOp
from heliograph.metadata.backends.embedded.server.connection import EmbeddedConnection
from heliograph.metadata.backends.embedded.server.service import Service
from heliograph.metadata.backends.embedded.server.storage import Change
from heliograph.metadata.tree import ZnodeTree

TIMEOUT_MS = 1_000


class NoDisk:
    """A storage whose writes all succeed."""

    def write(self, changes: Sequence[Change]) -> None:
        pass


class Client(EmbeddedConnection):
    """A connection without a socket. It keeps what is sent to it."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.service = service
        self.decoder = EmbeddedFrameDecoder()
        self.answers: list[Any] = []
        self._move(ConnectionState.HANDSHAKE)

    def put(self, frame: bytes) -> None:
        self.answers += self.decoder.feed(frame)

    def flush(self) -> None:
        pass

    def abort(self) -> None:
        pass

    def ask(self, *frame: Any) -> None:
        self.service.handle(self, [1, *frame])

    async def hello(self, session_id: int = 0, password: str = "") -> tuple[int, str]:
        """Begin or resume a session."""
        before = len(self.answers)
        self.ask(EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, TIMEOUT_MS, session_id, password)
        while len(self.answers) == before:  # noqa: ASYNC110 - the commit runs on a thread
            await asyncio.sleep(0.001)
        _, _, (granted_id, granted_password, _) = self.answers[-1]
        return granted_id, granted_password


class World:
    """A service and its clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.service = Service(ZnodeTree(), NoDisk(), ServerLimits(), lambda: self.now_ms, self.fail)  # type: ignore[arg-type]

    def fail(self, error: Exception) -> None:
        raise AssertionError(error)

    def client(self) -> Client:
        client = Client(self.service)
        self.service.on_connected(client)
        return client

    def stands(self, session_id: int, at_ms: int) -> bool:
        self.now_ms = at_ms
        self.service.expire_sessions()
        return session_id in self.service.tree.sessions


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.service.committer.stop()


async def test_re_attaching_gives_a_session_its_full_time_again(world: World) -> None:
    session_id, password = await world.client().hello()
    world.now_ms = TIMEOUT_MS - 1
    assert await world.client().hello(session_id, password) == (session_id, password)
    assert world.stands(session_id, 2 * TIMEOUT_MS - 2)  # without the re-attachment it would be over by now
    assert not world.stands(session_id, 2 * TIMEOUT_MS - 1)


async def test_every_request_gives_a_session_its_full_time_again(world: World) -> None:
    client = world.client()
    session_id, _ = await client.hello()
    world.now_ms = TIMEOUT_MS - 1
    client.ask(EmbeddedOp.PING)
    assert world.stands(session_id, 2 * TIMEOUT_MS - 2)
    assert not world.stands(session_id, 2 * TIMEOUT_MS - 1)


async def test_a_silent_session_is_over_at_its_timeout_and_not_before(world: World) -> None:
    session_id, _ = await world.client().hello()
    assert world.stands(session_id, TIMEOUT_MS - 1)
    assert not world.stands(session_id, TIMEOUT_MS)


async def test_silence_that_the_server_asked_for_does_not_count(world: World) -> None:
    client = world.client()
    session_id, _ = await client.hello()
    client.is_reading = False
    assert world.stands(session_id, TIMEOUT_MS)
    client.is_reading = True
    assert world.stands(session_id, 2 * TIMEOUT_MS - 1)
    assert not world.stands(session_id, 2 * TIMEOUT_MS)
