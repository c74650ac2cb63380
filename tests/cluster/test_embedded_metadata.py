"""The embedded metadata backend under faults: killed servers, cut and stalled networks, failing disks, bad bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgpack
import pytest
from rocksdict import Options, Rdict

from heliograph.errors import HeliographError, ResourceError
from metadata.embedded import limits, link
from metadata.embedded.actor import MetadataActor
from metadata.embedded.client import EmbeddedStore
from metadata.embedded.limits import ServerLimits
from metadata.embedded.protocol import (
    FRAME_BYTES_MAX,
    MAGIC,
    PROTOCOL_VERSION,
    FrameDecoder,
    Op,
    decode_error,
    encode_frame,
)
from metadata.embedded.record import STATE_KEY, encode_node, encode_state, node_key
from metadata.embedded.server import EmbeddedServer
from metadata.embedded.storage import Change, Storage
from metadata.errors import ConnectionLossError, NodeExistsError, RecordError, SessionExpiredError
from metadata.store import EventType, SessionState, WatchEvent
from metadata.znode import Znode
from tests.cluster.stalling_proxy import StallingProxy

TIMEOUT_MS = 600
SERVER_PROGRAM = """
import asyncio, sys
from pathlib import Path
from metadata.embedded.limits import ServerLimits
from metadata.embedded.record import STATE_KEY, encode_node, encode_state, node_key
from metadata.embedded.server import EmbeddedServer

async def main():
    server = EmbeddedServer(Path(sys.argv[1]), "127.0.0.1", limits=ServerLimits(session_timeout_ms_min=100))
    await server.start()
    print(server.address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def new_server(directory: Path, port: int = 0, host: str = "127.0.0.1") -> EmbeddedServer:
    return EmbeddedServer(directory, host, port, limits=ServerLimits(session_timeout_ms_min=100), lock_wait_ms=0)


@asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[EmbeddedServer]:
    server = new_server(directory)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def session(address: str, timeout_ms: int = 10_000) -> AsyncIterator[EmbeddedStore]:
    host, port = address.split(":")
    store = await EmbeddedStore.connect(host, int(port), session_timeout_ms=timeout_ms)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def proxied(address: str) -> AsyncIterator[tuple[StallingProxy, str]]:
    host, port = address.split(":")
    proxy = StallingProxy(host, int(port))
    try:
        yield proxy, f"127.0.0.1:{await proxy.start()}"
    finally:
        await proxy.stop()


async def eventually(condition: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


class ServerProcess:
    """A server in a process of its own, which can be killed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = ""
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVER_PROGRAM, str(self.directory)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        address = self.process.stdout.readline().strip()
        assert address, "the server starts"
        assert self.address in ("", address), "a restart listens at the same address"
        self.address = address

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "m")
    yield server
    server.kill()


def test_a_torn_call_is_a_connection_loss_and_a_later_call_waits(server_process: ServerProcess) -> None:
    async def scenario() -> None:
        async with session(server_process.address) as store:
            states: list[SessionState] = []
            store.add_session_listener(states.append)
            await store.create("/a", b"kept")
            os.kill(server_process.process.pid, signal.SIGSTOP)
            torn = asyncio.create_task(store.set("/a", b"torn"))
            await asyncio.sleep(0.05)
            server_process.kill()
            with pytest.raises(ConnectionLossError):
                await torn
            assert store.state is SessionState.SUSPENDED
            late = [asyncio.create_task(store.set("/a", b"%d" % number)) for number in range(3)]
            await asyncio.to_thread(server_process.start)
            assert [(await task).version for task in late] == [1, 2, 3]
            assert (await store.get("/a"))[0] == b"2"
            assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]

    asyncio.run(scenario())


def test_sessions_get_their_time_again_after_a_restart_and_then_expire(tmp_path: Path) -> None:
    timeout_ms = 1_000

    async def scenario() -> None:
        async with (
            serving(tmp_path) as server,
            proxied(server.address) as (proxy, address),
            session(address, timeout_ms) as store,
        ):
            await store.create("/e", ephemeral=True)
            proxy.cut()
        await asyncio.sleep(timeout_ms / 1000)
        began = time.monotonic()
        async with serving(tmp_path) as server, session(server.address) as observer:
            assert await observer.exists("/e") is not None
            gone = asyncio.Event()
            await observer.exists("/e", lambda _: gone.set())
            await asyncio.wait_for(gone.wait(), 10)
            assert time.monotonic() - began > 0.99 * timeout_ms / 1000
            assert await observer.exists("/e") is None

    asyncio.run(scenario())


def test_a_server_that_was_held_up_does_not_blame_its_clients(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            answer = await raw_request(server, [1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 300, 0, ""])
            assert isinstance(answer, list)
            service = server._service
            assert service is not None
            await asyncio.sleep(limits.EXPIRY_TICK_MS / 1000)
            time.sleep(0.4)  # noqa: ASYNC251 - the server's loop stands still for longer than the timeout
            await asyncio.sleep(limits.EXPIRY_TICK_MS * 2 / 1000)
            assert answer[0] in service.tree.sessions
            await eventually(lambda: answer[0] not in service.tree.sessions)

    asyncio.run(scenario())


def test_calls_wait_for_the_connection_for_a_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "CALL_WAIT_MS_MAX", 200)  # I15

    async def scenario() -> None:
        async with (
            serving(tmp_path) as server,
            proxied(server.address) as (proxy, address),
            session(address) as store,
        ):
            proxy.cut()
            await eventually(lambda: store.state is SessionState.SUSPENDED)
            began = time.monotonic()
            with pytest.raises(ConnectionLossError):
                await store.create("/never-sent")
            assert 0.1 < time.monotonic() - began < 2
            proxy.flow()
            await eventually(lambda: store.state is SessionState.CONNECTED)
            assert await store.exists("/never-sent") is None

    asyncio.run(scenario())


def test_re_attaching_takes_the_session_from_the_old_connection(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address) as store:
            await store.create("/e", ephemeral=True)
            session_id, password = store.session_token.split(":")
            with pytest.raises(SessionExpiredError):
                await raw_request(server, [1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 1000, int(session_id), "wrong"])
            with pytest.raises(SessionExpiredError):
                await raw_request(server, [1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 1000, int(session_id), ""])
            assert store.state is SessionState.CONNECTED
            hello = [1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 1000, int(session_id), password]
            assert await raw_request(server, hello) == [int(session_id), password, 10_000]
            await eventually(lambda: store.state is SessionState.SUSPENDED)
            await eventually(lambda: store.state is SessionState.CONNECTED)
            assert await store.exists("/e") is not None

    asyncio.run(scenario())


async def raw_request(server: EmbeddedServer, *frames: list[object]) -> object:
    """The answer to the last of some hand-made frames."""
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    decoder = FrameDecoder()
    answers: list[list[Any]] = []
    writer.write(b"".join(encode_frame(frame) for frame in frames))
    try:
        while len(answers) < len(frames):
            data = await reader.read(1 << 16)
            if not data:
                raise EOFError
            answers += decoder.feed(data)
    finally:
        writer.close()
        await writer.wait_closed()
    _, code, result = answers[-1]
    if code:
        raise decode_error(code, result)
    return result


def test_timeouts_are_kept_within_bounds(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            for asked, granted in ((1, 100), (5_000, 5_000), (10**9, 120_000)):
                answer = await raw_request(server, [1, Op.HELLO, MAGIC, PROTOCOL_VERSION, asked, 0, ""])
                assert isinstance(answer, list)
                assert answer[2] == granted

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 1) + msgpack.packb(7),
        encode_frame([1, 99]),
        encode_frame([1, Op.HELLO, "another protocol", 1, 1000, 0, ""]),
        encode_frame([1, Op.HELLO]),
        encode_frame([1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 1000, 0, ""]) * 2,
        encode_frame([1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 1000, 0, ""]) + encode_frame([2, Op.APPLY, [[9, "/a"]]]),
        encode_frame([1, Op.HELLO, MAGIC, PROTOCOL_VERSION, 1000, 0, ""]) + encode_frame([2, Op.GET, 5, 0]),
    ],
)
def test_bytes_that_are_not_the_protocol_end_the_connection_only(tmp_path: Path, sent: bytes) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address) as store:
            host, port = server.address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):
                async with asyncio.timeout(5):
                    while await reader.read(1 << 16):
                        pass
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
            await store.create("/still-here")

    asyncio.run(scenario())


def test_another_version_and_a_missing_hello_are_told(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            with pytest.raises(HeliographError, match="speaks version 99"):
                await raw_request(server, [1, Op.HELLO, MAGIC, 99, 1000, 0, ""])
            with pytest.raises(SessionExpiredError):
                await raw_request(server, [1, Op.GET, "/", 0])

    asyncio.run(scenario())


class SlowDisk:
    """Stands before a server's storage: holds its writes back, or fails them."""

    def __init__(self, server: EmbeddedServer) -> None:
        storage = server._storage
        assert storage is not None
        self._write = storage.write
        self.open = threading.Event()
        self.open.set()
        self.broken = False
        storage.write = self.write  # type: ignore[method-assign]

    def write(self, changes: Sequence[Change]) -> None:
        self.open.wait(10)
        if self.broken:
            raise ResourceError("the disk is gone")
        self._write(changes)


def test_nothing_is_revealed_before_it_is_durable(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address) as writer, session(server.address) as reader:
            disk = SlowDisk(server)
            seen: list[object] = []
            for path in ("/a", "/other"):
                await writer.create(path, b"old")
            await reader.get("/a", seen.append)
            disk.open.clear()

            async def noted(call: Awaitable[object]) -> None:
                try:
                    seen.append(await call)
                except NodeExistsError as error:
                    seen.append(type(error))

            write = asyncio.create_task(writer.set("/a", b"new"))
            await asyncio.sleep(0.05)
            held = [asyncio.create_task(noted(call)) for call in (reader.get("/a"), reader.create("/a"))]
            assert (await reader.get("/other"))[0] == b"old"  # what did not change is not held up
            await asyncio.sleep(0.05)
            assert seen == []
            assert not write.done()
            disk.open.set()
            stat = await write
            await asyncio.gather(*held)
            assert seen == [WatchEvent(EventType.CHANGED, "/a"), (b"new", stat), NodeExistsError]

    asyncio.run(scenario())


def test_a_failed_disk_stops_the_server_and_nothing_was_promised(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address, TIMEOUT_MS) as store:
            await store.create("/kept")
            disk = SlowDisk(server)
            disk.broken = True
            with pytest.raises(ConnectionLossError):
                await store.create("/lost")
            await asyncio.wait_for(server.failed.wait(), 5)
            assert isinstance(server.failure, ResourceError)
        async with serving(tmp_path) as server, session(server.address) as store:
            assert await store.children("/") == ["kept"]

    asyncio.run(scenario())


def test_one_sync_carries_many_transactions(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address) as store:
            await asyncio.gather(*(store.create(f"/n{number}") for number in range(500)))
            statistics = server.statistics()
            assert statistics["transactions"] == 501
            assert statistics["commits"] < 50
            assert statistics["held_bytes"] == 0

    asyncio.run(scenario())


def test_reading_pauses_while_too_much_waits_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.embedded.service.HELD_BYTES_MAX", 100_000)  # I15

    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address) as store:
            disk = SlowDisk(server)
            disk.open.clear()
            writes = [asyncio.create_task(store.create(f"/n{number}", bytes(10_000))) for number in range(200)]
            service = server._service
            assert service is not None
            await eventually(lambda: any(connection.paused for connection in service.connections))
            await asyncio.sleep(0.05)
            assert service.committer.held_bytes < 1_000_000
            disk.open.set()
            await asyncio.gather(*writes)
            assert not any(connection.paused for connection in service.connections)

    asyncio.run(scenario())


def test_a_directory_has_one_server_and_a_port_one_owner(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path / "one") as server:
            port = int(server.address.split(":")[1])
            with pytest.raises(ResourceError, match="another metadata server uses"):
                await new_server(tmp_path / "one").start()
            with pytest.raises(ResourceError, match="taken") as raised:
                await new_server(tmp_path / "two", port).start()
            assert raised.value.field == "port"
            with pytest.raises(ResourceError):
                await new_server(tmp_path / "three", host="no.such.host.invalid").start()
        async with serving(tmp_path / "one") as server:
            assert server.address == f"127.0.0.1:{port}"
        with socket.create_server(("127.0.0.1", port)), pytest.raises(ResourceError, match="taken"):
            await new_server(tmp_path / "one").start()
        (tmp_path / "file").write_text("")
        with pytest.raises(ResourceError):
            await new_server(tmp_path / "file").start()
        (tmp_path / "one" / "port").write_text("nonsense")
        with pytest.raises(ResourceError):
            await new_server(tmp_path / "one").start()

    asyncio.run(scenario())


def test_a_damaged_store_is_not_served(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server, session(server.address) as store:
            await store.create("/a", b"value")
        database = Rdict(str(tmp_path / "store"), Options(raw_mode=True))
        value = database[b"n/a"]
        assert isinstance(value, bytes)
        database[b"n/a"] = value[:-1] + b"?"
        database.close()
        with pytest.raises(RecordError, match="checksum"):
            await new_server(tmp_path).start()

    asyncio.run(scenario())


def test_a_store_that_contradicts_itself_is_not_served(tmp_path: Path) -> None:
    def records(path: str, owner: int, zxid: int) -> list[Change]:
        key = node_key(path)
        return [(key, encode_node(key, Znode(b"", 1, 1, 1, 0, 0, owner, 0, 0))), (STATE_KEY, encode_state(zxid))]

    cases: list[tuple[list[Change], str]] = [
        ([(b"unknown", b"")], "unknown record"),
        (records("/a/b", 0, 1), "parent of /a/b is missing"),
        (records("/a", 5, 1), "session of /a is missing"),
        (records("/a", 0, 0), "newer than"),
    ]
    for number, (changes, message) in enumerate(cases):
        storage = Storage(tmp_path / str(number))
        storage.write(changes)
        with pytest.raises(RecordError, match=message):
            storage.load()
        storage.close()


def test_an_unreachable_server_is_a_clear_error_in_time() -> None:
    async def scenario() -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(ConnectionLossError, match=f"127.0.0.1:{port}"):
            await EmbeddedStore.connect("127.0.0.1", port, connect_timeout_ms=200)
        assert time.monotonic() - began < 2

    asyncio.run(scenario())


def test_the_actor_serves_without_being_asked_and_comes_back_in_place(tmp_path: Path) -> None:
    async def scenario() -> None:
        actor = MetadataActor(str(tmp_path), "127.0.0.1")
        assert repr(actor) == "Metadata(embedded)"
        address = await actor.start()
        assert await actor.address() == address == await actor.start()
        async with session(address) as store:
            await store.create("/a")
        assert (await actor.statistics())["nodes"] == 2
        await actor.stop()
        again = MetadataActor(str(tmp_path), "127.0.0.1")
        host, port = address.split(":")
        store = await EmbeddedStore.connect(host, int(port))
        assert await store.exists("/a") is not None
        await store.close()
        await again.stop()

    asyncio.run(scenario())


def test_times_of_a_session_leave_room_between_them() -> None:
    assert limits.LOST_SHARE + 1 / limits.PINGS_PER_TIMEOUT < 1  # I13
    assert limits.SILENCE_SHARE + 1 / limits.PINGS_PER_TIMEOUT < limits.LOST_SHARE
