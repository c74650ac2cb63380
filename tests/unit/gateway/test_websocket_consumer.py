"""Pulsar's WebSocket consumer and reader: delivery, flow control, commands, bad frames."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import pytest

from heliograph.base.errors import ConflictError, ConnectionLostError, TopicNotFoundError
from heliograph.protocol.message_id import MessageId
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.peer import Peer
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway, settle

URL = f"/ws/v2/consumer/{FLIGHTS_PATH}/audit"
READER = f"/ws/v2/reader/{FLIGHTS_PATH}"
EARLY = "subscriptionInitialPosition=Earliest"


def _topic_with(gateway: Gateway, count: int) -> FakeTopic:
    topic = gateway.world.add()
    for number in range(count):
        topic.publish(str(number).encode(), None, {}, None)
    return topic


def _value(frame: dict[str, Any]) -> str:
    return base64.b64decode(frame["payload"]).decode()


async def _values(peer: Peer, count: int) -> list[str]:
    return [_value(await peer.receive()) for _ in range(count)]


def _id(number: int) -> str:
    return MessageId(100, number).to_base64()


async def test_a_message_has_pulsars_shape(topic: FakeTopic, gateway: Gateway) -> None:
    topic.publish(b"a", "N1", {"p": "v"}, 1357034400000)
    topic.publish(b"b", None, {}, None)
    peer = await gateway.connect(f"{URL}?{EARLY}")
    assert await peer.receive() == {
        "messageId": _id(0),
        "payload": "YQ==",
        "properties": {"p": "v"},
        "publishTime": "2023-11-14T22:13:20.123Z",
        "eventTime": "2013-01-01T10:00:00.000Z",
        "redeliveryCount": 0,
        "key": "N1",
    }
    second = await peer.receive()
    assert "key" not in second
    assert "eventTime" not in second
    await peer.leave()
    assert gateway.world.consumers[0].closed


async def test_delivery_pauses_at_the_queue_size_and_goes_on_with_acks_and_nacks(gateway: Gateway) -> None:
    topic = _topic_with(gateway, 5)
    peer = await gateway.connect(f"{URL}?{EARLY}&receiverQueueSize=2")
    assert await _values(peer, 2) == ["0", "1"]
    await settle()
    assert peer.is_quiet()
    peer.send({"messageId": _id(0)})
    assert await _values(peer, 1) == ["2"]
    peer.send({"messageId": _id(0)})  # acknowledged before: frees nothing
    await settle()
    assert peer.is_quiet()
    peer.send({"type": "negativeAcknowledge", "messageId": _id(1)})
    assert await _values(peer, 1) == ["3"]
    await settle()
    assert topic.subscriptions["audit"].acknowledged == [MessageId(100, 0), MessageId(100, 0)]
    for number in (2, 3):
        peer.send({"messageId": _id(number), "type": "something else"})
    last = [await peer.receive() for _ in range(2)]
    assert [(_value(frame), frame["redeliveryCount"]) for frame in last] == [("4", 0), ("1", 1)]
    await peer.leave()


async def test_acknowledgements_that_arrive_together_share_one_write(gateway: Gateway) -> None:
    topic = _topic_with(gateway, 100)
    peer = await gateway.connect(f"{URL}?{EARLY}")
    await _values(peer, 100)
    for number in range(100):
        peer.send({"messageId": _id(number)})
    peer.send({"messageId": _id(99), "context": "last"})
    assert await peer.receive() == {"result": "ok", "context": "last"}
    subscription = topic.subscriptions["audit"]
    assert len(subscription.acknowledged) == 101
    assert subscription.ack_calls < 20
    await peer.leave()


async def test_an_ack_is_confirmed_only_once_it_is_durable(gateway: Gateway) -> None:
    """I11."""
    _topic_with(gateway, 1)
    peer = await gateway.connect(f"{URL}?{EARLY}")
    await peer.receive()
    gateway.world.ack_error = ConnectionLostError("the broker is gone")
    peer.send({"messageId": _id(0), "context": "c"})
    assert await peer.receive() == {
        "result": "command-error:8", "errorMsg": "the broker is gone", "context": "c"
    }  # fmt: skip
    gateway.world.ack_error = None
    peer.send({"messageId": _id(0), "context": "d"})
    assert await peer.receive() == {"result": "ok", "context": "d"}
    await peer.leave()


async def test_pull_mode_delivers_against_permits_only(gateway: Gateway) -> None:
    _topic_with(gateway, 5)
    peer = await gateway.connect(f"{URL}?{EARLY}&pullMode=true")
    await settle()
    assert peer.is_quiet()
    peer.send({"type": "permit", "permitMessages": 2})
    assert await _values(peer, 2) == ["0", "1"]
    peer.send({"messageId": _id(0)})
    await settle()
    assert peer.is_quiet()
    peer.send({"type": "permit", "permitMessages": 100})
    assert await _values(peer, 3) == ["2", "3", "4"]
    await peer.leave()


async def test_permits_mean_nothing_in_push_mode(gateway: Gateway) -> None:
    _topic_with(gateway, 3)
    peer = await gateway.connect(f"{URL}?{EARLY}&receiverQueueSize=0")
    assert await _values(peer, 1) == ["0"]
    peer.send({"type": "permit", "permitMessages": 2})
    await settle()
    assert peer.is_quiet()
    await peer.leave()


async def test_a_cumulative_ack_frees_the_window(gateway: Gateway) -> None:
    topic = _topic_with(gateway, 5)
    peer = await gateway.connect(f"{URL}?{EARLY}&receiverQueueSize=3")
    await _values(peer, 3)
    peer.send({"type": "cumulativeAck", "messageId": _id(1), "context": 9})
    frames = [await peer.receive() for _ in range(3)]
    assert {"result": "ok", "context": "9"} in frames
    assert [_value(frame) for frame in frames if "payload" in frame] == ["3", "4"]
    assert topic.subscriptions["audit"].acknowledged == [MessageId(100, 0), MessageId(100, 1)]
    await peer.leave()


@pytest.mark.parametrize(
    ("seek", "first"),
    [
        ({"messageId": "earliest"}, "0"),
        ({"messageId": _id(3)}, "4"),
        ({"messageId": _id(3), "inclusive": True}, "3"),
        ({"timestamp": 0}, "0"),
    ],
)
async def test_nothing_from_before_a_seek_comes_after_its_answer(
    gateway: Gateway, seek: dict[str, Any], first: str
) -> None:
    _topic_with(gateway, 5)
    peer = await gateway.connect(f"{URL}?{EARLY}&receiverQueueSize=5")
    await _values(peer, 5)
    peer.send({"type": "seek", "context": "s", **seek})
    assert await peer.receive() == {"result": "ok", "context": "s"}
    assert await _values(peer, 1) == [first]
    await peer.leave()


async def test_a_seek_that_fails_leaves_delivery_as_it_was(gateway: Gateway) -> None:
    _topic_with(gateway, 4)
    peer = await gateway.connect(f"{URL}?{EARLY}&receiverQueueSize=2")
    await _values(peer, 2)
    gateway.world.seek_error = ConnectionLostError("gone")
    peer.send({"type": "seek", "messageId": "latest"})
    assert (await peer.receive())["result"] == "command-error:8"
    peer.send({"messageId": _id(0)})
    peer.send({"messageId": _id(1)})
    assert await _values(peer, 2) == ["2", "3"]
    await peer.leave()


@pytest.mark.parametrize("mode", ["receiverQueueSize=4", "pullMode=true"])
async def test_a_seek_that_fails_under_a_slow_peer_loses_no_message(gateway: Gateway, mode: str) -> None:
    _topic_with(gateway, 4)
    peer = Peer(gateway.app, f"{URL}?{EARLY}&{mode}", frames_waiting_max=1)
    await peer.upgrade()
    peer.send({"type": "permit", "permitMessages": 4})
    await settle()  # one frame waits for the peer, the next one waits behind it
    gateway.world.seek_error = ConnectionLostError("gone")
    peer.send({"type": "seek", "messageId": "latest"})
    await settle()
    frames = [await peer.receive() for _ in range(5)]
    assert [_value(frame) for frame in frames if "payload" in frame] == ["0", "1", "2", "3"]
    await peer.leave()


async def test_delivery_goes_on_when_unsubscribing_fails(gateway: Gateway) -> None:
    topic = _topic_with(gateway, 0)
    peer = await gateway.connect(URL)
    gateway.world.unsubscribe_error = ConflictError("others are on it")
    peer.send({"type": "unsubscribe", "context": "u"})
    assert (await peer.receive())["errorMsg"] == "others are on it"
    topic.publish(b"more", None, {}, None)
    assert await _values(peer, 1) == ["more"]
    gateway.world.unsubscribe_error = None
    peer.send({"type": "unsubscribe", "context": "v"})
    assert await peer.receive() == {"result": "ok", "context": "v"}
    await settle()
    assert peer.is_quiet(), "the session goes on"
    await peer.leave()


async def test_unsubscribe_and_end_of_topic(gateway: Gateway) -> None:
    topic = _topic_with(gateway, 0)
    peer = await gateway.connect(URL)
    peer.send({"type": "isEndOfTopic"})
    assert await peer.receive() == {"endOfTopic": False}
    await gateway.world.terminate_topic(topic.name)
    peer.send({"type": "isEndOfTopic"})
    assert await peer.receive() == {"endOfTopic": True}
    peer.send({"type": "unsubscribe", "context": "u"})
    assert await peer.receive() == {"result": "ok", "context": "u"}
    assert topic.subscriptions == {}
    await peer.leave()


BAD_COMMANDS: Sequence[tuple[Any, int]] = [
    ("not json", 3),
    ("7", 3),
    ({}, 7),
    ({"messageId": "***"}, 7),
    ({"messageId": 5}, 7),
    ({"messageId": "AAAA"}, 7),
    ({"type": "negativeAcknowledge"}, 7),
    ({"type": "cumulativeAck", "messageId": ""}, 7),
    ({"type": "permit"}, 7),
    ({"type": "permit", "permitMessages": 0}, 7),
    ({"type": "permit", "permitMessages": True}, 7),
    ({"type": "seek"}, 7),
    ({"type": "seek", "messageId": "latest", "timestamp": 5}, 7),
    ({"type": "seek", "timestamp": -5}, 7),
    ({"type": "seek", "messageId": "somewhere"}, 7),
]


@pytest.mark.parametrize(("frame", "code"), BAD_COMMANDS)
async def test_a_bad_frame_is_answered_and_the_session_goes_on(gateway: Gateway, frame: Any, code: int) -> None:
    topic = _topic_with(gateway, 1)
    peer = await gateway.connect(f"{URL}?{EARLY}")
    await peer.receive()
    peer.send(frame)
    answer = await peer.receive()
    assert answer["result"] == f"command-error:{code}"
    assert answer["errorMsg"]
    assert topic.subscriptions["audit"].acknowledged == []
    peer.send({"messageId": _id(0), "context": "after"})
    assert (await peer.receive())["result"] == "ok"
    await peer.leave()


@pytest.mark.parametrize(
    ("path", "status", "field"),
    [
        ("/ws/v2/consumer/persistent/public/default/unknown/s", 404, "topic"),
        ("/ws/v2/consumer/persistent/public/default/flights", 400, "path"),
        ("/ws/v2/consumer/persistent/public/default/flights/%20", 400, "subscription"),
        ("/ws/v2/consumer/persistent/public/default/flights/a/b", 400, "path"),
        (f"{URL}?subscriptionType=exclusive", 400, "subscriptionType"),
        (f"{URL}?subscriptionInitialPosition=first", 400, "subscriptionInitialPosition"),
        (f"{URL}?subscriptionMode=NonDurable", 501, "subscriptionMode"),
        (f"{URL}?receiverQueueSize=-1", 400, "receiverQueueSize"),
        (f"{URL}?pullMode=1", 400, "pullMode"),
        (f"{URL}?subscriptionType=Shared&deadLetterTopic=dlq", 400, "deadLetterTopic"),
        (f"{URL}?subscriptionType=Shared&maxRedeliverCount=1&deadLetterTopic=a/b", 400, "deadLetterTopic"),
        (f"{URL}?subscriptionType=Shared&maxRedeliverCount=0", 400, "maxRedeliverCount"),
        (f"{URL}?subscriptionType=Failover&maxRedeliverCount=1", 400, "maxRedeliverCount"),
        (f"{URL}?ackTimeoutMillis=999", 400, "ackTimeoutMillis"),
        (f"{URL}?priorityLevel=high", 400, "priorityLevel"),
        (f"{READER}?messageId=nowhere", 400, "messageId"),
        ("/ws/v3/consumer/s", 400, "topics"),
        ("/ws/v3/consumer/s?topics=flights&topicsPattern=x", 400, "topics"),
        ("/ws/v3/consumer/s?topicsPattern=flights", 400, "topicsPattern"),
        ("/ws/v3/consumer/s?topicsPattern=public/default/(", 400, "topicsPattern"),
        ("/ws/v3/consumer/s?topicsPattern=public/default/none.*", 404, "topicsPattern"),
        (f"/ws/v3/consumer/s?topicsPattern=public/default/{'x' * 1_001}", 400, "topicsPattern"),
        ("/ws/v3/consumer/s?topicsPattern=public/default/(a)%5C1", 400, "topicsPattern"),
        ("/ws/v3/consumer/s?topics=non-persistent://public/default/x", 404, "topic"),
    ],
)
async def test_an_upgrade_that_cannot_be_served_is_a_plain_http_status(
    gateway: Gateway, path: str, status: int, field: str
) -> None:
    gateway.world.add()
    peer = await gateway.connect(path)
    assert (peer.status, peer.body["field"]) == (status, field)


async def test_redelivery_parameters_become_options_of_the_client(gateway: Gateway) -> None:
    gateway.world.add()
    query = "subscriptionType=Key_Shared&maxRedeliverCount=3&deadLetterTopic=letters&ackTimeoutMillis=30000"
    peer = await gateway.connect(f"{URL}?{query}")
    options = gateway.world.consumers[0].options
    assert (options["type"], options["max_redeliver"], options["ack_timeout_ms"]) == ("key_shared", 3, 30_000)
    assert options["dead_letter_topic"] == "persistent://public/default/letters"
    await peer.leave()


async def test_a_busy_subscription_is_409(gateway: Gateway) -> None:
    gateway.world.add()
    first = await gateway.connect(URL)
    second = await gateway.connect(URL)
    assert (first.status, second.status) == (101, 409)
    await first.leave()


async def test_options_reach_the_client(gateway: Gateway) -> None:
    gateway.world.add()
    query = "subscriptionType=Key_Shared&consumerName=c1&receiverQueueSize=5000&negativeAckRedeliveryDelay=10"
    peer = await gateway.connect(f"{URL}?{query}&priorityLevel=2&unknown=1")
    assert gateway.world.consumers[0].options == {
        "type": "key_shared",
        "initial_position": "latest",
        "receiver_queue": 1000,
        "receiver_bytes_max": 16 << 20,
        "name": "c1",
        "ack_timeout_ms": 0,
        "nack_delay_ms": 10,
        "priority_level": 2,
    }
    await peer.leave()


async def test_no_pattern_freezes_the_gateway(gateway: Gateway) -> None:
    """Backtracking would try 2**30 ways to match the name, and answer nobody meanwhile."""
    gateway.world.add(f"persistent://public/default/{'a' * 45}-")
    async with asyncio.timeout(60):
        peer = await gateway.connect("/ws/v3/consumer/s?topicsPattern=public/default/(a|aa)%2B")
    assert (peer.status, peer.body["field"]) == (404, "topicsPattern")


@pytest.mark.parametrize(
    "query", ["topics=one,persistent://public/default/two", "topicsPattern=public/default/(one|two)"]
)
async def test_a_consumer_of_several_topics_acknowledges_each_on_its_own(gateway: Gateway, query: str) -> None:
    topics = [gateway.world.add(f"persistent://public/default/{name}") for name in ("one", "two", "three")]
    for topic in topics:
        topic.publish(topic.name.encode(), None, {}, None)
    peer = await gateway.connect(f"/ws/v3/consumer/audit?{query}&{EARLY}")
    frames = [await peer.receive() for _ in range(2)]
    assert sorted(_value(frame).rsplit("/", 1)[1] for frame in frames) == ["one", "two"]
    for frame in frames:
        peer.send({"messageId": frame["messageId"], "context": "x"})
        assert (await peer.receive())["result"] == "ok"
    acknowledged = [len(topic.subscriptions["audit"].acknowledged) for topic in topics[:2]]
    assert acknowledged == [1, 1]
    assert topics[2].subscriptions == {}
    await peer.leave()


async def test_a_consumer_that_ends_takes_the_session_with_it(gateway: Gateway) -> None:
    _topic_with(gateway, 0)
    peer = await gateway.connect(URL)
    consumer = gateway.world.consumers[0]

    async def fails(max_messages: int, timeout: float | None = None) -> list[Any]:
        raise TopicNotFoundError("the topic was deleted")

    consumer.receive_many = fails  # type: ignore[method-assign]
    topic = gateway.world.topics["persistent://public/default/flights"]
    topic.publish(b"x", None, {}, None)
    await peer.receive()
    assert await peer.closed() == (1008, "the topic was deleted")


async def test_a_reader_starts_where_it_is_told_and_needs_confirmations(gateway: Gateway) -> None:
    _topic_with(gateway, 5)
    peer = await gateway.connect(f"{READER}?messageId=earliest&receiverQueueSize=2")
    assert await _values(peer, 2) == ["0", "1"]
    await settle()
    assert peer.is_quiet()
    peer.send({"type": "isEndOfTopic"})
    assert await peer.receive() == {"endOfTopic": False}
    peer.send("no json")
    assert (await peer.receive())["result"] == "command-error:3"
    await settle()
    assert peer.is_quiet()  # neither of the two counted as a confirmation
    peer.send({"messageId": "whatever"})
    assert await _values(peer, 1) == ["2"]
    await peer.leave()

    behind = await gateway.connect(f"{READER}?messageId={_id(3)}")
    assert await _values(behind, 1) == ["4"]
    await behind.leave()


async def test_a_peer_that_vanishes_while_messages_flow_is_cleaned_up(gateway: Gateway) -> None:
    topic = _topic_with(gateway, 3)
    peer = await gateway.connect(f"{URL}?{EARLY}")
    await asyncio.sleep(0)
    await peer.leave()
    assert topic.subscriptions["audit"].consumers == 0
    assert len(topic.subscriptions["audit"].pending) == 3  # none was acknowledged, so all are delivered again
