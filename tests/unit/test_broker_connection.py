"""One connection: its handshake, its signs of life, and what it may name that is not there (any more)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from actors.broker.connection import STALLED_TICKS_MAX, Connection
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker_clients import ENTRY, Client, FakeTransport, LoneBroker, T
from tests.unit.broker_world import turns

TOPIC = "orders"


@pytest.fixture
def lone() -> Iterator[LoneBroker]:
    with LoneBroker(TOPIC) as running:
        yield running


def count(client: Client, kind: int) -> int:
    return sum(answer.type == kind for answer in client.transport.answers)


async def settle() -> None:
    """Let what was begun come to its end."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_whoever_does_not_say_hello_in_time_has_to_go(lone: LoneBroker) -> None:
    """However busy he is with sending something else."""

    async def scenario() -> None:
        transport = FakeTransport()
        connection = lone.broker._server._connected()
        assert isinstance(connection, Connection)
        connection.connection_made(transport)
        connection.data_received(b"\x00\x00")
        connection._tick()
        assert transport.is_gone
        connection.connection_lost(None)

    lone.run(scenario())


def test_who_is_silent_is_asked_once_and_then_has_to_go(lone: LoneBroker) -> None:
    async def scenario() -> None:
        client = Client(lone.broker)
        client.connection._tick()  # it said hello since the last one
        assert count(client, T.PING) == 0
        client.connection._tick()
        await turns(lambda: count(client, T.PING) == 1)
        client.say(T(type=T.PONG, pong=pb.CommandPong()))
        client.connection._tick()
        client.connection._tick()
        await turns(lambda: count(client, T.PING) == 2)
        assert not client.transport.is_gone
        client.connection._tick()
        assert client.transport.is_gone
        client.leave()

    lone.run(scenario())


def test_who_reads_nothing_has_to_go_after_a_while(lone: LoneBroker) -> None:
    async def scenario() -> None:
        client = Client(lone.broker)
        client.connection.pause_writing()
        for _ in range(STALLED_TICKS_MAX):
            client.connection._tick()
        assert not client.transport.is_gone
        client.connection._tick()
        assert client.transport.is_gone
        client.leave()

    lone.run(scenario())


def test_entries_for_a_producer_that_was_closed_are_ignored_and_for_one_that_never_was_end_it(lone: LoneBroker) -> None:
    async def scenario() -> None:
        client = Client(lone.broker)
        wanted = T(type=T.PRODUCER, producer=pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1))
        client.say(wanted)
        await turns(lambda: count(client, T.PRODUCER_SUCCESS) == 1)
        client.say(wanted)  # again, with a live id
        await turns(lambda: count(client, T.PRODUCER_SUCCESS) == 2)
        client.say(T(type=T.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=2)))
        await turns(lambda: client.answer(T.SUCCESS))
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0)), ENTRY)
        await settle()
        assert client.connection.is_open
        assert not client.answer(T.SEND_RECEIPT)
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=7, sequence_id=0)), ENTRY)
        assert client.transport.is_gone
        client.leave()

    lone.run(scenario())


@pytest.mark.parametrize("is_sticky", [False, True])
def test_a_consumer_keeps_its_place_from_another_one_if_it_lives(lone: LoneBroker, is_sticky: bool) -> None:
    async def scenario() -> None:
        wanted = pb.CommandSubscribe(
            topic=TOPIC, subscription="s", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_id=1, request_id=1
        )
        if is_sticky:
            wanted.sub_type = pb.CommandSubscribe.KEY_SHARED
            wanted.key_shared_meta.mode = pb.STICKY
            wanted.key_shared_meta.hash_ranges.add(start=0, end=9)
        holder, newcomer = Client(lone.broker), Client(lone.broker)
        holder.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: holder.answer(T.SUCCESS))
        newcomer.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: count(holder, T.PING) == 1)
        assert not newcomer.answer(T.ERROR)
        holder.say(T(type=T.PONG, pong=pb.CommandPong()))
        await turns(lambda: newcomer.answer(T.ERROR))
        refused = newcomer.transport.answers[-1].error.error
        assert refused == (pb.CONSUMER_ASSIGN_ERROR if is_sticky else pb.CONSUMER_BUSY)
        newcomer.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: count(holder, T.PING) == 2)
        holder.connection._tick()  # the time for an answer is over
        assert holder.transport.is_gone
        holder.leave()
        await turns(lambda: newcomer.answer(T.SUCCESS))
        newcomer.leave()

    lone.run(scenario())


def test_who_subscribes_while_the_subscription_moves_is_asked_to_try_again(lone: LoneBroker) -> None:
    async def scenario() -> None:
        client = Client(lone.broker)
        wanted = pb.CommandSubscribe(
            topic=TOPIC, subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1
        )
        client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: client.answer(T.SUCCESS))
        lone.ledgers.held = True
        client.say(T(type=T.SEEK, seek=pb.CommandSeek(consumer_id=1, request_id=2, message_publish_time=5)))
        await turns(lambda: client.answer(T.CLOSE_CONSUMER))
        client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: client.answer(T.ERROR))
        assert client.transport.answers[-1].error.error == pb.SERVICE_NOT_READY
        topic = lone.broker.topics.find(TopicName.parse(TOPIC))
        assert topic is not None
        lone.ledgers.held = False
        for writer in lone.ledgers.writers.values():
            writer.release()
        await turns(lambda: count(client, T.SUCCESS) == 2)
        client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
        await turns(lambda: count(client, T.SUCCESS) == 3)
        client.leave()

    lone.run(scenario())
