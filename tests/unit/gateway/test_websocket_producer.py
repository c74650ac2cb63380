"""Pulsar's WebSocket producer: frames, receipts in order, bad frames, refused upgrades."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest

from heliograph.base.errors import HeliographError, PersistenceError, TopicTerminatedError
from heliograph.gateway.websocket.waiting import EARLY_FRAMES_MAX
from heliograph.protocol.compression import NAMES as CODECS
from heliograph.protocol.message_id import MessageId
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway, settle

URL = f"/ws/v2/producer/{FLIGHTS_PATH}"


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_a_message_is_stored_and_its_receipt_has_pulsars_shape(topic: FakeTopic, gateway: Gateway) -> None:
    peer = await gateway.connect(f"{URL}/?producerName=p1")
    assert peer.status == 101
    peer.send(
        {
            "payload": _b64(b"hello"),
            "key": "k",
            "properties": {"a": "b"},
            "context": '5 "q"',
            "eventTime": "2013-01-01T05:00:00-05:00",
            "sequenceId": 7,
            "unknown": True,
        }
    )
    receipt = await peer.receive()
    id_ = MessageId(100, 0).to_base64()
    assert receipt == {
        "result": "ok", "messageId": id_, "context": "5 \"q\"", "errorCode": 0, "schemaVersion": 0
    }  # fmt: skip
    (message,) = topic.messages
    assert (message.data, message.key, message.properties) == (b"hello", "k", {"a": "b"})
    assert message.event_time_ms == 1357034400000
    assert gateway.world.producer_options["name"] == "p1"
    peer.send({"payload": ""})
    assert "context" not in await peer.receive()
    await peer.leave()
    assert topic.producers == 0


async def test_frames_are_pipelined_and_receipts_keep_their_order(gateway: Gateway) -> None:
    gateway.world.add()
    gateway.world.held = []
    gateway.world.send_errors[b"1"] = PersistenceError("no bookies")
    peer = await gateway.connect(URL)
    for number in range(3):
        peer.send({"payload": _b64(str(number).encode()), "context": str(number)})
    peer.send("{")
    await settle()
    assert len(gateway.world.held) == 2  # all are in progress at once
    assert peer.is_quiet()  # the failure of the second waits for the first
    gateway.world.release(1)
    answers = [await peer.receive() for _ in range(2)]
    assert [answer["context"] for answer in answers] == ["0", "1"]
    assert answers[1] == {
        "result": "send-error:8", "errorMsg": "no bookies", "context": "1", "errorCode": 0, "schemaVersion": 0
    }  # fmt: skip
    await settle()
    assert peer.is_quiet()
    gateway.world.release(1)
    assert [(await peer.receive())["result"] for _ in range(2)] == ["ok", "send-error:3"]
    await peer.leave()


@pytest.mark.parametrize(
    ("frame", "code", "word"),
    [
        ("not json", 3, "JSON"),
        ("[]", 3, "object"),
        ('"text"', 3, "object"),
        ("[" * 100_000, 3, "JSON"),
        ({}, 7, "payload"),
        ({"payload": 5}, 7, "payload"),
        ({"payload": "a*=="}, 7, "payload"),
        ({"payload": "abcde"}, 7, "payload"),
        ({"payload": "", "eventTime": "noon"}, 7, "eventTime"),
        ({"payload": "", "eventTime": "2013-01-01T05:00:00"}, 7, "offset"),
        ({"payload": "", "eventTime": 5}, 7, "eventTime"),
        ({"payload": "", "properties": {"a": 1}}, 7, "properties"),
        ({"payload": "", "properties": []}, 7, "properties"),
        ({"payload": "", "key": 1}, 7, "key"),
        ('{"payload": "", "key": "\\ud800"}', 3, "surrogate"),
        ({"payload": "", "deliverAt": "soon"}, 7, "deliverAt"),
        ({"payload": "", "deliverAt": 5, "deliverAfterMs": 5}, 7, "deliverAt"),
        ({"payload": "", "encryptionParam": "x"}, 7, "encryptionParam"),
        ({"payload": _b64(b"x" * 101)}, 8, "limit is 100"),
    ],
)
async def test_a_bad_frame_is_answered_and_the_session_goes_on(frame: Any, code: int, word: str) -> None:
    async with Gateway(max_message_bytes=100) as gateway:
        topic = gateway.world.add()
        peer = await gateway.connect(URL)
        peer.send(frame)
        answer = await peer.receive()
        assert answer["result"] == f"send-error:{code}"
        assert word in answer["errorMsg"]
        peer.send({"payload": _b64(b"good"), "context": "after"})
        assert (await peer.receive())["result"] == "ok"
        assert [message.data for message in topic.messages] == [b"good"]
        await peer.leave()


async def test_a_binary_frame_is_answered_too(gateway: Gateway) -> None:
    gateway.world.add()
    peer = await gateway.connect(URL)
    peer.send_bytes(b"\x00")
    assert (await peer.receive())["result"] == "send-error:3"
    await peer.leave()


async def test_base64_without_padding_is_accepted_as_javas_decoder_does(topic: FakeTopic, gateway: Gateway) -> None:
    peer = await gateway.connect(URL)
    peer.send({"payload": "YQ"})
    assert (await peer.receive())["result"] == "ok"
    assert topic.messages[0].data == b"a"
    await peer.leave()


@pytest.mark.parametrize("settings", [{"producer_window_messages": 2}, {"producer_window_bytes": 8}])
async def test_the_window_bounds_what_is_under_way(settings: dict[str, int]) -> None:
    """I15: beyond the window no further frame is read."""

    async with Gateway(**settings) as gateway:
        gateway.world.add()
        gateway.world.held = []
        peer = await gateway.connect(URL)
        for number in range(5):
            peer.send({"payload": _b64(b"1234"), "context": str(number)})
        await settle()
        assert len(gateway.world.held) == 2
        gateway.world.release(1)
        assert (await peer.receive())["context"] == "0"
        await settle()
        assert len(gateway.world.held) == 2
        gateway.world.release(2)
        await settle()
        gateway.world.release(2)
        assert [(await peer.receive())["context"] for _ in range(4)] == ["1", "2", "3", "4"]
        await peer.leave()


async def test_a_peer_that_leaves_with_messages_under_way_leaves_nothing_behind(gateway: Gateway) -> None:
    topic = gateway.world.add()
    gateway.world.held = []
    gateway.world.send_errors[b"b"] = PersistenceError("no bookies")
    peer = await gateway.connect(URL)
    peer.send({"payload": _b64(b"a")})
    peer.send({"payload": _b64(b"b")})
    await settle()
    await peer.leave()
    gateway.world.release(1)
    await settle()
    assert topic.producers == 0


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/ws/v2/producer/persistent/public/default/unknown", 404, "topic"),
        ("/ws/v2/producer/persistent/public/default/%20", 400, "topic"),
        ("/ws/v2/producer/non-persistent/public/default/t", 404, "topic"),
        ("/ws/v2/producer/else/public/default/t", 400, "domain"),
        ("/ws/v2/producer/persistent/public/default", 400, "path"),
        ("/ws/v1/anything", 400, "path"),
        (f"{URL}?batchingMaxMessages=0", 400, "batchingMaxMessages"),
        (f"{URL}?batchingMaxMessages=x", 400, "batchingMaxMessages"),
        (f"{URL}?batchingEnabled=maybe", 400, "batchingEnabled"),
        (f"{URL}?hashingScheme=Boost", 400, "hashingScheme"),
        (f"{URL}?messageRoutingMode=Odd", 400, "messageRoutingMode"),
        (f"{URL}?compressionType=RAR", 400, "compressionType"),
        (f"{URL}?encryptionKeys=a", 501, "encryptionKeys"),
        (f"{URL}?accessMode=exclusive", 400, "accessMode"),
        (f"{URL}?maxPendingMessages=0", 400, "maxPendingMessages"),
    ],
)
async def test_an_upgrade_that_cannot_be_served_is_a_plain_http_status(
    gateway: Gateway, path: str, status: int, field: str
) -> None:
    gateway.world.add()
    peer = await gateway.connect(path)
    assert (peer.status, peer.body["field"]) == (status, field)
    assert peer.body["reason"]


async def test_sessions_are_bounded_and_their_slots_come_back() -> None:
    """I15."""

    async with Gateway(websocket_sessions_max=1) as gateway:
        gateway.world.add()
        first = await gateway.connect(URL)
        second = await gateway.connect(URL)
        assert (second.status, second.body["limit"], second.body["advice"]) == (429, "1 sessions", "retry")
        await first.leave()
        third = await gateway.connect(URL)
        assert third.status == 101
        await third.leave()


async def test_the_codec_follows_the_urls_parameter(gateway: Gateway) -> None:
    gateway.world.add()
    for query, expected in [("", "none"), *((f"?compressionType={name.upper()}", name) for name in CODECS)]:
        peer = await gateway.connect(URL + query)
        assert gateway.world.producer_options["compression"] == expected
        await peer.leave()


async def test_batching_follows_the_urls_parameters(gateway: Gateway) -> None:
    gateway.world.add()
    for query, expected in [
        ("", (1000, 1)),
        ("?batchingEnabled=true&batchingMaxMessages=50&batchingMaxPublishDelay=7", (50, 7)),
        ("?batchingEnabled=false&batchingMaxMessages=50", (1, 0)),
    ]:
        peer = await gateway.connect(URL + query)
        options = gateway.world.producer_options
        assert (options["batch_messages"], options["linger_ms"]) == expected
        assert options["batch_by_key"], "a key stays at one consumer of a Key_Shared subscription"
        await peer.leave()


async def test_a_failure_of_our_own_ends_the_session_with_1011(gateway: Gateway) -> None:
    gateway.world.add()
    gateway.world.send_errors[b"x"] = RuntimeError("a bug")  # type: ignore[assignment]
    peer = await gateway.connect(URL)
    peer.send({"payload": _b64(b"x")})
    code, _ = await peer.closed()
    assert code == 1011


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", "shared"),
        ("?accessMode=Exclusive", "exclusive"),
        ("?accessMode=ExclusiveWithFencing", "exclusive_with_fencing"),
    ],
)
async def test_a_producer_asks_for_the_topic_as_its_url_says(gateway: Gateway, query: str, mode: str) -> None:
    gateway.world.add()
    peer = await gateway.connect(URL + query)
    assert (peer.status, gateway.world.producer_options["access_mode"]) == (101, mode)
    await peer.leave()


class Turn:
    """A world that opens producers when the test says so."""

    def __init__(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        self.came, self.given_up = asyncio.Event(), False
        self.error: HeliographError | None = None
        self._open = gateway.world.producer
        monkeypatch.setattr(gateway.world, "producer", self.producer)

    async def producer(self, topic: str, **options: Any) -> Any:
        try:
            await self.came.wait()
        except asyncio.CancelledError:
            self.given_up = True
            raise
        if self.error is not None:
            raise self.error
        return await self._open(topic, **options)


async def test_a_producer_that_waits_for_its_turn_is_connected_meanwhile(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, turn = gateway.world.add(), Turn(gateway, monkeypatch)
    peer = await gateway.connect(f"{URL}?accessMode=WaitForExclusive")
    assert peer.status == 101
    for number in range(2 * EARLY_FRAMES_MAX):
        peer.send({"payload": _b64(b"early"), "context": str(number)})
    await settle()
    assert peer.is_quiet()
    assert topic.messages == []
    turn.came.set()
    contexts = [(await peer.receive())["context"] for _ in range(2 * EARLY_FRAMES_MAX)]
    assert contexts == [str(number) for number in range(2 * EARLY_FRAMES_MAX)]
    await peer.leave()
    assert topic.producers == 0


async def test_a_peer_that_leaves_before_its_turn_gives_it_up(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, turn = gateway.world.add(), Turn(gateway, monkeypatch)
    peer = await gateway.connect(f"{URL}?accessMode=WaitForExclusive")
    peer.send({"payload": _b64(b"early")})
    await settle()
    await peer.leave()
    assert turn.given_up
    assert topic.messages == []


async def test_a_turn_that_cannot_come_ends_the_session_with_the_reason(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway.world.add()
    turn = Turn(gateway, monkeypatch)
    turn.error = TopicTerminatedError("the topic was terminated")
    turn.came.set()
    peer = await gateway.connect(f"{URL}?accessMode=WaitForExclusive")
    assert await peer.closed() == (1008, "the topic was terminated")


@pytest.mark.parametrize(
    ("form", "payload", "stored"),
    [
        ("text", "grüße", "grüße".encode()),
        ("json", {"b": ["ü", 1.5], "a": None}, '{"b":["ü",1.5],"a":null}'.encode()),
        ("json", "text", b'"text"'),
        ("json", None, None),
        ("text", None, None),
        ("base64", None, None),
        ("base64", "aGk=", b"hi"),
    ],
)
async def test_payloads_have_the_form_that_the_url_names(
    topic: FakeTopic, gateway: Gateway, form: str, payload: object, stored: bytes | None
) -> None:
    peer = await gateway.connect(f"{URL}?payloadFormat={form}")
    reader = await gateway.connect(f"/ws/v2/reader/{FLIGHTS_PATH}?messageId=earliest&payloadFormat={form}")
    consumer = await gateway.connect(f"/ws/v2/consumer/{FLIGHTS_PATH}/s?payloadFormat={form}")
    peer.send({"payload": payload, "context": "1"})
    assert (await peer.receive())["result"] == "ok"
    assert [message.value for message in topic.messages] == [stored]
    for source in (reader, consumer):
        frame = await source.receive()
        assert (frame["payload"], "payloadBase64" in frame) == (payload, False)
    topic.publish(b"\xff", None, {}, None)
    for source in (reader, consumer):
        frame = await source.receive()
        shown = frame.get("payloadBase64") if form != "base64" else frame["payload"]
        assert shown == "/w=="
    topic.publish(b"[1e400]", None, {}, None)  # JSON, but no number that a reader has
    for source in (reader, consumer):
        frame = await source.receive()
        assert "Infinity" not in json.dumps(frame)
        shown = base64.b64decode(frame.get("payloadBase64") or frame["payload"]) if form != "text" else frame["payload"]
        assert shown == (b"[1e400]" if form != "text" else "[1e400]")
    for each in (peer, reader, consumer):
        await each.leave()


@pytest.mark.parametrize(
    ("form", "frame", "code"),
    [
        ("text", '{"payload": 7}', 7),
        ("text", '{"payload": "\\ud800"}', 3),
        ("json", '{"payload": NaN}', 3),
        ("json", '{"payload": ["\\ud800"]}', 3),
        ("json", '{"key": "k"}', 7),
    ],
)
async def test_a_payload_that_has_no_such_form_is_answered(gateway: Gateway, form: str, frame: str, code: int) -> None:
    topic = gateway.world.add()
    peer = await gateway.connect(f"{URL}?payloadFormat={form}")
    peer.send(frame)
    assert (await peer.receive())["result"] == f"send-error:{code}"
    assert topic.messages == []
    refused = await gateway.connect(f"{URL}?payloadFormat=xml")
    assert (refused.status, refused.body["field"]) == (400, "payloadFormat")
    await peer.leave()
