"""The embedded metadata backend under faults: killed servers, cut and stalled networks, bad bytes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pytest

from heliograph.base.errors import HeliographError
from heliograph.base.peer import ListenAddress
from heliograph.metadata.backends.embedded import limits
from heliograph.metadata.backends.embedded.actor import MetadataActor
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.protocol import (
    FRAME_BYTES_MAX,
    MAGIC,
    PROTOCOL_VERSION,
    EmbeddedFrameDecoder,
    EmbeddedOp,
    decode_error,
    encode_frame,
)
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.session import limits as session_limits
from heliograph.metadata.store import SessionState
from tests.cluster.metadata.embedded_servers import SESSION_TIMEOUT_MS, ServerProcess, proxied, serving, session
from tests.waits import until


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path / "m")
    yield server
    server.kill()


async def test_a_torn_call_is_a_connection_loss_and_a_later_call_waits(server_process: ServerProcess) -> None:
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


async def test_sessions_get_their_time_again_after_a_restart_and_then_expire(tmp_path: Path) -> None:
    timeout_ms = 1_000
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
        gone = asyncio.Event()
        if await observer.exists("/e", lambda _: gone.set()) is not None:
            await asyncio.wait_for(gone.wait(), 60)
        assert time.monotonic() - began > 0.99 * timeout_ms / 1000
        assert await observer.exists("/e") is None


async def test_a_server_that_was_held_up_does_not_blame_its_clients(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answer = await raw_request(server, [1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1_000, 0, ""])
        assert isinstance(answer, list)
        service = server._service
        assert service is not None
        await asyncio.sleep(limits.EXPIRY_TICK_MS / 1000)
        time.sleep(1.2)  # noqa: ASYNC251 - the server's loop stands still for longer than the timeout
        await asyncio.sleep(limits.EXPIRY_TICK_MS * 2 / 1000)
        assert answer[0] in service.tree.sessions
        await until(lambda: answer[0] not in service.tree.sessions)


async def test_calls_wait_for_the_connection_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.metadata.session.session.CALL_WAIT_SECONDS_MAX", 0.2)  # I15
    async with (
        serving(tmp_path) as server,
        proxied(server.address) as (proxy, address),
        session(address) as store,
    ):
        proxy.cut()
        await until(lambda: store.state is SessionState.SUSPENDED)
        began = time.monotonic()
        with pytest.raises(ConnectionLossError):
            await store.create("/never-sent")
        assert time.monotonic() - began > 0.1
        proxy.flow()
        await until(lambda: store.state is SessionState.CONNECTED)
        assert await store.exists("/never-sent") is None


async def test_re_attaching_takes_the_session_from_the_old_connection(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, session(server.address) as store:
        await store.create("/e", ephemeral=True)
        session_id, password = store.session_token.split(":")
        with pytest.raises(SessionExpiredError):
            await raw_request(server, [1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1000, int(session_id), "wrong"])
        with pytest.raises(SessionExpiredError):
            await raw_request(server, [1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1000, int(session_id), ""])
        assert store.state is SessionState.CONNECTED
        states: list[SessionState] = []
        store.add_session_listener(states.append)
        hello = [1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1000, int(session_id), password]
        assert await raw_request(server, hello) == [int(session_id), password, SESSION_TIMEOUT_MS]
        await until(lambda: states == [SessionState.SUSPENDED, SessionState.CONNECTED])
        assert await store.exists("/e") is not None


async def raw_request(server: EmbeddedServer, *frames: list[object]) -> object:
    """Send frames as they are given and return the answer to the last one."""
    host, port = server.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    decoder = EmbeddedFrameDecoder()
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


async def test_timeouts_are_kept_within_bounds(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for asked, granted in ((1, 100), (5_000, 5_000), (10**9, 120_000)):
            answer = await raw_request(server, [1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, asked, 0, ""])
            assert isinstance(answer, list)
            assert answer[2] == granted


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", FRAME_BYTES_MAX + 1),
        struct.pack(">I", 3) + b"\xc1\xc1\xc1",
        struct.pack(">I", 1) + msgpack.packb(7),
        encode_frame([1, 99]),
        encode_frame([1, EmbeddedOp.HELLO, "another protocol", 1, 1000, 0, ""]),
        encode_frame([1, EmbeddedOp.HELLO]),
        encode_frame([1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1000, 0, ""]) * 2,
        encode_frame([1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1000, 0, ""])
        + encode_frame([2, EmbeddedOp.APPLY, [[9, "/a"]]]),
        encode_frame([1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, 1000, 0, ""])
        + encode_frame([2, EmbeddedOp.GET, 5, 0]),
    ],
)
async def test_bytes_that_are_not_the_protocol_end_the_connection_only(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path) as server, session(server.address) as store:
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        with contextlib.suppress(ConnectionResetError):
            async with asyncio.timeout(60):
                while await reader.read(1 << 16):
                    pass
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        await store.create("/still-here")


async def test_another_version_and_a_missing_hello_are_told(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        with pytest.raises(HeliographError, match="speaks version 99"):
            await raw_request(server, [1, EmbeddedOp.HELLO, MAGIC, 99, 1000, 0, ""])
        with pytest.raises(SessionExpiredError):
            await raw_request(server, [1, EmbeddedOp.GET, "/", 0])


async def test_an_unreachable_server_is_a_clear_error_in_time() -> None:
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        port = refusing.getsockname()[1]
        with pytest.raises(ConnectionLossError, match=f"127.0.0.1:{port}"):
            await EmbeddedStore.connect("127.0.0.1", port, connect_timeout_ms=200)


async def test_the_actor_serves_without_being_asked_and_comes_back_in_place(tmp_path: Path) -> None:
    actor = MetadataActor(str(tmp_path), ListenAddress("127.0.0.1"))
    assert repr(actor) == "Metadata(embedded)"
    address = await actor.start()
    assert await actor.address() == address == await actor.start()
    async with session(address) as store:
        await store.create("/a")
    assert (await actor.statistics())["nodes"] == 2
    await actor.stop()
    again = MetadataActor(str(tmp_path), ListenAddress("127.0.0.1"))
    host, port = address.split(":")
    store = await EmbeddedStore.connect(host, int(port))
    assert await store.exists("/a") is not None
    await store.close()
    await again.stop()


def test_times_of_a_session_leave_room_between_them() -> None:
    assert session_limits.DOUBT_SHARE + 1 / session_limits.PINGS_PER_TIMEOUT < 1  # I13
    assert session_limits.SILENCE_SHARE + 1 / session_limits.PINGS_PER_TIMEOUT < session_limits.DOUBT_SHARE
