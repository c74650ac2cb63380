"""The endpoint's connections and sessions, with a bare client: order, bounds, malformed bytes, reconnects, expiry."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import FRAME_BYTES_MAX, REQUESTS_QUEUED_MAX, EndpointLimits
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode
from heliograph.metadata.endpoint.wire.jute import JuteReader, buffer, int32, int64, string
from heliograph.metadata.store import MetadataStore, SessionState, Stat, Watcher
from tests.contracts.endpoint.backends import EndpointOverMemory
from tests.contracts.endpoint.wire.client import (
    DEADLINE_SECONDS,
    OPEN,
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
    watch_query,
)
from tests.waits import until

CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4


@asynccontextmanager
async def served(*, limits: EndpointLimits | None = None) -> AsyncIterator[EndpointOverMemory]:
    """Yield an endpoint over an empty store in this process."""
    backend = EndpointOverMemory(Path())
    if limits is not None:
        backend.endpoint = ZooKeeperEndpoint(backend._open_behind, limits=limits)
    await backend.start()
    try:
        async with asyncio.timeout(2 * DEADLINE_SECONDS):
            yield backend
    finally:
        await backend.stop()


async def test_replies_come_in_the_order_of_the_requests() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        sent = [client.send(OpCode.CREATE, create("/n-", b"", 2)) for _ in range(REQUESTS_QUEUED_MAX * 3)]
        heard = [await client.hear() for _ in sent]
        assert [reply.xid for reply in heard if isinstance(reply, Reply)] == sent
        paths = [JuteReader(reply.body).string() for reply in heard if isinstance(reply, Reply)]
        assert paths == [f"/n-{number:010d}" for number in range(1, len(sent) + 1)]
        await client.close()


async def test_an_event_comes_before_the_reply_that_shows_its_cause_and_after_the_reply_that_set_its_watch() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        get, change = path_and_watch("/a", True), set_data("/a", b"new")
        for op, body in ((OpCode.GET_DATA, get), (OpCode.SET_DATA, change)) * 50:
            client.send(op, body)
        heard = [await client.hear() for _ in range(150)]
        kinds = ["event" if isinstance(item, Event) else "reply" for item in heard]
        assert kinds == ["reply", "event", "reply"] * 50
        await client.close()


class _EventFirst(MemoryStore):
    """A store that sends the event of a change made during a read before the read returns: the worst order."""

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        answer = await super().get(path, watcher)
        await super().set(path, b"changed during the read")
        for _ in range(5):
            await asyncio.sleep(0)
        return answer


def test_a_change_during_a_read_is_told_after_its_reply() -> None:
    async def whole() -> None:
        memory = MemoryServer()

        async def open_store(timeout_ms: int, token: str | None) -> MetadataStore:
            store = memory.open_session(timeout_ms)
            store.__class__ = _EventFirst
            return store

        endpoint = ZooKeeperEndpoint(open_store)
        await endpoint.start()
        client = await WireClient.begin(await endpoint.listen("127.0.0.1", 0))
        await client.create("/a", b"old")
        for _ in range(3):
            reply = await client.call(OpCode.GET_DATA, path_and_watch("/a", True))
            assert isinstance(await client.hear(), Event)
            assert JuteReader(reply.body).buffer() != b""
        await client.close()
        await endpoint.stop()

    asyncio.run(whole())


async def test_a_client_comes_back_within_its_timeout_and_keeps_its_ephemerals() -> None:
    async with served() as backend:
        first = await WireClient.begin(backend.address, timeout_ms=30_000)
        await first.create("/e", b"", 1)
        await first.close()
        second = await WireClient.begin(backend.address, first.session_id, first.password)
        assert (second.session_id, second.password, second.timeout_ms) == (first.session_id, first.password, 30_000)
        stat = await second.call(OpCode.EXISTS, path_and_watch("/e"))
        assert stat.error == ErrorCode.OK
        # A third connection takes the session over while the second one is still open.
        third = await WireClient.begin(backend.address, first.session_id, first.password)
        assert await second.rest() == b""
        assert (await third.call(OpCode.PING, xid=-2)).error == ErrorCode.OK
        for client in (second, third):
            await client.close()


async def test_watches_end_with_their_connection_and_are_set_again_without_a_gap() -> None:
    async with served() as backend:
        other = await WireClient.begin(backend.address)
        for path in ("/same", "/changed", "/deleted", "/parent"):
            await other.create(path)
        first = await WireClient.begin(backend.address)
        for path in ("/same", "/changed", "/deleted"):
            await first.call(OpCode.GET_DATA, path_and_watch(path, True))
        await first.call(OpCode.EXISTS, path_and_watch("/created", True))
        seen = await first.call(OpCode.GET_CHILDREN, path_and_watch("/parent", True))
        await first.close()

        await other.call(OpCode.SET_DATA, set_data("/changed", b"v"))
        await other.call(OpCode.DELETE, path_and_version("/deleted"))
        await other.create("/created")
        await other.create("/parent/child")

        second = await WireClient.begin(backend.address, first.session_id, first.password)
        data, exist, child = ["/same", "/changed", "/deleted"], ["/created"], ["/parent"]
        await second.call(OpCode.SET_WATCHES2, set_watches(seen.zxid, data, exist, child, [], []), -8)
        assert [(event.type, event.path) for event in second.events] == [
            (CHANGED, "/changed"), (DELETED, "/deleted"), (CREATED, "/created"), (CHILD, "/parent"),
        ]  # fmt: skip
        await other.call(OpCode.SET_DATA, set_data("/same", b"v"))
        assert await second.hear() == Event(CHANGED, 3, "/same")
        for client in (other, second):
            await client.close()


async def test_standing_watches_follow_a_client_that_sets_them_again() -> None:
    async with served() as backend:
        first, other = await WireClient.begin(backend.address), await WireClient.begin(backend.address)
        await first.call(OpCode.ADD_WATCH, add_watch("/", 1))
        await first.close()
        second = await WireClient.begin(backend.address, first.session_id, first.password)
        await other.create("/unseen")
        await second.call(OpCode.SET_WATCHES2, set_watches(0, [], [], [], [], ["/"]), -8)
        await other.create("/seen")
        await other.call(OpCode.DELETE, path_and_version("/seen"))
        assert [await second.hear(), await second.hear()] == [Event(CREATED, 3, "/seen"), Event(DELETED, 3, "/seen")]
        for client in (second, other):
            await client.close()


async def test_a_silent_session_expires_and_its_ephemerals_with_it() -> None:
    async with served() as backend:
        quiet = await WireClient.begin(backend.address, timeout_ms=800)
        assert quiet.timeout_ms == 800
        other = await WireClient.begin(backend.address)
        await quiet.create("/e", b"", 1)
        await other.call(OpCode.EXISTS, path_and_watch("/e", True))
        assert await other.hear() == Event(DELETED, 3, "/e")
        assert await quiet.rest() == b""
        again = await WireClient.begin(backend.address, quiet.session_id, quiet.password)
        assert (again.timeout_ms, again.session_id, await again.rest()) == (0, 0, b"")
        assert backend.endpoint.facts().expired_sessions == 1
        for client in (quiet, other, again):
            await client.close()


async def test_a_session_that_the_store_ends_ends_at_once_and_one_without_the_store_has_no_connection() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        backend.memory.expire_session(client.session_id)
        assert await client.rest() == b""
        again = await WireClient.begin(backend.address, client.session_id, client.password)
        assert again.timeout_ms == 0

        suspended = await WireClient.begin(backend.address)
        session = next(iter(backend.endpoint.sessions))
        store = session.store
        assert isinstance(store, MemoryStore)
        store._clock.state = SessionState.SUSPENDED
        for listener in store._clock._listeners:
            listener(SessionState.SUSPENDED)
        assert await suspended.rest() == b""
        waiting = await WireClient.open(backend.address)
        hello = int32(0) + int64(0) + int32(9_000) + int64(suspended.session_id)
        hello += buffer(suspended.password) + b"\0"
        waiting.write(int32(len(hello)) + hello)
        assert await waiting.rest() == b""  # neither granted nor refused: the client may try again
        store._clock.state = SessionState.CONNECTED
        back = await WireClient.begin(backend.address, suspended.session_id, suspended.password)
        assert back.session_id == suspended.session_id
        for each in (client, again, suspended, waiting, back):
            await each.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        int32(FRAME_BYTES_MAX + 1),
        b"\x7f\xff\xff\xff" + b"x" * 100,
        int32(0),
        int32(3) + b"abc",
        b"GET / HTTP/1.1\r\n\r\n",
        int32(44) + int32(0) + int64(0) + int32(1_000) + int64(0) + int32(1 << 30) + bytes(16),
    ],
)
async def test_bytes_that_are_no_hello_end_the_connection(data: bytes) -> None:
    async with served() as backend:
        client = await WireClient.open(backend.address)
        client.write(data)
        assert await client.rest() == b""
        await client.close()
        assert len(backend.endpoint.sessions) == 0


async def test_malformed_requests_are_answered_and_malformed_frames_end_the_connection() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        for op, body in ((OpCode.GET_DATA, b"\0\0"), (OpCode.CREATE, string("/x") + int32(1 << 30)),
                         (OpCode.MULTI, b"\0"), (OpCode.SET_WATCHES, int64(0) + int32(-7)),
                         (OpCode.EXISTS, int32(2) + b"\xc3\x28\0")):  # fmt: skip
            assert (await client.call(op, body)).error == ErrorCode.MARSHALLING_ERROR
        for number in (OpCode.DELETE_CONTAINER, OpCode.CHECK, 77, -77):
            assert (await client.call(number, string("/a"))).error == ErrorCode.UNIMPLEMENTED
        assert (await client.call(OpCode.RECONFIG)).error == ErrorCode.RECONFIG_DISABLED
        assert (await client.call(OpCode.SASL, buffer(b""))).body == buffer(None)  # no login was configured
        assert (await client.call(OpCode.GET_DATA, path_and_watch("/a"))).error == ErrorCode.OK
        client.write(int32(FRAME_BYTES_MAX + 1))
        assert await client.rest() == b""
        await client.close()


@pytest.mark.parametrize("seed", range(3))
async def test_mangled_requests_never_take_the_endpoint_down(seed: int) -> None:
    """Whole requests with bytes changed, cut off or added: each is answered or ends its connection."""
    chance = random.Random(seed)
    whole = [
        (OpCode.CREATE, create("/a/b", b"value", 1)), (OpCode.GET_DATA, path_and_watch("/a", True)),
        (OpCode.SET_DATA, set_data("/a", b"v", 0)), (OpCode.DELETE, path_and_version("/a")),
        (OpCode.MULTI, multi((OpCode.CREATE, create("/m")), (OpCode.CHECK, path_and_version("/a")))),
        (OpCode.SET_WATCHES2, set_watches(0, ["/a"], ["/b"], ["/"], ["/p"], ["/r"])),
        (OpCode.ADD_WATCH, add_watch("/a", 1)), (OpCode.REMOVE_WATCHES, watch_query("/a", 3)),
        (OpCode.SET_ACL, set_acl("/a", OPEN)), (OpCode.AUTH, auth("digest", b"u:p")),
        (OpCode.GET_ALL_CHILDREN_NUMBER, string("/")), (OpCode.GET_EPHEMERALS, string("/")),
    ]  # fmt: skip

    def mangled(body: bytes) -> bytes:
        found = bytearray(body)
        for _ in range(chance.randrange(4)):
            found[chance.randrange(len(found))] = chance.randrange(256)
        return bytes(found[: chance.choice((len(found), chance.randrange(len(found))))])

    async with served() as backend:
        for _ in range(30):
            client = await WireClient.begin(backend.address)
            for _ in range(20):
                op, body = chance.choice(whole)
                client.send(op if chance.random() < 0.9 else chance.randrange(-20, 120), mangled(body))
            last = client.send(OpCode.EXISTS, path_and_watch("/"))
            try:
                while (heard := await client.hear()) and not (isinstance(heard, Reply) and heard.xid == last):
                    pass
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            await client.close()
        good = await WireClient.begin(backend.address)
        assert (await good.call(OpCode.EXISTS, path_and_watch("/"))).error == ErrorCode.OK
        await good.close()
        assert backend.endpoint.statistics.errors["system_error"] == 0


async def test_a_client_that_does_not_read_is_held_up_and_then_cut_off() -> None:
    async with served() as backend:
        slow, other = await WireClient.open(backend.address, limit=1), await WireClient.begin(backend.address)
        big = bytes(1 << 20)
        await other.create("/big", big)
        hello = int32(0) + int64(0) + int32(60_000) + int64(0) + int32(0) + b"\0"
        slow.write(int32(len(hello)) + hello)
        for _ in range(100):
            slow.send(OpCode.GET_DATA, path_and_watch("/big"))
        slow.send(OpCode.ADD_WATCH, add_watch("/", 1))
        await slow.drain()
        # 100 MiB were requested; the endpoint stops reading values long before.
        await until(lambda: any(each.waiting > 50 for each in backend.endpoint.facts().connections))
        assert backend.endpoint.statistics.requests["get_data"] < 50
        await slow.close()
        for client in (other,):
            await client.close()


async def test_connections_are_bounded_and_so_is_the_time_without_a_session() -> None:
    async with served(limits=EndpointLimits(connections_max=3, handshake_ms_max=1_500)) as backend:
        clients = [await WireClient.begin(backend.address) for _ in range(2)]
        silent = await WireClient.open(backend.address)
        await until(lambda: len(backend.endpoint.facts().connections) == 3)
        refused = await WireClient.open(backend.address)
        assert await refused.rest() == b""
        assert await silent.rest() == b""  # it sent no connect request
        welcome = await WireClient.begin(backend.address)
        assert welcome.timeout_ms > 0
        assert backend.endpoint.statistics.refused_connections == 1
        for client in (*clients, silent, refused, welcome):
            await client.close()


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (b"ruok", "imok"),
        (b"isro", "rw"),
        (b"srvr", "Zookeeper version: 3.9.3-heliograph"),
        (b"stat", "Clients:"),
        (b"cons", ",sid=0x"),
        (b"conf", "clientPortAddress=127.0.0.1"),
        (b"envi", "zookeeper.version=3.9.3"),
        (b"mntr", "zk_heliograph_requests_create\t1\n"),
        (b"dump", "dump is not executed because it is not in the whitelist.\n"),
    ],
)
async def test_four_letter_words(word: bytes, says: str) -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        asking = await WireClient.open(backend.address)
        asking.write(word)
        assert says in (await asking.rest()).decode()
        await asking.close()
        await client.close()


async def test_mntr_counts_connections_sessions_watches_and_requests() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        await client.create("/a")
        await client.call(OpCode.GET_DATA, path_and_watch("/a", True))
        await client.call(OpCode.GET_DATA, path_and_watch("/none"))
        asking = await WireClient.open(backend.address)
        asking.write(b"mntr")
        found = dict(line.split("\t") for line in (await asking.rest()).decode().splitlines())
        assert found["zk_server_state"] == "standalone"
        assert (found["zk_num_alive_connections"], found["zk_global_sessions"], found["zk_watch_count"]) == (
            "2", "1", "1",
        )  # fmt: skip
        assert (found["zk_heliograph_requests_get_data"], found["zk_heliograph_errors_no_node"]) == ("2", "1")
        for each in (client, asking):
            await each.close()


async def test_the_end_of_the_endpoint_leaves_its_sessions_or_ends_them_as_asked() -> None:
    async with served() as backend:
        client = await WireClient.begin(backend.address)
        await client.create("/e", b"", 1)
        await backend.endpoint.stop()
        assert await client.rest() == b""
        assert await backend.memory.open_session().children("/") == ["e", "zookeeper"]
        other = ZooKeeperEndpoint(backend._open_behind)
        await other.start()
        again = await WireClient.begin(await other.listen("127.0.0.1", 0), client.session_id, client.password)
        assert again.session_id == client.session_id
        await other.stop(ends_sessions=True)
        assert await backend.memory.open_session().children("/") == ["zookeeper"]
        await again.close()
        await client.close()
