"""The HTTP server around the app: ports, real sockets, real WebSocket frames, stopping."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import socket
import ssl
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import httpx
import pytest
import trustme
import uvloop
from websockets.exceptions import ConnectionClosed, InvalidStatus

from heliograph.base.errors import ResourceError
from heliograph.gateway.app import create_app
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from tests.unit.gateway.world import FLIGHTS_PATH, NoParts, View, World
from tests.waits import until
from tests.websocket import connect

T = TypeVar("T")
http_client = partial(httpx.AsyncClient, timeout=60)
_started: list[GatewayServer] = []


async def started(world: World, **settings: Any) -> GatewayServer:
    config = GatewayConfig(port=0, **settings)
    server = GatewayServer(config)
    _started.append(server)
    server.bind()
    await server.start(create_app(cast(Any, world), world, config, View(), NoParts()))
    return server


def run(scenario: Coroutine[Any, Any, T]) -> T:
    """Run a scenario on uvloop. Stop its servers also if it fails: closing the loop would wait for them for ever."""

    async def whole() -> T:
        try:
            return await scenario
        finally:
            while _started:
                await _started.pop().stop()

    return uvloop.run(whole())


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ResourceError, match=f"port {port} on 127.0.0.1 is in use") as caught:
            GatewayServer(GatewayConfig(port=port)).bind()
        assert caught.value.field == "port"


def test_a_host_that_does_not_resolve_is_named() -> None:
    with pytest.raises(ResourceError) as caught:
        GatewayServer(GatewayConfig(host="no such host", port=0)).bind()
    assert caught.value.field == "host"


def test_http_over_a_socket_and_a_port_that_is_free_again() -> None:
    async def scenario() -> str:
        world = World()
        world.add()
        server = await started(world)
        async with http_client(base_url=server.url) as http:
            answer = await http.post(f"/topics/{FLIGHTS_PATH}", json={"messages": [{"payload": "x"}]})
            assert answer.status_code == 200
            answer = await http.put("/admin/v2/persistent/public/default/a%2Fb")
            assert answer.status_code == 412  # the slash is part of the name, which must not contain one
        url = server.url
        await server.stop()
        await server.stop()
        return url

    host, port = run(scenario()).removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        pass


async def test_websocket_over_a_socket() -> None:
    world = World()
    world.add()
    server = await started(world)
    url = server.url.replace("http", "ws")
    async with connect(f"{url}/ws/v2/producer/{FLIGHTS_PATH}/") as producer:
        for number in range(500):
            await producer.send(json.dumps({"payload": base64.b64encode(b"%d" % number).decode(), "context": "c"}))
        receipts = [json.loads(await producer.recv()) for _ in range(500)]
        assert {receipt["result"] for receipt in receipts} == {"ok"}
    consumer_url = f"{url}/ws/v2/consumer/{FLIGHTS_PATH}/s?subscriptionInitialPosition=Earliest"
    async with connect(consumer_url) as consumer:
        for number in range(500):
            message = json.loads(await consumer.recv())
            assert base64.b64decode(message["payload"]) == b"%d" % number
            await consumer.send(json.dumps({"messageId": message["messageId"]}))
        await consumer.send(json.dumps({"type": "isEndOfTopic"}))
        assert json.loads(await consumer.recv()) == {"endOfTopic": False}
    with pytest.raises(InvalidStatus) as caught:
        await connect(f"{url}/ws/v2/producer/persistent/public/default/unknown")
    assert caught.value.response.status_code == 404
    assert json.loads(caught.value.response.body)["field"] == "topic"
    await server.stop()


async def test_an_oversized_message_is_answered_and_an_oversized_frame_closes() -> None:
    """I15: a frame is bounded; within twice the limit its message is answered with an error."""
    world = World()
    world.add()
    server = await started(world, max_message_bytes=100_000)
    url = server.url.replace("http", "ws") + f"/ws/v2/producer/{FLIGHTS_PATH}"
    async with connect(url) as producer:
        await producer.send(json.dumps({"payload": base64.b64encode(b"x" * 110_000).decode()}))
        assert json.loads(await producer.recv())["result"] == "send-error:8"
        await producer.send(json.dumps({"payload": ""}))
        assert json.loads(await producer.recv())["result"] == "ok"
        with pytest.raises(ConnectionClosed) as caught:  # noqa: PT012 - the close may meet the send or the receive
            await producer.send(json.dumps({"payload": "A" * 400_000}))
            await producer.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
    await server.stop()


async def test_stopping_ends_open_sessions() -> None:
    world = World()
    topic = world.add()
    server = await started(world)
    consumer = await connect(f"{server.url.replace('http', 'ws')}/ws/v2/consumer/{FLIGHTS_PATH}/s")
    stopping = asyncio.ensure_future(server.stop())
    with pytest.raises(ConnectionClosed):
        await consumer.recv()
    await stopping
    assert topic.subscriptions["s"].consumers == 0


@pytest.mark.parametrize("waits_already", [False, True])
async def test_messages_for_a_caller_that_left_go_to_the_next(waits_already: bool) -> None:
    world = World()
    topic = world.add()
    server = await started(world)
    url = f"{server.url}/topics/{FLIGHTS_PATH}/subscription/s/messages"
    connections = server._servers[0][0].server_state.connections
    async with http_client() as http, http_client() as other:
        leaving = asyncio.create_task(http.post(url, params={"timeoutMs": 20_000}))
        await until(lambda: any(consumer.is_waiting for consumer in world.consumers))
        following = asyncio.create_task(other.post(url, params={"timeoutMs": 20_000})) if waits_already else None
        await until(lambda: len(connections) == 1 + waits_already)
        leaving.cancel()
        await asyncio.wait([leaving])
        await until(lambda: len(connections) == waits_already)
        topic.publish(b"late", None, {}, None)
        answer = await (following or other.post(url, params={"timeoutMs": 20_000}))
        assert [message["payload"] for message in answer.json()["messages"]] == ["late"]
    await server.stop()


async def test_https_with_a_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    world = World()
    world.add()
    files = {"tls_certificate_file": str(tmp_path / "cert.pem"), "tls_key_file": str(tmp_path / "key.pem")}
    server = await started(world, **files)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    assert server.url.startswith("https://")
    async with http_client(base_url=server.url, verify=context) as http:
        answer = await http.post(f"/topics/{FLIGHTS_PATH}", json={"messages": [{"payload": "x"}]})
        assert answer.status_code == 200
    await server.stop()


def test_a_frame_that_is_not_utf8_closes_its_session_and_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> int | None:
        world = World()
        world.add()
        server = await started(world)
        url = server.url.replace("http://", "ws://")
        async with connect(f"{url}/ws/v2/producer/{FLIGHTS_PATH}") as session:
            await session.send(b'{"payload": "\xff"}', text=True)
            with pytest.raises(ConnectionClosed):
                await session.recv()
            code = session.close_code
        await server.stop()
        return code

    with caplog.at_level(logging.WARNING):
        assert run(scenario()) == 1007
    assert [record.levelno for record in caplog.records if record.levelno > logging.WARNING] == []
    assert "UTF-8" in caplog.text


UPGRADE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: HMf0zFnIwv6qbr81vQaeEA==\r\n\r\n"
)
CONSUMER = UPGRADE.format(path=f"/ws/v2/consumer/{FLIGHTS_PATH}/s")
LAST = f"POST /topics/{FLIGHTS_PATH}/subscription/s/messages HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.mark.parametrize(
    ("said", "then", "answer"),
    [
        (UPGRADE.format(path="/ws/v2/nothing"), b"", b"HTTP/1.1 400 "),
        (UPGRADE.format(path="/ws/v2/" + 9000 * "a"), b"", b"HTTP/1.1 414 "),
        (UPGRADE.format(path="/ws/v2/a").replace("Host", f"Long: {9000 * 'a'}\r\nHost"), b"", b"HTTP/1.1 431 "),
        (UPGRADE.format(path="/ws/v2/a").replace("Host", 200 * "Many: a\r\n" + "Host"), b"", b"HTTP/1.1 431 "),
        (UPGRADE.format(path="/ws/v2/a").replace("Host", "Odd: \x01\r\nHost"), b"", b""),
        (LAST, b"x", b"HTTP/1.1 400 "),
        (CONSUMER, b"\x88\x80mask", b""),
        (CONSUMER, b"\xc0\x80mask", b""),
    ],
    ids=[
        "refused upgrade",
        "long line",
        "long header",
        "many headers",
        "odd header",
        "more than the last request",
        "a frame before the upgrade",
        "no frame before the upgrade",
    ],
)
def test_what_strangers_say_is_no_error_in_the_log(
    said: str, then: bytes, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> bytes:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logging.error("%s", context))
        world = World()
        opened, open_consumer = asyncio.Event(), world.consumer
        is_heard = asyncio.Event()

        async def consumer(*given: Any, **options: Any) -> Any:
            opened.set()
            await is_heard.wait()
            return await open_consumer(*given, **options)

        world.consumer = consumer  # type: ignore[method-assign]
        world.add()
        server = await started(world)
        reader, writer = await asyncio.open_connection(*server.url.removeprefix("http://").split(":"))
        writer.write(said.encode())
        if then:
            await opened.wait()
            writer.write(then)
        heard = await asyncio.wait_for(reader.read(), 60)
        is_heard.set()
        writer.close()
        await server.stop()
        return heard

    with caplog.at_level(logging.ERROR):
        heard = asyncio.run(scenario())
    assert heard.startswith(answer)
    assert answer or not heard
    assert not caplog.records
