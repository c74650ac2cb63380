"""Server-sent events: ids, resuming, gaps, heartbeats, and what ends a stream."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from heliograph.base.errors import AuthenticationError, HeliographError, InvalidMessageIdError, TopicTerminatedError
from heliograph.gateway.rest import events
from heliograph.gateway.shapes.bodies import SMALL_BODY_BYTES
from heliograph.gateway.shapes.event_ids import PARTITIONS_MAX, event_id, lost_after, positions_of
from heliograph.gateway.shapes.payload_forms import message_text
from heliograph.protocol.message_id import MessageId
from tests.unit.gateway.clients import FakeConsumer, FakeTopic
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway, World
from tests.waits import until

PATH = f"/topics/{FLIGHTS_PATH}/events"


class Page:
    """A page with an open ``EventSource``."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.gone = asyncio.Event()
        self.is_over = False
        self.reads = asyncio.Event()
        self.reads.set()
        self._begun = asyncio.Event()
        self._bytes: asyncio.Queue[bytes] = asyncio.Queue()
        self._rest = b""
        self._asked = False

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        await self.reads.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            self._begun.set()
        else:
            self._bytes.put_nowait(message.get("body", b""))
            self.is_over = self.is_over or not message.get("more_body", False)

    async def begun(self) -> None:
        await asyncio.wait_for(self._begun.wait(), 10)

    async def block(self) -> str:
        """Return the next lines up to an empty one."""
        while b"\n\n" not in self._rest:
            self._rest += await asyncio.wait_for(self._bytes.get(), 10)
        found, _, self._rest = self._rest.partition(b"\n\n")
        return found.decode()

    async def event(self) -> dict[str, str]:
        """Return the fields of the next block that is no comment."""
        while True:
            fields = dict(line.split(": ", 1) for line in (await self.block()).split("\n") if not line.startswith(":"))
            if fields:
                return fields


@asynccontextmanager
async def page(gateway: Gateway, query: str = "", last: str = "", **headers: str) -> AsyncIterator[Page]:
    made = Page()
    sent = {"host": "127.0.0.1:8080"} | headers | ({"last-event-id": last} if last else {})
    scope = {
        "type": "http", "method": "GET", "path": PATH, "raw_path": PATH.encode(), "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()], "client": ("127.0.0.1", 5),
        "app": gateway.app,
    }  # fmt: skip
    running = asyncio.ensure_future(gateway.app(scope, made.receive, made.send))
    try:
        await made.begun()
        yield made
    finally:
        made.gone.set()
        await asyncio.wait_for(running, 10)
        assert gateway.app.state.services.sessions.open == 0


def at_end(world: World, id_: str = "-1:-1:-1") -> None:
    world.cursors.last = id_


async def test_messages_are_events_with_their_ids(topic: FakeTopic, gateway: Gateway) -> None:
    topic.publish("grüße\n".encode(), "k", {"p": "v"}, 1000)
    async with page(gateway, "from=earliest") as source:
        assert source.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert source.headers["cache-control"] == "no-store"
        assert await source.event() == {"retry": "1000", "id": "-1:-1:-1"}
        event = await source.event()
        assert event["id"] == "100:0:-1"
        message = json.loads(event["data"])
        assert (message["payload"], message["key"], message["properties"]) == ("grüße\n", "k", {"p": "v"})
        assert message["messageId"] == MessageId(100, 0).to_base64()
        topic.publish(b"\xff", None, {}, None)
        message = json.loads((await source.event())["data"])
        assert (message["payload"], message["payloadBase64"]) == (None, "/w==")


async def test_a_page_that_got_nothing_yet_knows_where_to_go_on(topic: FakeTopic, gateway: Gateway) -> None:
    """Without an id before the first message, what is published while the page is away would be missed."""
    topic.publish(b"old", None, {}, None)
    at_end(gateway.world, "100:0:-1")
    async with page(gateway) as source:
        first = await source.event()
    topic.publish(b"meanwhile", None, {}, None)
    gateway.world.topic_ledgers = ledgers(100)  # type: ignore[method-assign]
    async with page(gateway, "from=earliest", first["id"]) as source:  # the header comes before the query
        assert (await source.event())["id"] == "100:0:-1"
        assert json.loads((await source.event())["data"])["payload"] == "meanwhile"


def ledgers(*ids: int) -> Any:
    async def topic_ledgers(topic: str, after: int = -1) -> dict[str, Any]:
        return {"total": len(ids), "has_more": False, "ledgers": [{"ledger_id": each} for each in ids]}

    return topic_ledgers


def trimmed(*pairs: tuple[int, int]) -> Any:
    async def read_access(topic: str, ledger_ids: object) -> dict[str, Any]:
        return {"trimmed": list(pairs)}

    return read_access


@pytest.mark.parametrize(
    ("last", "gone", "entries"),
    [("90:4:-1", [(90, 5)], 0), ("90:3:-1", [(90, 5)], 1), ("90:4:-1", [(90, 5), (95, 7)], 7), ("90:4:-1", [], None)],
)
async def test_messages_that_were_deleted_meanwhile_are_told(
    gateway: Gateway, last: str, gone: list[tuple[int, int]], entries: int | None
) -> None:
    """I18."""
    gateway.world.add().publish(b"a", None, {}, None)
    gateway.world.topic_ledgers, gateway.world.read_access = ledgers(100), trimmed(*gone)  # type: ignore[method-assign]
    async with page(gateway, last=last) as source:
        assert (await source.event())["id"] == last
        event = await source.event()
        if entries != 0:
            assert event["event"] == "gap"
            assert json.loads(event["data"]) == {
                "topic": "persistent://public/default/flights", "after": last, "entries": entries,
            }  # fmt: skip
            event = await source.event()
        assert json.loads(event["data"])["payload"] == "a"


async def test_a_stream_that_is_silent_beats(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.01)
    gateway.world.add()
    at_end(gateway.world)
    async with page(gateway) as source:
        await source.event()
        assert [await source.block() for _ in range(3)] == [":"] * 3


async def test_a_page_that_does_not_read_is_given_up() -> None:
    """I15: what a page does not read is not held for it."""
    async with Gateway(websocket_idle_seconds=1) as gateway:
        topic = gateway.world.add()
        at_end(gateway.world)
        async with page(gateway) as source:
            await source.event()
            source.reads.clear()
            topic.publish(b"a", None, {}, None)
            await until(lambda: not gateway.app.state.services.sessions.open)


async def test_the_end_of_a_topic_is_an_event_and_no_reason_to_connect_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ends(self: FakeConsumer, max_messages: int, timeout: float | None = None) -> object:
        raise TopicTerminatedError("it was terminated")

    monkeypatch.setattr(FakeConsumer, "receive_many", ends)
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.01)
    gateway.world.add()
    async with page(gateway, "from=earliest") as source:
        await source.event()
        assert await source.event() == {"event": "end", "id": "-1:-1:-1", "data": '{"endOfTopic": true}'}
        assert await source.block() == ":"
        assert not source.is_over


async def test_a_failure_ends_the_stream_so_that_the_page_connects_again(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(self: FakeConsumer, max_messages: int, timeout: float | None = None) -> object:
        raise HeliographError("the topic was deleted")

    monkeypatch.setattr(FakeConsumer, "receive_many", fails)
    gateway.world.add()
    async with page(gateway, "from=earliest") as source:
        await source.event()
        await until(lambda: source.is_over)


async def test_added_partitions_end_the_stream_so_that_the_page_reads_them_too(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(events, "GROWTH_SECONDS", 0.0)
    topic = gateway.world.add(partitions=2)
    async with page(gateway, "from=earliest") as source:
        assert (await source.event())["id"] == "-1:-1:0,-1:-1:1"
        assert not source.is_over
        topic.partitions = 3
        await until(lambda: source.is_over)


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("?from=noon", 400, "Last-Event-ID"),
        ("?from=1:2:0", 400, "Last-Event-ID"),
        ("?payloadFormat=xml", 422, "payloadFormat"),
    ],
)
async def test_what_cannot_be_read_is_refused(gateway: Gateway, query: str, status: int, field: str) -> None:
    gateway.world.add()
    answer = await gateway.http.get(PATH + query)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


async def test_topics_that_are_not_there_or_keep_nothing(gateway: Gateway) -> None:
    assert (await gateway.http.get(PATH)).status_code == 404
    assert gateway.world.topics == {}
    answer = await gateway.http.get(PATH.replace("persistent", "non-persistent"))
    assert (answer.status_code, answer.json()["field"]) == (405, "domain")


async def test_streams_are_bounded_with_the_sessions() -> None:
    """I15."""
    async with Gateway(websocket_sessions_max=1) as gateway:
        gateway.world.add()
        async with page(gateway, "from=earliest"):
            answer = await gateway.http.get(PATH)
            assert (answer.status_code, answer.json()["field"]) == (429, "websocket_sessions_max")


def test_ids_of_partitions_come_back() -> None:
    read = {0: MessageId(5, 7, 0, 3, 9), 1: MessageId(-1, -1, 1), 2: MessageId(6, 0, 2)}
    assert positions_of(event_id(read), [0, 1, 2], "id") == read
    assert positions_of(event_id(read), [0, 1, 2, 3], "id")[3] == MessageId.EARLIEST  # it was added
    for text in ("", "1:2", "1:2:7", "1:2:0;1:3:1", "latest", "x" * 5000, ",".join(["1:2:0"] * (PARTITIONS_MAX + 1))):
        with pytest.raises(InvalidMessageIdError):
            positions_of(text, [0, 1], "id")


def test_what_was_deleted_after_a_position() -> None:
    assert lost_after(MessageId.EARLIEST, [], {}) == 0
    assert lost_after(MessageId(5, 3), [5, 6], {4: 10}) == 0
    assert lost_after(MessageId(5, 3), [6], {}) is None
    assert lost_after(MessageId(5, 3), [8], {4: 9, 5: 4, 7: 2}) == 2


async def test_a_token_that_is_revoked_ends_the_stream(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.world.add().publish(b"x", None, {}, None)
    revoked = asyncio.Event()

    async def until_revoked(principal: object) -> None:
        await revoked.wait()
        raise AuthenticationError("the token has been revoked")

    monkeypatch.setattr(gateway.app.state.services.authenticator, "until_revoked", until_revoked)
    async with page(gateway, "from=earliest") as source:
        await source.event()
        assert not source.is_over
        revoked.set()
        await until(lambda: source.is_over)


async def test_a_large_payload_is_parsed_on_a_thread(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = gateway.world.add()
    threads: list[str] = []

    def note(*arguments: Any) -> str:
        threads.append(threading.current_thread().name)
        return message_text(*arguments)

    monkeypatch.setattr(events, "message_text", note)
    topic.publish(b"[1]", None, {}, None)
    topic.publish(json.dumps(["x" * SMALL_BODY_BYTES]).encode(), None, {}, None)
    async with page(gateway, "from=earliest&payloadFormat=json") as source:
        found = [fields for _ in range(3) if "data" in (fields := await source.event())]
    assert [json.loads(fields["data"])["payload"] for fields in found] == [[1], ["x" * SMALL_BODY_BYTES]]
    assert [name == threading.main_thread().name for name in threads] == [True, False]
