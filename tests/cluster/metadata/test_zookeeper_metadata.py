"""The ZooKeeper backend on a real ZooKeeper: killed servers, several endpoints, credentials, limits, refusals."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import BadArgumentsError
from kazoo.protocol.serialization import Create
from kazoo.security import OPEN_ACL_UNSAFE

from heliograph.base.errors import NotPermittedError
from heliograph.metadata.backends.zookeeper.address import REQUEST_BYTES_MAX, SERVER_BYTES_DEFAULT
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import ConnectionLossError, InvalidPathError, ValueTooLargeError
from heliograph.metadata.store import VALUE_BYTES_MAX, MetadataStore, SessionState, Stat, WatchEvent
from heliograph.metadata.store import Create as CreateOperation
from heliograph.metadata.znode import check_path
from tests.contracts.metadata.zookeeper_server import ZooKeeperServer, missing, shared_server
from tests.waits import until

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
DEADLINE_SECONDS = 60
RAW_ROOT = "/raw-paths"


@asynccontextmanager
async def session(address: str, root: str = "", timeout_ms: int = 20_000) -> AsyncIterator[MetadataStore]:
    store = await connect_store(f"zk://{address}{root}", session_timeout_ms=timeout_ms)
    try:
        yield store
    finally:
        await store.close()


async def set_once_sent(store: MetadataStore, path: str, value: bytes) -> Stat:
    """Set a value; repeat the call each time it was not sent for lack of a connection."""
    while True:
        try:
            return await store.set(path, value)
        except ConnectionLossError as error:
            if "not sent" not in str(error):
                raise


def fresh_root() -> str:
    return f"/{uuid.uuid4().hex}"


def test_a_killed_server_takes_nothing_with_it(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, is_durable=True, request_bytes_max=SERVER_BYTES_DEFAULT)

    async def scenario() -> None:
        async with session(server.address, timeout_ms=60_000) as store:
            states: list[SessionState] = []
            store.add_session_listener(states.append)
            events: list[WatchEvent] = []
            await store.create("/kept", b"value")
            await store.create("/e", ephemeral=True)
            await store.get("/kept", events.append)
            before = store.session_id
            server.kill()
            await until(lambda: store.state is SessionState.SUSPENDED)
            late = asyncio.create_task(set_once_sent(store, "/kept", b"late"))
            await asyncio.to_thread(server.start)
            assert (await late).version == 1
            await store.sync()
            assert len(events) == 1
            stat = await store.exists("/e")
            assert stat is not None
            assert stat.ephemeral_owner == store.session_id == before
            assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
            with pytest.raises(ConnectionLossError, match=r"jute\.maxbuffer"):
                await store.create("/large", bytes(VALUE_BYTES_MAX))
            assert await store.exists("/large") is None

    server.start()
    try:
        asyncio.run(scenario())
    finally:
        server.kill()


async def test_any_endpoint_that_answers_will_do() -> None:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{refusing.getsockname()[1]}"
        async with session(f"{dead},{shared_server().address}", fresh_root()) as store:
            assert await store.children("/") == []


async def test_nodes_made_with_credentials_are_closed_to_others() -> None:
    address, root = shared_server().address, fresh_root()
    async with (
        session(f"me:s%3Acret@{address}", root) as mine,
        session(f"you:other@{address}") as yours,
        session(address) as anybodys,
    ):
        await mine.create("/a", b"private")
        for store in (yours, anybodys):
            with pytest.raises(NotPermittedError):
                await store.get(f"{root}/a")
            with pytest.raises(NotPermittedError):
                await store.create(f"{root}/b")
            with pytest.raises(NotPermittedError):
                await store.multi([CreateOperation(f"{root}/b")])
    with pytest.raises(NotPermittedError):
        async with session(f"me:wrong@{address}", root) as wrong:
            await wrong.get("/a")
    async with session(f"me:s%3Acret@{address}", root) as again:
        assert (await again.get("/a"))[0] == b"private"


async def test_a_token_with_a_wrong_password_ends_nothing() -> None:
    root = fresh_root()
    async with session(shared_server().address, root) as owner, session(shared_server().address, root) as other:
        await owner.create("/e", ephemeral=True)
        session_id, _, password = owner.session_token.partition(":")
        await other.end_session(f"{session_id}:{'00' * (len(password) // 2)}")
        assert await other.exists("/e") is not None
        await until(lambda: owner.state is SessionState.CONNECTED)


async def test_requests_above_the_limit_are_refused_before_they_are_sent() -> None:
    async with session(shared_server().address, fresh_root()) as store:
        count = REQUEST_BYTES_MAX // VALUE_BYTES_MAX
        with pytest.raises(ValueTooLargeError):
            await store.multi([CreateOperation(f"/n{number}", bytes(VALUE_BYTES_MAX)) for number in range(count)])
        assert await store.children("/") == []


@pytest.fixture
def raw_client() -> Iterator[KazooClient]:
    client = KazooClient(shared_server().address)
    client.start()
    client.ensure_path(f"{RAW_ROOT}/a")
    yield client
    client.stop()
    client.close()


def raw_create(client: KazooClient, path: str) -> None:
    """Create a node whose path only the server checks."""
    reply = client.handler.async_result()
    client._call(Create(path, b"", OPEN_ACL_UNSAFE, 0), reply)
    reply.get(timeout=DEADLINE_SECONDS)


def test_the_paths_that_zookeeper_refuses_are_refused_and_no_others(raw_client: KazooClient) -> None:
    for name in ("", ".", "..", "a/.", "a/..", "a\x00", "\x1f", "\x7f", "\x9f", "\ue000", "\uf8ff", "\ufff0", "\uffff"):
        path = f"{RAW_ROOT}/{name}"
        with pytest.raises(BadArgumentsError):
            raw_create(raw_client, path)
        with pytest.raises(InvalidPathError):
            check_path(path)
    for name in ("...", ".a", "a.", "a b", " ", "~", "%2F", "\xa0", "\ud7ff", "\uf900", "\uffef"):
        path = f"{RAW_ROOT}/{name}"
        check_path(path)
        raw_create(raw_client, path)
        raw_client.delete(path)
