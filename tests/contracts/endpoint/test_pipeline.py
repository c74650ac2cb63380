"""Requests that a client sends without waiting: writes are committed together, and the order is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.endpoint.limits import WRITES_IN_FLIGHT_MAX
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode
from heliograph.metadata.endpoint.wire.jute import JuteReader
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.store import Delete, MetadataStore, Operation
from heliograph.metadata.store import Stat as StoreStat
from tests.contracts.endpoint.backends import EndpointOverEmbedded, EndpointOverEtcd, EndpointOverMemory
from tests.contracts.endpoint.wire.client import (
    DEADLINE_SECONDS,
    Event,
    Reply,
    Stat,
    WireClient,
    auth,
    create,
    multi,
    path_and_version,
    path_and_watch,
    set_acl,
    set_data,
)
from tests.waits import until

BURST = 1_000
ENDPOINTS = {"memory": EndpointOverMemory, "embedded": EndpointOverEmbedded, "etcd": EndpointOverEtcd}
MINE = [(31, "auth", "")]


@asynccontextmanager
async def served(backend: EndpointOverMemory) -> AsyncIterator[None]:
    await backend.start()
    try:
        async with asyncio.timeout(3 * DEADLINE_SECONDS):
            yield
    finally:
        await backend.stop()


async def replies(client: WireClient, sent: Sequence[int]) -> list[Reply]:
    """Return the answers to ``sent``, which come in that order; events between them are in ``client.heard``."""
    found: list[Reply] = []
    while len(found) < len(sent):
        heard = await client.hear()
        if isinstance(heard, Reply):
            found.append(heard)
    assert [reply.xid for reply in found] == list(sent)
    return found


async def test_a_burst_of_writes_is_committed_in_groups(tmp_path: Path) -> None:
    backend = EndpointOverEmbedded(tmp_path)
    async with served(backend):
        client = await WireClient.begin(backend.address)
        before = backend.server.statistics()
        sent = [client.send(OpCode.CREATE, create("/n-", b"value", 2)) for _ in range(BURST)]
        answers = await replies(client, sent)
        after = backend.server.statistics()
        assert [JuteReader(answer.body).string() for answer in answers] == [f"/n-{n:010d}" for n in range(1, BURST + 1)]
        assert after["transactions"] - before["transactions"] == BURST
        assert after["commits"] - before["commits"] <= BURST // 10
        await client.close()


@pytest.mark.parametrize("kind", sorted(ENDPOINTS))
async def test_every_request_of_a_burst_sees_what_came_before_it_and_nothing_after(tmp_path: Path, kind: str) -> None:
    backend = ENDPOINTS[kind](tmp_path)
    r = OpCode
    async with served(backend):
        client = await WireClient.begin(backend.address)
        sent = [
            client.send(r.CREATE, create("/a", b"0")),
            client.send(r.CREATE, create("/a")),
            client.send(r.SET_DATA, set_data("/a", b"1", 0)),
            client.send(r.GET_DATA, path_and_watch("/a", True)),
            client.send(r.SET_DATA, set_data("/a", b"22", 1)),
            client.send(r.SET_DATA, set_data("/a", b"22", 1)),
            client.send(r.GET_CHILDREN, path_and_watch("/a")),
            client.send(r.CREATE2, create("/a/b")),
            client.send(r.MULTI, multi((r.CREATE, create("/a/c")), (r.DELETE, path_and_version("/a/b")))),
            client.send(r.DELETE, path_and_version("/a")),
            client.send(r.PING, xid=-2),
            client.send(r.GET_CHILDREN, path_and_watch("/a")),
            client.send(r.DELETE, path_and_version("/a/c")),
            client.send(r.DELETE, path_and_version("/a")),
            client.send(r.EXISTS, path_and_watch("/a")),
        ]
        found = await replies(client, sent)
        ok, none = ErrorCode.OK, ErrorCode.NO_NODE
        assert [reply.error for reply in found] == [
            ok, ErrorCode.NODE_EXISTS, ok, ok, ok, ErrorCode.BAD_VERSION, ok, ok, ok, ErrorCode.NOT_EMPTY, ok, ok, ok,
            ok, none,
        ]  # fmt: skip
        assert JuteReader(found[3].body).buffer() == b"1"
        assert [Stat.read(JuteReader(found[place].body)).version for place in (2, 4)] == [1, 2]
        assert [JuteReader(found[place].body).strings() for place in (6, 11)] == [[], ["c"]]
        shown = [isinstance(heard, Event) for heard in client.heard]
        assert shown.index(True) == 4  # after the read that set the watch, before the answer to the change
        assert client.events == [Event(3, 3, "/a")]
        assert [reply.zxid for reply in found] == sorted(reply.zxid for reply in found)
        await client.close()


@pytest.mark.parametrize("kind", sorted(ENDPOINTS))
async def test_writes_that_need_acls_keep_their_place_among_those_that_do_not(tmp_path: Path, kind: str) -> None:
    backend = ENDPOINTS[kind](tmp_path)
    async with served(backend):
        client, stranger = await WireClient.begin(backend.address), await WireClient.begin(backend.address)
        await client.call(OpCode.AUTH, auth("digest", b"u:p"), -4)
        sent = []
        for number in range(20):
            path = f"/n{number}"
            sent += [
                client.send(OpCode.CREATE, create(path, b"", 0, MINE if number % 2 else [(31, "world", "anyone")])),
                client.send(OpCode.SET_ACL, set_acl(path, MINE)),
                client.send(OpCode.SET_DATA, set_data(path, b"1")),
                client.send(OpCode.CREATE, create("/s-", b"", 2)),
                client.send(OpCode.CREATE, create(f"{path}/below")),
                client.send(OpCode.DELETE, path_and_version(f"{path}/below")),
                client.send(OpCode.DELETE, path_and_version(path, 1)),
            ]
        found = await replies(client, sent)
        assert {reply.error for reply in found} == {ErrorCode.OK}
        numbers = [JuteReader(reply.body).string() for reply in found[3::7]]
        assert numbers == sorted(numbers)
        await client.create("/mine", b"", 0, MINE)
        refused = [stranger.send(OpCode.SET_DATA, set_data("/mine", b"x")) for _ in range(5)]
        assert {reply.error for reply in await replies(stranger, refused)} == {ErrorCode.NO_AUTH}
        await client.close()
        await stranger.close()


class _Held(MemoryStore):
    """A store whose sets take effect at once and are answered when a test says so; deletes get no answer."""

    gates: list[asyncio.Future[None]]

    async def set(self, path: str, value: bytes | None, version: int = -1) -> StoreStat:
        stat = await super().set(path, value, version)
        gate: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.gates.append(gate)
        await gate
        return stat

    async def multi(self, operations: Sequence[Operation]) -> list[str | StoreStat | None]:
        if isinstance(operations[0], Delete):
            raise ConnectionLossError("nobody knows what became of it")
        return await super().multi(operations)


class Held(EndpointOverMemory):
    """Wrap a store. ``gates`` has one gate for each set in progress, in the order of the calls."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.gates: list[asyncio.Future[None]] = []

    async def _open_behind(self, timeout_ms: int, token: str | None) -> MetadataStore:
        store = self.memory.open_session(timeout_ms)
        store.__class__ = _Held
        assert isinstance(store, _Held)
        store.gates = self.gates
        return store


async def test_answers_wait_for_their_turn_and_so_does_a_read_behind_a_write() -> None:
    backend = Held(Path())
    async with served(backend):
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        sent = [client.send(OpCode.SET_DATA, set_data("/a", b"x")) for _ in range(3)]
        sent.append(client.send(OpCode.EXISTS, path_and_watch("/a")))
        sent.append(client.send(OpCode.SET_DATA, set_data("/a", b"y")))
        await until(lambda: len(backend.gates) == 3)
        for gate in reversed(backend.gates[1:]):
            gate.set_result(None)
        for _ in range(20):
            await asyncio.sleep(0)
        counts = backend.endpoint.statistics
        assert (counts.answered, counts.requests["exists"]) == (1, 0)
        backend.gates[0].set_result(None)
        await until(lambda: len(backend.gates) == 4)
        backend.gates[3].set_result(None)
        found = await replies(client, sent)
        assert [Stat.read(JuteReader(reply.body)).version for reply in found] == [1, 2, 3, 3, 4]
        await client.close()


async def test_writes_under_way_are_bounded_and_a_connection_that_takes_over_waits_for_them() -> None:
    backend = Held(Path())
    async with served(backend):
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        for _ in range(2 * WRITES_IN_FLIGHT_MAX):
            client.send(OpCode.SET_DATA, set_data("/a", b"x"))
        await until(lambda: backend.endpoint.facts().outstanding == 2 * WRITES_IN_FLIGHT_MAX)
        await until(lambda: len(backend.gates) >= WRITES_IN_FLIGHT_MAX)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(backend.gates) == WRITES_IN_FLIGHT_MAX  # I15
        again = asyncio.create_task(WireClient.begin(backend.address, client.session_id, client.password))
        assert await client.rest() == b""
        assert not again.done()
        for gate in backend.gates:
            gate.set_result(None)
        stat = await (await again).call(OpCode.EXISTS, path_and_watch("/a"))
        assert (
            Stat.read(JuteReader(stat.body)).version == WRITES_IN_FLIGHT_MAX
        )  # a request that was not begun is not done
        await client.close()
        await again.result().close()


async def test_a_write_whose_outcome_is_unknown_ends_the_connection_and_nothing_after_it_is_answered() -> None:
    backend = Held(Path())
    async with served(backend):
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        first = client.send(OpCode.SET_DATA, set_data("/a", b"x"))
        client.send(OpCode.MULTI, multi((OpCode.DELETE, path_and_version("/a"))))
        client.send(OpCode.SET_DATA, set_data("/a", b"y"))
        await until(lambda: len(backend.gates) == 2)
        backend.gates[1].set_result(None)
        backend.gates[0].set_result(None)
        await replies(client, [first])
        assert await client.rest() == b""
        back = await WireClient.begin(backend.address, client.session_id, client.password)
        assert back.session_id == client.session_id
        await back.close()
        await client.close()
