"""Callers that send too slowly, too much, too often or too many at once; others must not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed

from heliograph.auth.principal import Principal
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManyRequestsError, TooManySessionsError, TooMuchHeldError, headers_of
from heliograph.gateway.http import limits
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.http.limits import BodyBudget, Rate, Shares, tenant_of, too_fast
from heliograph.gateway.http.server import GatewayServer
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.test_server import started
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway, World
from tests.websocket import connect

pytestmark = pytest.mark.slow

TOPIC = f"/topics/{FLIGHTS_PATH}"
PRODUCER = f"/ws/v2/producer/{FLIGHTS_PATH}"
MESSAGE = {"messages": [{"payload": "x"}]}
MIB = 1 << 20


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[GatewayServer, httpx.AsyncClient]]:
    world = World()
    world.add()
    server = await started(world, **settings)
    try:
        async with httpx.AsyncClient(base_url=server.url, timeout=30) as http:
            yield server, http
    finally:
        await server.stop()


async def _raw(server: GatewayServer, text: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(text.encode())
    await writer.drain()
    return reader, writer


def _head(length: int) -> str:
    lines = (f"POST {TOPIC} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {length}")
    return "\r\n".join((*lines, "", ""))


@pytest.mark.parametrize("first", ["", "GET /health HTTP/1.1\r\nHost: 127", _head(100) + "{"])
async def test_a_request_that_does_not_arrive_is_ended(first: str) -> None:
    """A connection that sends a byte now and then does not keep its place: nothing, headers or a body."""
    async with serving(request_header_seconds=0.3, request_body_seconds=0.3) as (server, http):
        reader, writer = await _raw(server, first)

        async def drip() -> None:
            while True:
                await asyncio.sleep(0.1)
                writer.write(b"a")

        dripping = asyncio.create_task(drip()) if first else None
        answer = b""
        with contextlib.suppress(ConnectionResetError):  # a byte that crosses the answer resets the connection
            answer = await asyncio.wait_for(reader.read(), 60)
            assert b"did not arrive in time" in answer
        assert answer.startswith(b"HTTP/1.1 408 ") or first
        if dripping is not None:
            dripping.cancel()
        writer.close()
        assert (await http.get("/health")).status_code == 200


async def test_a_large_body_that_comes_steadily_has_the_time_it_needs() -> None:
    async with serving(request_body_seconds=0.6) as (server, _):
        body = json.dumps({"messages": [{"payload": "x" * 200_000}]})
        reader, writer = await _raw(server, _head(len(body)))
        for start in range(0, len(body), 20_000):
            writer.write(body[start : start + 20_000].encode())
            await asyncio.sleep(0.12)
        assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_unfinished_bodies_are_held_within_a_budget() -> None:
    """Thirty connections that each sent most of a large body took a gigabyte."""
    settings = {"held_bytes_max": 4 * MIB, "request_bytes_max": MIB, "max_message_bytes": MIB}
    async with serving(**settings) as (server, http):
        writers = []
        answers = []
        for _ in range(8):
            reader, writer = await _raw(server, _head(MIB) + "x" * (MIB - 100_000))
            writers.append(writer)
            answers.append(asyncio.create_task(reader.readline()))
        async with asyncio.timeout(60):
            while sum(task.done() for task in answers) < 4:
                await asyncio.wait([task for task in answers if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        done = [task for task in answers if task.done()]
        waiting = [task for task in answers if not task.done()]
        assert all(task.result().startswith((b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")) for task in done)
        for writer in writers:
            writer.close()
        for task in waiting:
            task.cancel()
        for _ in range(1_200):
            answer = await http.post(TOPIC, json=MESSAGE)
            if answer.status_code == 200:
                break
            await asyncio.sleep(0.05)
        assert answer.status_code == 200


def test_the_budget_has_a_share_for_each_address() -> None:
    budget = BodyBudget(GatewayConfig(held_bytes_max=40, request_bytes_max=10, max_message_bytes=10))
    budget.take("a", 10)
    with pytest.raises(TooManyRequestsError) as caught:
        budget.take("a", 1)
    assert caught.value.limit == "10 bytes"
    for address in "bcd":
        budget.take(address, 10)
    with pytest.raises(TooMuchHeldError):
        budget.take("e", 1)
    budget.give_back("a", 10)
    budget.take("e", 10)
    assert budget.held_bytes == 40


async def test_unfinished_websocket_frames_are_held_within_the_budget() -> None:
    settings = {"held_bytes_max": 2 * MIB, "request_bytes_max": MIB, "max_message_bytes": MIB}
    async with serving(**settings) as (server, http):
        url = server.url.replace("http", "ws") + PRODUCER
        sessions = [await connect(url) for _ in range(3)]
        for session in sessions:
            # The header of a masked text frame of 900,000 bytes, and all but its end.
            session.transport.write(b"\x81\xff" + (900_000).to_bytes(8, "big") + bytes(4) + b"x" * 800_000)
        ends = [asyncio.create_task(session.recv()) for session in sessions]
        done, waiting = await asyncio.wait(ends, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in done:
            with pytest.raises(ConnectionClosed) as caught:
                task.result()
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1013
        for task in waiting:
            task.cancel()
        for session in sessions:
            session.transport.abort()
        assert (await http.post(TOPIC, json=MESSAGE)).status_code == 200


def test_an_address_has_so_many_connections() -> None:
    async def scenario() -> None:
        async with serving(connections_per_address_max=3) as (server, _):
            pairs = [await _raw(server, "") for _ in range(3)]
            reader, writer = await _raw(server, "")
            answer = await asyncio.wait_for(reader.read(), 60)
            assert answer.startswith(b"HTTP/1.1 429 ")
            assert b"Retry-After: 1" in answer
            for _, other in [*pairs, (reader, writer)]:
                other.close()
            async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
                for _ in range(1_200):
                    with contextlib.suppress(httpx.HTTPError):
                        if (await http.get("/health")).status_code == 200:
                            return
                    await asyncio.sleep(0.05)
            raise AssertionError("closed connections do not count")

    asyncio.run(scenario())


async def test_a_websocket_counts_as_one_connection_until_it_ends() -> None:
    async with serving(connections_per_address_max=1) as (server, _):
        url = server.url.replace("http", "ws") + PRODUCER
        for _ in range(3):
            async with connect(url):
                reader, writer = await _raw(server, "")
                assert (await reader.read()).startswith(b"HTTP/1.1 429 ")
                writer.close()
            await asyncio.sleep(0.05)


async def test_a_request_has_so_many_messages_and_others_are_answered_meanwhile(gateway: Gateway) -> None:
    """4 MiB of 279,620 empty messages kept everyone else waiting for two minutes."""
    topic = gateway.world.add()
    body = b'{"messages":[' + b",".join([b'{"payload":""}'] * 279_620) + b"]}"
    publishing = asyncio.create_task(gateway.http.post(TOPIC, content=body))
    begun = time.monotonic()
    longest = 0.0
    while not publishing.done():
        asked = time.monotonic()
        await asyncio.sleep(0)
        assert (await gateway.http.get("/health")).status_code == 200
        longest = max(longest, time.monotonic() - asked)
    assert longest < 5
    assert time.monotonic() - begun < 20
    answer = publishing.result()
    assert answer.status_code == 413
    assert answer.json()["limit"] == "400000 values"
    answer = await gateway.http.post(TOPIC, json={"messages": [{"payload": ""}] * 10_001})
    assert answer.status_code == 413
    assert answer.json()["limit"] == "10000 messages"
    assert not topic.messages
    answer = await gateway.http.post(TOPIC, json={"messages": [{"payload": ""}] * 10_000})
    assert answer.status_code == 200
    assert len(answer.json()["messagePublishResults"]) == len(topic.messages) == 10_000


async def test_a_body_of_countless_values_is_refused_before_it_is_parsed(topic: FakeTopic, gateway: Gateway) -> None:
    for value in (b"[]", b'""'):
        many = b",".join([value] * 450_000)
        answer = await gateway.http.post(TOPIC, content=b'{"messages":[{"payload":"x"}],"other":[' + many + b"]}")
        assert answer.status_code == 413
        assert answer.json()["limit"] == "400000 values"
    assert not topic.messages
    text = json.dumps([{"a": 1, "quote": '"\\'}] * 60_000)  # commas inside a text are no values
    answer = await gateway.http.post(TOPIC, json={"messages": [{"payload": text}] * 4})
    assert answer.status_code == 200


async def test_a_frame_of_countless_values_is_refused_before_it_is_parsed(gateway: Gateway) -> None:
    gateway.world.add()
    peer = await gateway.connect(PRODUCER)
    peer.send('{"payload":"","properties":{' + ",".join(f'"{number}":""' for number in range(200_000)) + "}}")
    assert (await peer.receive())["result"] == "send-error:3"
    peer.send({"payload": ""})
    assert (await peer.receive())["result"] == "ok"
    await peer.leave()


async def test_an_address_has_so_many_sessions_and_consumers_and_others_have_theirs() -> None:
    limits = ("websocket_sessions_per_caller_max", "rest_consumers_per_caller_max", "rest_producers_per_caller_max")
    async with Gateway(**dict.fromkeys(limits, 1)) as gateway:
        gateway.world.add()
        first = await gateway.connect(PRODUCER)
        second = await gateway.connect(PRODUCER)
        assert (second.status, second.body["field"]) == (429, "websocket_sessions_per_caller_max")
        other = await gateway.connect(PRODUCER, address="10.0.0.9")
        assert other.status == 101
        consume = f"{TOPIC}/subscription/s/messages?timeoutMs=0&session="
        assert (await gateway.http.post(f"{consume}a")).status_code == 200
        answer = await gateway.http.post(f"{consume}b")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["field"] == "rest_consumers_per_caller_max"
        assert (await gateway.http.delete(f"{TOPIC}/subscription/s/consumer?session=a")).status_code == 204
        assert (await gateway.http.post(f"{consume}b")).status_code == 200
        gateway.world.add(f"persistent://{FLIGHTS_PATH.removeprefix('persistent/')}-2")
        for path in (TOPIC, f"{TOPIC}-2"):  # an idle producer of the caller makes room
            assert (await gateway.http.post(path, json=MESSAGE)).status_code == 200
        assert len(gateway.app.state.services.producers) == 1
        await first.leave()
        await other.leave()


def test_a_role_has_its_share_from_all_its_addresses() -> None:
    shares = Shares("things", 2, "things_max")
    for number in range(2):
        shares.take(Caller(f"10.0.0.{number}", Principal("a")))
    with pytest.raises(TooManySessionsError):
        shares.take(Caller("10.0.0.9", Principal("a")))
    shares.take(Caller("10.0.0.9", Principal("b")))
    shares.give_back(Caller("10.0.0.1", Principal("a")))
    shares.take(Caller("10.0.0.9", Principal("a")))


def test_rates_fill_with_time_and_debts_are_paid() -> None:
    rate = Rate(10)
    assert rate.wait_seconds("a", 0) == 0
    rate.use("a", 30, 0)
    assert rate.wait_seconds("a", 0) == pytest.approx(2, abs=0.01)
    assert rate.wait_seconds("b", 0) == 0
    assert rate.wait_seconds("a", 2.01) == 0
    assert rate.wait_seconds("", 0) == 0
    off = Rate(0)
    off.use("a", 1e9, 0)
    assert off.wait_seconds("a", 0) == 0


def test_the_callers_whose_rates_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CALLERS_MAX", 2)
    rate = Rate(1)
    for key in ("a", "b", "a", "c"):
        rate.use(key, 100, 0)
    assert [rate.wait_seconds(key, 0) > 0 for key in ("c", "a")] == [True, True]
    assert rate.wait_seconds("b", 0) == 0, "it was seen longest ago, and is forgotten"
    assert len(rate._buckets) == 2


@pytest.mark.parametrize(
    ("path", "tenant"),
    [
        (f"/topics/{FLIGHTS_PATH}", "public"),
        (f"/admin/v2/{FLIGHTS_PATH}/stats", "public"),
        ("/admin/v2/namespaces/acme/x", "acme"),
        ("/admin/v2/tenants/acme", "acme"),
        (f"/ws/v2/producer/{FLIGHTS_PATH}", "public"),
        ("/admin/v2/brokers/standalone", ""),
        ("/", ""),
    ],
)
def test_the_tenant_of_a_path(path: str, tenant: str) -> None:
    assert tenant_of(path) == tenant


@pytest.mark.parametrize(
    ("setting", "kind"),
    [("address_requests_per_second", "address"), ("tenant_bytes_per_second", "tenant")],
)
async def test_who_is_too_fast_is_told_when_to_try_again(setting: str, kind: str) -> None:
    async with Gateway(**{setting: 2.0}) as gateway:
        gateway.world.add()
        statuses = []
        for _ in range(6):
            answer = await gateway.http.post(TOPIC, json=MESSAGE)
            statuses.append(answer.status_code)
        assert statuses[0] == 200
        assert statuses[-1] == 429
        assert kind in answer.json()["reason"]
        assert int(answer.headers["retry-after"]) >= 1
        refused = await gateway.connect(PRODUCER)
        assert refused.status == 429


def test_the_time_to_wait_is_that_of_the_debt() -> None:
    assert headers_of(too_fast(7.2, "role")) == {"Retry-After": "8"}


async def test_frames_that_come_too_fast_are_slowed_down() -> None:
    async with Gateway(address_requests_per_second=20.0) as gateway:
        gateway.world.add()
        peer = await gateway.connect(PRODUCER)
        for _ in range(30):
            peer.send({"payload": ""})
        begun = time.monotonic()
        for _ in range(30):
            assert (await peer.receive())["result"] == "ok"
        assert time.monotonic() - begun > 0.5
        await peer.leave()
