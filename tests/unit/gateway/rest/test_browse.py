"""How a search over HTTP ends, by a clock that the test turns; its bounds with real brokers are tests of standalone."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.types import Message, Scope

from heliograph.gateway.rest import browse
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway

ADDRESS = f"/topics/{FLIGHTS_PATH}/browse"


class Clock:
    """The clock of the module, whose seconds pass where a test says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


class Reader:
    """A reader of a topic's messages, and of nothing after them."""

    has_reached_end = False

    def __init__(self, topic: FakeTopic, passes: Callable[[], None] = lambda: None) -> None:
        self._left = list(topic.messages)
        self._passes = passes

    async def receive_many(self, _: int, timeout: float | None = None) -> list[Any]:
        messages, self._left = self._left, []
        if not messages:
            self._passes()
        return messages

    async def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(browse, "time", clock)
    return clock


@pytest.fixture
def topic(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> FakeTopic:
    topic = gateway.world.add()
    for text in (b'{"a": 1}', b"[2]", b'"' + b"x" * (64 << 10) + b'"'):
        topic.publish(text, None, {}, None)
    gateway.world.cursors.last = f"{topic.ledger_id}:{len(topic.messages) - 1}:-1"
    serve(gateway, monkeypatch, lambda: Reader(topic))
    return topic


def serve(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, made: Callable[[], Reader]) -> None:
    async def reader(name: str, **_: Any) -> Reader:
        return made()

    monkeypatch.setattr(gateway.world, "reader", reader)


async def lines(gateway: Gateway, **query: Any) -> list[dict[str, Any]]:
    answer = await gateway.http.get(ADDRESS, params=query)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


async def test_a_search_that_took_long_to_open_its_readers_looks_at_messages(
    gateway: Gateway, topic: FakeTopic, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> Reader:
        clock.seconds += browse.IDLE_SECONDS + 1
        return Reader(topic)

    serve(gateway, monkeypatch, made)
    *_, end = await lines(gateway)
    assert (end["why"], end["looked"], end["found"]) == ("end", 3, 3)


async def test_a_pause_before_the_end_is_no_end(
    gateway: Gateway, topic: FakeTopic, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.world.cursors.last = f"{topic.ledger_id}:9:-1"

    def passes() -> None:
        clock.seconds += 0.9

    serve(gateway, monkeypatch, lambda: Reader(topic, passes))
    *_, end = await lines(gateway)
    assert (end["type"], end["why"], end["looked"]) == ("end", "idle", 3)
    assert end["next"] == f"{topic.ledger_id}:2:-1"


async def test_a_value_is_at_a_path_and_the_root_is_one(gateway: Gateway, topic: FakeTopic, clock: Clock) -> None:
    refused = await gateway.http.get(ADDRESS, params={"value": "1"})
    assert (refused.status_code, refused.json()["field"]) == (400, "value")
    (found, _) = await lines(gateway, path="$", value="[2]")
    assert found["payload"] == "[2]"
    assert len(await lines(gateway, path="$")) == 4, "each of them is JSON"


async def test_a_raw_payload_says_that_it_is_cut(gateway: Gateway, topic: FakeTopic, clock: Clock) -> None:
    *_, short, long, _ = await lines(gateway, raw=True)
    assert "rawIsCut" not in short
    assert (long["rawIsCut"], len(long["payloadBase64"])) == (True, -(-browse.SHOWN_BYTES // 3) * 4)


async def test_a_caller_that_does_not_read_is_cut_off_in_silence(
    gateway: Gateway, topic: FakeTopic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(browse, "WRITE_SECONDS_MAX", 0.01)
    sent: list[Message] = []

    async def receive() -> Message:
        if not sent:
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("it never leaves")

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    scope: Scope = {
        "type": "http", "method": "GET", "path": ADDRESS, "raw_path": ADDRESS.encode(), "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8080")], "client": ("127.0.0.1", 5000), "server": ("127.0.0.1", 8080),
        "scheme": "http", "http_version": "1.1",
    }  # fmt: skip
    await gateway.app(scope, receive, send)
    assert (sent[0]["status"], len([message for message in sent if message.get("body")])) == (200, 1)
    assert not [record for record in caplog.records if record.exc_info]
