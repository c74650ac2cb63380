"""Requests over HTTP: the reply as JSON or as server-sent events, its bounds and its errors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator

import pytest

from heliograph.base.errors import HeliographError, ReplyInterruptedError, RequestFailedError, RequestTimeoutError
from heliograph.gateway.ports import OutboundMessage
from heliograph.gateway.rest import request as module
from tests.unit.gateway.rest.test_events import Page
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway

URL = f"/topics/{FLIGHTS_PATH}"
TEXT = {"Content-Type": "text/plain"}


def events_of(text: str) -> list[tuple[str, dict[str, object]]]:
    """Return the events of a stream with their names."""
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.split("\n\n") if block]
    return [(lines.get("event", ""), json.loads(lines["data"])) for lines in blocks]


async def test_the_reply_is_the_answer(gateway: Gateway) -> None:
    gateway.world.add()
    answer = await gateway.http.post(f"{URL}?reply=wait&key=k&property=a=b", content="hello", headers=TEXT)
    assert (answer.status_code, answer.json()) == (
        200,
        {"payload": "HELLO", "payloadBase64": base64.b64encode(b"HELLO").decode()},
    )
    options = gateway.world.request_options
    assert (options["key"], options["properties"], options["timeout"]) == ("k", {"a": "b"}, 30)
    body = {"messages": [{"payload": "in the form of Pulsar"}]}
    answer = await gateway.http.post(f"{URL}?reply=wait&replyTimeoutMs=500", json=body)
    assert answer.json()["payload"] == "IN THE FORM OF PULSAR"
    assert gateway.world.request_options["timeout"] == 0.5


async def test_a_reply_without_a_value(gateway: Gateway) -> None:
    gateway.world.add()

    async def nothing(_: bytes) -> AsyncGenerator[bytes]:
        for each in list[bytes]():
            yield each

    gateway.world.answer = nothing
    answer = await gateway.http.post(f"{URL}?reply=wait", content="x", headers=TEXT)
    assert answer.json() == {"payload": None, "payloadBase64": None}


async def test_a_stream_is_events_with_an_end(gateway: Gateway) -> None:
    gateway.world.add()

    async def words(value: bytes) -> AsyncGenerator[bytes]:
        for word in value.split():
            yield word
        yield b"\xff"

    gateway.world.answer = words
    answer = await gateway.http.post(f"{URL}?reply=stream", content="to be", headers=TEXT)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = events_of(answer.text)
    assert [(name, body.get("payload")) for name, body in found] == [("", "to"), ("", "be"), ("", None), ("end", None)]
    assert found[2][1]["payloadBase64"] == base64.b64encode(b"\xff").decode()


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RequestFailedError("ValueError: no such document"), 502),
        (RequestTimeoutError("no answer"), 504),
        (ReplyInterruptedError("a part was lost"), 503),
    ],
)
@pytest.mark.parametrize("form", ["wait", "stream"])
async def test_a_failure_before_the_first_part_is_a_status(
    gateway: Gateway, error: HeliographError, status: int, form: str
) -> None:
    gateway.world.add()

    async def fail(_: bytes) -> AsyncGenerator[bytes]:
        raise error
        yield b""

    gateway.world.answer = fail
    answer = await gateway.http.post(f"{URL}?reply={form}", content="x", headers=TEXT)
    assert (answer.status_code, answer.json()["reason"]) == (status, str(error))
    totals = gateway.app.state.services.metrics.series()["heliograph_gateway_requests_total"]
    assert dict(totals) == {("answered",): 0, ("failed",): 1}


async def test_a_failure_on_the_way_is_an_event(gateway: Gateway) -> None:
    gateway.world.add()

    async def fail(_: bytes) -> AsyncGenerator[bytes]:
        yield b"one"
        raise RequestFailedError("out of tokens")

    gateway.world.answer = fail
    answer = await gateway.http.post(f"{URL}?reply=stream", content="x", headers=TEXT)
    names = events_of(answer.text)
    assert [name for name, _ in names] == ["", "error"]
    assert names[1][1]["reason"] == "out of tokens"


async def test_what_is_refused(gateway: Gateway) -> None:
    answer = await gateway.http.post(f"{URL}?reply=wait", content="x", headers=TEXT)
    assert answer.status_code == 404, "asking creates no topic"
    gateway.world.add()
    for query, body in (
        ("reply=wait", {"messages": [{"payload": "a"}, {"payload": "b"}]}),
        ("reply=wait", {"messages": [{"payload": "a", "deliverAfterMs": 5}]}),
    ):
        answer = await gateway.http.post(f"{URL}?{query}", json=body)
        assert answer.status_code == 400, body
    for query in ("reply=later", "reply=wait&replyTimeoutMs=0"):
        answer = await gateway.http.post(f"{URL}?{query}", content="x", headers=TEXT)
        assert answer.status_code == 422, query


async def test_a_reply_has_a_bound() -> None:
    async with Gateway(rest_answer_bytes_max=4, reply_wait_ms_max=2_000) as gateway:
        gateway.world.add()
        answer = await gateway.http.post(f"{URL}?reply=wait&replyTimeoutMs=60000", content="hello", headers=TEXT)
        assert (answer.status_code, answer.json()["limit"]) == (413, "4 bytes")
        assert gateway.world.request_options["timeout"] == 2


async def test_a_caller_has_so_many_open_requests_and_leaving_ends_one() -> None:
    async with Gateway(open_requests_per_caller_max=1) as gateway:
        gateway.world.add()
        waits, ended = asyncio.Event(), asyncio.Event()

        async def wait(_: bytes) -> AsyncGenerator[bytes]:
            waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            yield b""

        gateway.world.answer = wait
        asking = asyncio.ensure_future(gateway.http.post(f"{URL}?reply=wait", content="x", headers=TEXT))
        await waits.wait()
        answer = await gateway.http.post(f"{URL}?reply=stream", content="x", headers=TEXT)
        assert (answer.status_code, answer.json()["field"]) == (429, "open_requests_per_caller_max")
        gateway.app.state.services.ends.set()  # the server ends
        assert (await asking).status_code == 503
        assert ended.is_set()
        assert gateway.app.state.services.requests.open == 0


async def test_a_stream_ends_with_its_page(gateway: Gateway) -> None:
    services = gateway.app.state.services
    gateway.world.add()
    ended = asyncio.Event()

    async def endless(_: bytes) -> AsyncGenerator[bytes]:
        try:
            while True:
                yield b"token"
                await asyncio.sleep(0)
        finally:
            ended.set()

    gateway.world.answer = endless
    asked = module._Asked(services, FLIGHTS_PATH, OutboundMessage(b"x"), None, 5.0)
    asked._topic = "persistent://public/default/flights"
    page = Page()
    answering = asyncio.ensure_future(module._StreamResponse(asked)({}, page.receive, page.send))
    await page.begun()
    page.gone.set()
    await answering
    assert ended.is_set()
    assert services.requests.open == 0
