"""One connection: its handshake, its keep-alive, and commands for producers and consumers that are not there."""

from __future__ import annotations

import asyncio
import gc

import pytest

from heliograph.actors.broker.protocol.connection import STALLED_TICKS_MAX, PulsarConnection
from heliograph.base.guard.framed_connection import ConnectionState
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_command
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import ENTRY, Client, FakeTransport, LoneBroker, T
from tests.unit.broker.world import turns

TOPIC = "orders"


def count(client: Client, kind: int) -> int:
    return sum(answer.type == kind for answer in client.transport.answers)


async def settle() -> None:
    """Let the tasks that were begun end."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_a_client_that_does_not_send_connect_in_time_is_disconnected(lone: LoneBroker) -> None:
    """Bytes that are no complete command do not count."""
    transport = FakeTransport()
    connection = lone.broker._server._connected()
    assert isinstance(connection, PulsarConnection)
    connection.connection_made(transport)
    connection.data_received(b"\x00\x00")
    connection._tick()
    assert transport.is_gone
    connection.connection_lost(None)


async def test_a_silent_client_is_pinged_once_and_then_disconnected(client: Client) -> None:
    client.connection._tick()  # it sent CONNECT since the last one
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


async def test_a_client_that_does_not_read_is_disconnected_after_some_intervals(client: Client) -> None:
    client.connection.pause_writing()
    for _ in range(STALLED_TICKS_MAX):
        client.connection._tick()
    assert not client.transport.is_gone
    client.connection._tick()
    assert client.transport.is_gone


async def test_entries_for_a_closed_producer_are_ignored_and_those_for_an_unknown_one_end_the_connection(
    client: Client,
) -> None:
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


@pytest.mark.parametrize("is_sticky", [False, True])
async def test_a_consumer_keeps_its_place_while_its_client_answers(lone: LoneBroker, is_sticky: bool) -> None:
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
    topic = lone.broker.topics.find(TopicName.parse(TOPIC))
    assert topic is not None
    assert topic.delivers_by_key is is_sticky
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


async def test_a_client_that_subscribes_during_a_seek_is_told_to_try_again(client: Client, lone: LoneBroker) -> None:
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


async def test_the_states_of_a_connection(lone: LoneBroker) -> None:
    connection, transport = lone.broker._server._connected(), FakeTransport()
    states = [connection.state]
    connection.connection_made(transport)
    states.append(connection.state)
    connection.data_received(encode_command(T(type=T.CONNECT, connect=pb.CommandConnect(client_version="test"))))
    states.append(connection.state)
    connection.close()
    states.append(connection.state)
    assert not connection.is_open
    connection.close()  # again, without effect
    connection.send_success(1)
    connection.connection_lost(None)
    without = ConnectionState.AUTHENTICATING  # only if authentication is enabled
    assert [*states, connection.state] == [state for state in ConnectionState if state is not without]
    assert [answer.type for answer in transport.answers] == [T.CONNECTED]
    with pytest.raises(AssertionError, match="CLOSED may not become CLOSED"):
        connection.connection_lost(None)


async def test_a_client_that_fails_in_the_handshake_of_tls_is_not_counted(lone: LoneBroker) -> None:
    """asyncio makes the protocol when it accepts a socket, and never reports the end of one whose handshake fails."""
    server = lone.broker._server
    server._connected()
    assert (server.connections, server.connections_total) == (0, 0)
    client = Client(lone.broker)
    assert (server.connections, server.connections_total) == (1, 1)
    client.leave()
    assert (server.connections, server.connections_total) == (0, 1)


async def test_too_many_connections_are_refused_and_none_is_taken_after_the_end() -> None:  # I15
    async with LoneBroker(connections_max=1) as lone:
        first, second = Client(lone.broker), Client(lone.broker)
        assert first.connection.is_open
        assert second.transport.is_gone
        assert not second.connection.is_open
        second.leave()
        first.leave()
        late = lone.broker._server._connected()
        await lone.broker._server.stop()
        transport = FakeTransport()
        late.connection_made(transport)
        assert transport.is_gone
        late.connection_lost(None)


async def test_a_consumer_that_asks_for_replicated_state_is_told_that_there_is_none(
    client: Client, lone: LoneBroker
) -> None:
    wanted = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", sub_type=pb.CommandSubscribe.EXCLUSIVE, consumer_id=1, request_id=1
    )
    wanted.replicate_subscription_state = True
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.ERROR))
    refused = client.transport.answers[-1].error
    assert "replicateSubscriptionState" in refused.message
    assert not (await lone.broker.topics.get(TopicName.parse(TOPIC))).subscriptions
    wanted.replicate_subscription_state = False
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))


@pytest.mark.parametrize(
    ("version", "returns"), [("Pulsar-CPP-v4.2.0", True), ("Pulsar-Go-0.19.0", True), ("Pulsar-Java-v4.2.4", False)]
)
async def test_clients_that_ask_again_for_what_they_skip_are_known(
    lone: LoneBroker, version: str, returns: bool
) -> None:
    client = Client(lone.broker, version)
    wanted = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    topic = lone.broker.topics.find(TopicName.parse(TOPIC))
    assert topic is not None
    (one,) = topic.subscriptions["s"].consumers.values()
    assert one.state.returns_skipped is returns


async def test_a_command_whose_client_left_before_it_began_leaves_no_coroutine(
    lone: LoneBroker, recwarn: pytest.WarningsRecorder
) -> None:
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(topic=f"persistent://public/default/{TOPIC}", subscription="s", consumer_id=1)
    wanted.sub_type, wanted.request_id = pb.CommandSubscribe.EXCLUSIVE, 1
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    client.leave()
    await settle()
    gc.collect()
    assert [str(each.message) for each in recwarn] == []
