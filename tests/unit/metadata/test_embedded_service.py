"""Sessions of the embedded server, on a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from heliograph.base.errors import ResourceError
from heliograph.base.guard.framed_connection import ConnectionState
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    PROTOCOL_VERSION,
    EmbeddedFrameDecoder,
    EmbeddedOp,
    Notice,
    encode_frame,
)
from heliograph.metadata.backends.embedded.server.connection import EmbeddedConnection
from heliograph.metadata.backends.embedded.server.index import count_key
from heliograph.metadata.backends.embedded.server.nodes import Change, NotInMemory, StoredNodes
from heliograph.metadata.backends.embedded.server.record import node_key
from heliograph.metadata.backends.embedded.server.service import Service
from heliograph.metadata.store import CHILDREN_PAGE_MAX
from heliograph.metadata.tree import ZnodeTree
from tests.waits import until

TIMEOUT_MS = 1_000


class NoDisk:
    """A storage in dictionaries. Keys in ``cold`` are not in memory until a thread has read them."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.index: dict[bytes, bytes] = {}
        self.cold: set[bytes] = set()
        self.gate = threading.Event()  # lets reads of cold keys end
        self.gate.set()
        self.forgets = False  # whether they are cold again
        self.memory_bytes = 0

    def write(self, records: Sequence[Change], index: Sequence[Change]) -> None:
        for table, changes in ((self.records, records), (self.index, index)):
            for key, value in changes:
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value

    def lookup(self, path: str, *, waits: bool) -> tuple[bytes | None, bytes | None]:
        key = node_key(path)
        if key in self.cold and not waits:
            raise NotInMemory
        return self.records.get(key), self.index.get(count_key(path))

    def warm(self, paths: Sequence[str]) -> None:
        self.gate.wait(60)
        if not self.forgets:
            self.cold.difference_update(map(node_key, paths))

    def key_pages(self, prefix: bytes, start: bytes) -> Iterator[list[bytes]]:
        return iter([[key] for key in sorted(self.index) if key.startswith(prefix) and key >= start])


class Client(EmbeddedConnection):
    """A connection without a socket. It keeps what is sent to it."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self.service = service
        self.decoder = EmbeddedFrameDecoder()
        self.answers: list[Any] = []
        self._move(ConnectionState.HANDSHAKE)

    def put(self, frame: bytes) -> None:
        if self._withheld is None:
            self.answers += self.decoder.feed(frame)
        else:
            super().put(frame)

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
        await until(lambda: len(self.answers) != before)
        _, _, (granted_id, granted_password, _) = self.answers[-1]
        return granted_id, granted_password


class World:
    """A service and its clock."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.disk = NoDisk()
        self.nodes = StoredNodes(self.disk, 1)
        tree = ZnodeTree(self.nodes)
        self.service = Service(tree, self.nodes, self.disk, ServerLimits(), lambda: self.now_ms, self.fail)  # type: ignore[arg-type]

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


async def settled(world: World) -> None:
    """Let the writes end, so that nodes are on the disk alone."""
    world.nodes._cache_bytes_max = 0
    await asyncio.sleep(0)
    while world.service.committer._write is not None:
        await asyncio.wait([world.service.committer._write])
        await asyncio.sleep(0)


async def answers(client: Client, count: int) -> list[Any]:
    """Wait until a client has got so many frames since the last call, and return them."""
    await until(lambda: len(client.answers) >= count)
    found, client.answers = client.answers, []
    return found


async def test_a_request_that_needs_the_disk_waits_and_so_do_those_behind_it_alone(world: World) -> None:
    client, other = world.client(), world.client()
    await client.hello()
    await other.hello()
    client.ask(EmbeddedOp.APPLY, [[1, path, b"value", False, False] for path in ("/a", "/b", "/warm")])
    await settled(world)
    client.answers.clear()
    other.answers.clear()
    world.disk.cold = {node_key("/a"), node_key("/b")}
    world.disk.gate.clear()
    requests = [
        [2, EmbeddedOp.GET, "/a", 0],
        [3, EmbeddedOp.APPLY, [[2, "/b", b"new", 0]]],
        [4, EmbeddedOp.GET, "/b", 0],
    ]
    client.data_received(b"".join(map(encode_frame, requests)))
    assert client.is_held_back
    other.ask(EmbeddedOp.GET, "/warm", 0)
    ((_, _, (value, _)),) = await answers(other, 1)
    assert value == b"value"
    assert client.answers == []
    world.disk.gate.set()
    first, second, third = await answers(client, 3)
    assert [first[0], second[0], third[0]] == [2, 3, 4]
    assert (first[2][0], third[2][0]) == (b"value", b"new")
    assert not client.is_held_back
    assert world.service.disk_waits == 1, "what waited behind the first was read with it"


async def test_a_request_that_was_read_for_does_not_wait_again(world: World) -> None:
    client = world.client()
    await client.hello()
    client.ask(EmbeddedOp.APPLY, [[1, "/a", b"value", False, False]])
    await settled(world)
    client.answers.clear()
    world.disk.cold = {node_key("/a")}
    world.disk.forgets = True
    client.data_received(encode_frame([2, EmbeddedOp.GET, "/a", 0]))
    ((number, code, _),) = await answers(client, 1)
    assert (number, code) == (2, 0)


async def test_a_long_list_is_of_one_moment_and_comes_before_what_happens_meanwhile(world: World) -> None:
    client, other = world.client(), world.client()
    await client.hello()
    await other.hello()
    names = [f"{number:05}" for number in range(2 * CHILDREN_PAGE_MAX + 1)]
    other.ask(
        EmbeddedOp.APPLY, [[1, "/p", b"", False, False], *([1, f"/p/{name}", b"", False, False] for name in names)]
    )
    await settled(world)
    client.answers.clear()
    client.ask(EmbeddedOp.CHILDREN, "/p", 7)
    client.data_received(encode_frame([9, EmbeddedOp.GET, "/p", 0]))
    other.ask(EmbeddedOp.APPLY, [[1, "/p/new", b"", False, False], [3, "/p/00001", 0]])
    listed, event, got = await answers(client, 3)
    assert listed[2][0] == names
    assert listed[2][1][6] == len(names)
    assert event == [0, Notice.EVENT, 7, 4, "/p"]
    assert (got[0], got[2][1][6]) == (9, len(names))
    assert not client.is_held_back


async def test_an_event_comes_before_a_long_list_that_shows_its_change(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = world.client(), world.client()
    await client.hello()
    await other.hello()
    names = [f"{number:05}" for number in range(CHILDREN_PAGE_MAX + 2)]
    other.ask(
        EmbeddedOp.APPLY, [[1, "/p", b"", False, False], *([1, f"/p/{name}", b"", False, False] for name in names)]
    )
    await settled(world)
    client.ask(EmbeddedOp.EXISTS, "/p/00000", 7)
    client.answers.clear()
    sleep = asyncio.sleep

    async def until_durable(_: float) -> None:
        while world.service.committer.durable_zxid < world.service.tree.zxid:
            await sleep(0.001)

    monkeypatch.setattr("heliograph.metadata.backends.embedded.server.service.asyncio.sleep", until_durable)
    other.ask(EmbeddedOp.APPLY, [[3, "/p/00000", 0]])
    client.ask(EmbeddedOp.CHILDREN, "/p", 0)
    while len(client.answers) < 2:
        await sleep(0.001)
    event, listed = client.answers
    assert event[:3] == [0, Notice.EVENT, 7]
    assert listed[2][0] == names[1:]


async def test_a_stop_reads_for_no_request_that_still_waits_for_a_reader(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.metadata.backends.embedded.server.service.READERS_MAX", 1)
    clients = [world.client(), world.client()]
    for client in clients:
        await client.hello()
    world.disk.cold = {node_key("/a"), node_key("/b")}
    world.disk.gate.clear()
    clients[0].ask(EmbeddedOp.GET, "/a", 0)
    await asyncio.sleep(0)
    clients[1].ask(EmbeddedOp.GET, "/b", 0)
    await asyncio.sleep(0)
    errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for client in clients:
        client._begin_closing()
    stopping = asyncio.create_task(world.service.stop())
    await until(lambda: world.service._readers._shutdown)
    world.disk.gate.set()
    await stopping
    await asyncio.sleep(0)
    assert (errors, world.service._reads) == ([], 0)


async def with_cold_ephemerals(world: World, client: Client) -> tuple[int, str]:
    """Begin a session with ephemerals that are on the disk alone."""
    granted = await client.hello()
    client.ask(EmbeddedOp.APPLY, [[1, f"/e{number}", b"value", True, False] for number in range(300)])
    await settled(world)
    client.answers.clear()
    world.disk.cold = {node_key(f"/e{number}") for number in range(300)}
    world.disk.gate.clear()
    return granted


@pytest.mark.parametrize("how", ["close", "end", "expiry"])
async def test_the_end_of_a_session_waits_for_its_ephemerals_and_nobody_else_does(world: World, how: str) -> None:
    client, other = world.client(), world.client()
    session_id, password = await with_cold_ephemerals(world, client)
    await other.hello()
    world.now_ms += TIMEOUT_MS
    other.ask(EmbeddedOp.PING)
    if how == "close":
        client.data_received(encode_frame([2, EmbeddedOp.CLOSE]))
    elif how == "end":
        other.data_received(encode_frame([2, EmbeddedOp.END_SESSION, session_id, password]))
    else:
        assert world.stands(session_id, world.now_ms)
        assert world.stands(session_id, world.now_ms), "it is read for once"
    assert session_id in world.service.tree.sessions
    third = world.client()
    await third.hello()
    third.ask(EmbeddedOp.EXISTS, "/", 0)
    await answers(third, 1)
    assert world.service.disk_waits == 1
    world.disk.gate.set()
    await until(lambda: session_id not in world.service.tree.sessions)
    await settled(world)
    assert len(world.nodes) == 1
    assert world.service.disk_waits == 1, "all were read at once"


async def test_a_session_that_is_heard_while_its_ephemerals_are_read_stands(world: World) -> None:
    client = world.client()
    session_id, _ = await with_cold_ephemerals(world, client)
    assert world.stands(session_id, world.now_ms + TIMEOUT_MS)
    client.ask(EmbeddedOp.PING)
    world.disk.gate.set()
    await until(lambda: not world.service._expiring)
    assert session_id in world.service.tree.sessions
    assert world.stands(session_id, world.now_ms + TIMEOUT_MS - 1)


async def test_a_disk_that_fails_while_the_end_of_a_session_is_read_for_stops_the_store(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(prefix: bytes, start: bytes) -> Iterator[list[bytes]]:
        raise ResourceError("the disk failed")

    client, failures = world.client(), list[Exception]()
    await with_cold_ephemerals(world, client)
    world.disk.gate.set()
    monkeypatch.setattr(world.disk, "key_pages", fail)
    monkeypatch.setattr(world.service, "_on_failure", failures.append)
    client.data_received(encode_frame([2, EmbeddedOp.EXISTS, "/e0", 0]) + encode_frame([3, EmbeddedOp.CLOSE]))
    async with asyncio.timeout(30):
        await answers(client, 1)
        await until(lambda: not (world.service._reads or not failures))


@pytest.mark.parametrize("session_id", [-1, (1 << 64) - 1], ids=["negative", "large"])
async def test_a_number_that_is_no_session_delays_nobody_who_needs_the_disk(world: World, session_id: int) -> None:
    client = world.client()
    await with_cold_ephemerals(world, client)
    world.disk.gate.set()
    client.data_received(
        encode_frame([2, EmbeddedOp.EXISTS, "/e0", 0]) + encode_frame([3, EmbeddedOp.END_SESSION, session_id, "wrong"])
    )
    async with asyncio.timeout(30):
        assert [frame[0] for frame in await answers(client, 2)] == [2, 3]
