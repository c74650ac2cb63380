"""Statistics of topics: rates of a minute, the same for every reader, and the types that clients in Go parse."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest

from heliograph.actors.broker.topic.stats import merged_stats, sample_rates, topic_stats
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import ENTRY, Client, LoneBroker, T
from tests.unit.broker.world import turns

NAME = TopicName.parse("orders")
MESSAGES = 2  # of an entry
COUNT, RATE, FLAG, TEXT, TEXTS = int, float, bool, str, dict
# The fields of pulsar-client-go's administrative structures, by the types that its JSON decoder takes.
OF_TOPIC: dict[str, type] = {
    "backlogSize": COUNT, "msgInCounter": COUNT, "msgOutCounter": COUNT, "msgRateIn": RATE, "msgRateOut": RATE,
    "msgThroughputIn": RATE, "msgThroughputOut": RATE, "averageMsgSize": RATE, "storageSize": COUNT,
    "deduplicationStatus": TEXT, "topicCreationTimeStamp": COUNT,
    "lastPublishTimeStamp": COUNT,
}  # fmt: skip
OF_PUBLISHER: dict[str, type] = {
    "accessMode": TEXT, "producerId": COUNT, "msgRateIn": RATE, "msgThroughputIn": RATE, "averageMsgSize": RATE,
    "supportsPartialProducer": FLAG, "producerName": TEXT, "address": TEXT, "connectedSince": TEXT,
    "clientVersion": TEXT, "metadata": TEXTS,
}  # fmt: skip
OF_SUBSCRIPTION: dict[str, type] = {
    "blockedSubscriptionOnUnackedMsgs": FLAG, "isReplicated": FLAG, "msgRateOut": RATE, "msgThroughputOut": RATE,
    "msgRateRedeliver": RATE, "msgRateExpired": RATE, "msgBacklog": COUNT, "msgBacklogNoDelayed": COUNT,
    "backlogMessages": COUNT, "backlogEntriesUncounted": COUNT,
    "msgDelayed": COUNT, "unackedMessages": COUNT, "type": TEXT, "activeConsumerName": TEXT, "bytesOutCounter": COUNT,
    "msgOutCounter": COUNT, "messageAckRate": RATE, "backlogSize": COUNT, "totalMsgExpired": COUNT,
    "lastExpireTimestamp": COUNT, "isDurable": FLAG, "allowOutOfOrderDelivery": FLAG,
    "nonContiguousDeletedMessagesRanges": COUNT, "subscriptionProperties": TEXTS,
    "consumersAfterMarkDeletePosition": TEXTS,
}  # fmt: skip
OF_CONSUMER: dict[str, type] = {
    "blockedConsumerOnUnackedMsgs": FLAG, "availablePermits": COUNT, "unackedMessages": COUNT, "msgRateOut": RATE,
    "msgThroughputOut": RATE, "msgRateRedeliver": RATE, "consumerName": TEXT, "bytesOutCounter": COUNT,
    "msgOutCounter": COUNT, "avgMessagesPerEntry": COUNT, "address": TEXT, "connectedSince": TEXT,
    "clientVersion": TEXT, "metadata": TEXTS, "lastConsumedFlowTimestamp": COUNT, "lastConsumedTimestamp": COUNT,
    "lastAckedTimestamp": COUNT,
}  # fmt: skip


async def connected(lone: LoneBroker, entries: int) -> Client:
    """Return a client with a producer, which has sent some entries, and a consumer, which was given all of them."""
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(
        topic=str(NAME), subscription="billing", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1,
        metadata=[pb.KeyValue(key="app", value="bills")],
    )  # fmt: skip
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=1_000)))
    command = pb.CommandProducer(topic=str(NAME), producer_id=1, request_id=2)
    command.metadata.add(key="app", value="orders")
    client.say(T(type=T.PRODUCER, producer=command))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    for number in range(entries):
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=MESSAGES * number)), ENTRY)
    await turns(lambda: sum(answer.type == T.MESSAGE for answer in client.transport.answers) == entries)
    return client


def check(found: dict[str, Any], types: dict[str, type]) -> None:
    for name, kind in types.items():
        assert type(found[name]) is kind, (name, found[name])
        if kind is dict:
            assert all(isinstance(value, str) for value in found[name].values())


async def test_statistics_have_the_types_that_clients_parse(lone: LoneBroker) -> None:
    client = await connected(lone, 3)
    topic = await lone.broker.topics.get(NAME)
    stats = topic_stats(topic, "b")
    check(stats, OF_TOPIC)
    (publisher,), (subscription,) = stats["publishers"], stats["subscriptions"].values()
    check(publisher, OF_PUBLISHER)
    check(subscription, OF_SUBSCRIPTION)
    (consumer,) = subscription["consumers"]
    check(consumer, OF_CONSUMER)
    assert (publisher["metadata"], consumer["metadata"]) == ({"app": "orders"}, {"app": "bills"})
    assert consumer["avgMessagesPerEntry"] == MESSAGES
    times = [consumer[f"last{what}Timestamp"] for what in ("ConsumedFlow", "Consumed", "Acked")]
    assert 0 < times[0] <= times[1], "asked for messages, then got them"
    assert times[2] == 0, "acknowledged none"
    for one in (publisher, consumer):
        since = datetime.datetime.fromisoformat(one["connectedSince"])
        assert since.tzinfo is not None
        assert abs(since.timestamp() - time.time()) < 600
    empty = topic_stats(await lone.broker.topics.get(TopicName.parse("empty"), may_create=True), "b")
    check(empty, OF_TOPIC)
    merged = merged_stats({"one": stats, "two": stats})
    numbers: dict[str, type] = {name: kind for name, kind in OF_TOPIC.items() if kind in (int, float)}
    check(merged, numbers)
    assert merged["topicCreationTimeStamp"] == stats["topicCreationTimeStamp"]
    assert empty["lastPublishTimeStamp"] == 0
    assert abs(stats["lastPublishTimeStamp"] / 1000 - time.time()) < 600
    assert merged["lastPublishTimeStamp"] == stats["lastPublishTimeStamp"]
    assert merged["subscriptions"]["billing"]["consumersAfterMarkDeletePosition"] == {}
    assert merged["msgInCounter"] == 2 * stats["msgInCounter"]
    client.leave()


async def test_rates_are_of_the_last_minute_and_looking_changes_nothing(
    lone: LoneBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connected(lone, 30)
    topic = await lone.broker.topics.get(NAME)
    loaded = time.monotonic()
    now = [loaded + 10.0]
    monkeypatch.setattr("heliograph.actors.broker.topic.stats.time.monotonic", lambda: now[0])

    def rates() -> list[float]:
        stats = topic_stats(topic, "b")
        (publisher,), (subscription,) = stats["publishers"], stats["subscriptions"].values()
        (consumer,) = subscription["consumers"]
        return [
            stats["msgRateIn"], stats["msgRateOut"], publisher["msgRateIn"], subscription["msgRateOut"],
            consumer["msgRateOut"],
        ]  # fmt: skip

    first = rates()
    assert first == pytest.approx([30 * MESSAGES / 10] * 5, rel=0.2), "since the topic was loaded, not one second"
    assert rates() == first
    for _ in range(4):
        sample_rates(topic, now[0])
        now[0] += 15
    assert rates() == pytest.approx([30 * MESSAGES / 70] * 5, rel=0.2)
    await lone.broker.topics.sample_rates()  # the same scan of all topics
    assert rates() == [0.0] * 5, "nothing came in the last minute"
    client.leave()
