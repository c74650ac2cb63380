"""A topic that is deleted and created again is another topic: a client that resumes with what it knows of the old one
gets everything of the new one, and is not taken for a duplicate or a former owner."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.topic.deletion import delete_topic
from heliograph.metadata import codec
from heliograph.metadata.model import TopicPolicies
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns

TOPIC = "orders"
NAME = TopicName.parse(TOPIC)


def last(client: Client, kind: int) -> pb.BaseCommand:
    return next(answer for answer in reversed(client.transport.answers) if answer.type == kind)


def count(client: Client, kind: int) -> int:
    return sum(answer.type == kind for answer in client.transport.answers)


async def become_producer(client: Client, **options: Any) -> pb.CommandProducerSuccess:
    wanted = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, **options)
    before = count(client, T.PRODUCER_SUCCESS) + count(client, T.ERROR)
    client.say(T(type=T.PRODUCER, producer=wanted))
    await turns(lambda: count(client, T.PRODUCER_SUCCESS) + count(client, T.ERROR) > before)
    return last(client, T.PRODUCER_SUCCESS).producer_success


async def publish(client: Client, *sequence_ids: int) -> list[pb.MessageIdData]:
    before = count(client, T.SEND_RECEIPT)
    for sequence_id in sequence_ids:
        section = encode_entry_of("p", sequence_id, 1, [b"x"], None)
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=sequence_id)), section)
    await turns(lambda: count(client, T.SEND_RECEIPT) == before + len(sequence_ids))
    receipts = [answer.send_receipt for answer in client.transport.answers if answer.type == T.SEND_RECEIPT]
    return [receipt.message_id for receipt in receipts[before:]]


async def subscribe(client: Client, request_id: int, **options: Any) -> None:
    wanted = pb.CommandSubscribe(
        topic=TOPIC,
        subscription="s",
        sub_type=pb.CommandSubscribe.EXCLUSIVE,
        consumer_id=1,
        request_id=request_id,
        **options,
    )
    before = count(client, T.SUCCESS)
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: count(client, T.SUCCESS) > before)
    client.say(T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=100)))


async def remake(lone: LoneBroker) -> None:
    broker = lone.broker
    await delete_topic(NAME, broker.topics, broker._catalog, broker._store, lone.ledgers, force=True)
    await broker._catalog.ensure(NAME)


def delivered(client: Client) -> list[tuple[int, int]]:
    return [
        (answer.message.message_id.ledger_id, answer.message.message_id.entry_id)
        for answer in client.transport.answers
        if answer.type == T.MESSAGE
    ]


@pytest.mark.parametrize("place", ["in the middle", "at the end", "after the end"])
async def test_a_reader_gets_all_of_the_new_topic(lone: LoneBroker, place: str) -> None:
    producer, reader = Client(lone.broker), Client(lone.broker)
    await become_producer(producer)
    old = await publish(producer, *range(5))
    start = {"in the middle": old[1], "at the end": old[-1]}.get(place)
    if start is None:
        start = pb.MessageIdData(ledger_id=old[-1].ledger_id, entry_id=old[-1].entry_id + 9)
    await remake(lone)
    await become_producer(producer)
    new = await publish(producer, *range(3))
    await subscribe(reader, 1, durable=False, start_message_id=start)
    await turns(lambda: len(delivered(reader)) == 3)
    assert delivered(reader) == [(one.ledger_id, one.entry_id) for one in new]
    producer.leave()
    reader.leave()


async def test_a_seek_and_acknowledgements_with_old_ids_skip_nothing(lone: LoneBroker) -> None:
    producer, consumer = Client(lone.broker), Client(lone.broker)
    await become_producer(producer)
    old = await publish(producer, *range(5))
    await remake(lone)
    await become_producer(producer)
    await subscribe(consumer, 1)
    await publish(producer, *range(3))
    await turns(lambda: len(delivered(consumer)) == 3)
    kind = pb.CommandAck.CUMULATIVE
    consumer.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=kind, message_id=[old[-1]], request_id=5)))
    await turns(lambda: consumer.answer(T.ACK_RESPONSE))
    topic = lone.broker.topics.find(NAME)
    assert topic is not None
    assert topic.subscriptions["s"].backlog == 3
    consumer.say(T(type=T.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=6, message_id=old[-1])))
    await turns(lambda: count(consumer, T.SUCCESS) == 2)
    await subscribe(consumer, 7)
    await turns(lambda: len(delivered(consumer)) == 6)
    producer.leave()
    consumer.leave()


@pytest.mark.parametrize("is_deduplicated", [False, True])
async def test_numbers_of_producers_begin_again(lone: LoneBroker, is_deduplicated: bool) -> None:
    policies = codec.encode(TopicPolicies(overrides={"deduplication": is_deduplicated}))
    await lone.broker._store.create(Catalog.policies_path(NAME), policies, parents=True)
    producer = Client(lone.broker)
    first = await become_producer(producer, producer_name="p", producer_access_mode=pb.ACCESS_EXCLUSIVE)
    topic = lone.broker.topics.find(NAME)
    assert topic is not None
    await publish(producer, *range(5))
    await remake(lone)
    again = await become_producer(
        producer,
        producer_name="p",
        producer_access_mode=pb.ACCESS_EXCLUSIVE,
        topic_epoch=first.topic_epoch,
        epoch=1,
    )
    assert again.last_sequence_id == -1
    stored = await publish(producer, *range(5))
    assert [one.entry_id for one in stored] == [0, 1, 2, 3, 4]  # none was taken for a duplicate
    producer.leave()
