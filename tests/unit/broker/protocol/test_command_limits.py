"""Every field of a client's command whose size the client chooses has a limit, and a command above it is answered."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sized
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from heliograph.actors.broker.protocol import consumer_commands, producer_commands
from heliograph.actors.broker.protocol.command_limits import (
    IDS,
    IDS_IN_TURN,
    LIMITS,
    WORDS_MAX,
    Limit,
    check_command,
    limit_of,
)
from heliograph.base.errors import BadRequestError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import bits_of, words_of
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.texts import names_of_repeated
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import ENTRY, Client, LoneBroker, T
from tests.unit.broker.world import turns

EXCLUSIVE, INDIVIDUAL = pb.CommandSubscribe.EXCLUSIVE, pb.CommandAck.INDIVIDUAL
_SIZED = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_MESSAGE)


def errors(client: Client) -> list[pb.CommandError]:
    return [answer.error for answer in client.transport.answers if answer.type == T.ERROR]


def taken(broker: LoneBroker) -> list[int]:
    """Return the kinds of commands that a broker takes from clients."""
    return sorted(Client(broker.broker).connection.handlers)


def sized(kind: int) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name of a command, its fields whose size is chosen by who sends it, and whether they are repeated."""
    for command in BaseCommand.DESCRIPTOR.fields:
        if command.number == kind and command.message_type is not None:
            repeated = names_of_repeated(command.message_type)
            for field in command.message_type.fields:
                if field.type in _SIZED or field.name in repeated:
                    yield command.name, field, field.name in repeated


async def test_every_field_of_every_command_that_clients_send_has_a_limit(lone: LoneBroker) -> None:
    found = [(name, field.name) for kind in taken(lone) for name, field, _ in sized(kind)]
    assert len(found) > 30
    missing = [f"{command}.{field}" for command, field in found if limit_of(command, field) is None]
    assert missing == [], "add them to actors/broker/protocol/command_limits.py"
    assert set(LIMITS) <= {field for _, field in found}, "limits of fields that no command has"


def _filled(command: str, field: FieldDescriptor, is_repeated: bool, limit: Limit) -> BaseCommand:
    """Return a command with a field that is above its limit."""
    made = BaseCommand(type=BaseCommand.Type.Name(BaseCommand.DESCRIPTOR.fields_by_name[command].number))
    wanted = getattr(made, command)
    wanted.SetInParent()
    if is_repeated:
        for _ in range(limit.count_max + 1):
            getattr(wanted, field.name).add()
    elif field.message_type is not None:
        _fill(getattr(wanted, field.name), limit.bytes_max + 1)
    else:
        large: Any = "x" * (limit.bytes_max + 1)
        setattr(wanted, field.name, large if field.type == field.TYPE_STRING else large.encode())
    return made


def _fill(message: Any, size: int) -> None:
    """Make a message large by one of its fields."""
    needed = {"ledger_id": 1, "entry_id": 1, "mode": 0, "name": "", "schema_data": b"", "type": 0}
    for name, value in needed.items():
        if name in message.DESCRIPTOR.fields_by_name:
            setattr(message, name, value)
    for field in message.DESCRIPTOR.fields:
        if field.type in (field.TYPE_STRING, field.TYPE_BYTES):
            setattr(message, field.name, "x" * size if field.type == field.TYPE_STRING else b"x" * size)
            return
        if field.name in ("ack_set", "hash_ranges"):
            numbers = getattr(message, field.name)
            numbers.extend([-1] * size if field.name == "ack_set" else [pb.IntRange(start=1, end=2)] * size)
            return
    message.MergeFromString(b"\xf8\x01\x01" * size)  # a field that it does not have


def test_the_bits_of_a_long_list_are_read_in_time_that_grows_with_it() -> None:
    began = time.thread_time()
    bits = bits_of([-1, 5] * 200_000)
    assert words_of(bits) == [-1, 5] * 200_000
    assert time.thread_time() - began < 2, "a quadratic form takes minutes"
    assert (bits_of([]), words_of(0), bits_of([-1]), words_of(1 << 63)) == (0, [], (1 << 64) - 1, [-(1 << 63)])


async def test_each_limit_is_kept(lone: LoneBroker) -> None:
    for kind in taken(lone):
        for command, field, is_repeated in sized(kind):
            limit = limit_of(command, field.name)
            assert limit is not None
            with pytest.raises(BadRequestError) as refused:
                check_command(_filled(command, field, is_repeated, limit))
            assert refused.value.field == field.name
            assert str(limit.count_max if is_repeated else limit.bytes_max) in str(refused.value.limit)


def test_texts_are_measured_in_bytes() -> None:
    most = LIMITS["consumer_name"].bytes_max
    for name, is_taken in (("x" * most, True), ("ü" * (most // 2), True), ("ü" * (most // 2 + 1), False)):
        wanted = pb.CommandSubscribe(topic="t", subscription="s", sub_type=EXCLUSIVE, consumer_id=1, request_id=1)
        wanted.consumer_name = name
        command = BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=wanted)
        if is_taken:
            check_command(command)
        else:
            with pytest.raises(BadRequestError, match=f"consumer_name has {most + 2} bytes"):
                check_command(command)


async def test_a_command_above_a_limit_is_answered_and_the_connection_stays(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    pairs = [pb.KeyValue(key=f"k{number}", value="v" * 60_000) for number in range(2)]
    wanted = pb.CommandSubscribe(
        topic="orders",
        subscription="s",
        sub_type=EXCLUSIVE,
        consumer_id=1,
        request_id=7,
        metadata=pairs,
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: bool(errors(client)))
    [error] = errors(client)
    assert (error.request_id, "metadata has 12" in error.message) == (7, True)
    ids = [pb.MessageIdData(ledger_id=1, entry_id=1)] * (IDS.count_max + 1)
    client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=ids, request_id=8)))
    await turns(lambda: len(errors(client)) == 2)
    assert client.connection.is_open
    long = pb.MessageIdData(ledger_id=1, entry_id=1, ack_set=[1] * (WORDS_MAX + 1))
    client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=[long], request_id=9)))
    await turns(lambda: len(errors(client)) == 3)


@pytest.mark.parametrize("kind", ["ack", "redeliver_unack"])
async def test_a_command_above_a_limit_without_a_number_closes_its_consumer_alone(lone: LoneBroker, kind: str) -> None:
    client = Client(lone.broker)
    for number, subscription in enumerate(("s", "other"), 1):
        wanted = pb.CommandSubscribe(
            topic="orders", subscription=subscription, sub_type=EXCLUSIVE, consumer_id=number, request_id=number
        )
        client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: sum(answer.type == T.SUCCESS for answer in client.transport.answers) == 2)
    ids = [pb.MessageIdData(ledger_id=1, entry_id=1)] * (IDS.count_max + 1)
    if kind == "ack":
        client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=ids)))
    else:
        client.say(T(type=T.REDELIVER_UNACK, redeliver_unack=pb.CommandRedeliverUnack(consumer_id=1, message_ids=ids)))
    await turns(lambda: client.answer(T.CLOSE_CONSUMER))
    closed = [answer.close_consumer for answer in client.transport.answers if answer.type == T.CLOSE_CONSUMER]
    assert [one.consumer_id for one in closed] == [1]
    subscriptions = client.connection.context.topics.find(TopicName.parse("orders")).subscriptions  # type: ignore[union-attr]
    assert {name: len(one.consumers) for name, one in subscriptions.items()} == {"s": 0, "other": 1}
    assert client.connection.is_open


async def test_a_send_above_a_limit_is_refused_alone(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic="orders", producer_id=1, request_id=1)))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    wanted = pb.CommandSend(producer_id=1, sequence_id=0)
    wanted.message_id.CopyFrom(pb.MessageIdData(ledger_id=1, entry_id=1, ack_set=[-1] * 70_000))
    client.say(T(type=T.SEND, send=wanted), ENTRY)
    client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1)), ENTRY)
    await turns(lambda: client.answer(T.SEND_RECEIPT))
    [refused] = [answer.send_error for answer in client.transport.answers if answer.type == T.SEND_ERROR]
    assert (refused.sequence_id, "message_id has" in refused.message) == (0, True)
    assert client.connection.is_open


async def test_a_greeting_above_a_limit_is_answered_before_its_connection_ends(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    wanted = pb.CommandAuthResponse(client_version="v" * (LIMITS["client_version"].bytes_max + 1))
    client.say(T(type=T.AUTH_RESPONSE, auth_response=wanted))
    [error] = errors(client)
    assert "client_version has 1025 bytes" in error.message
    assert not client.connection.is_open


@pytest.mark.parametrize(
    ("name", "properties", "reason"),
    [
        ("s" * 513, {}, "513 bytes"),
        ("ü" * 257, {}, "514 bytes"),
        ("s", {"heliograph.readCompacted": "true"}, "are the broker's"),
        ("s", {"k": "v" * (64 << 10)}, "the properties have 65537 bytes"),
    ],
)
async def test_what_a_subscription_may_not_be_called_or_have(
    lone: LoneBroker, name: str, properties: dict[str, str], reason: str
) -> None:
    client = Client(lone.broker)
    pairs = [pb.KeyValue(key=key, value=value) for key, value in properties.items()]
    wanted = pb.CommandSubscribe(
        topic="orders",
        subscription=name,
        sub_type=EXCLUSIVE,
        consumer_id=1,
        request_id=7,
        subscription_properties=pairs,
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: bool(errors(client)))
    assert reason in errors(client)[0].message


def test_a_message_that_lacks_what_it_requires_is_refused() -> None:
    inner = b"\x08\x01\x10\x01\x3a\x04\x3a\x02\x08\x01"  # a chunk's id whose own chunk's id has no entry
    wanted = pb.CommandSend.FromString(b"\x08\x01\x10\x01\x4a" + bytes([len(inner)]) + inner)
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.MergeFrom(wanted)
    with pytest.raises(BadRequestError, match="message_id cannot be read"):
        check_command(command)


async def test_a_long_list_of_acknowledgements_is_handled_in_parts(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(topic="orders", subscription="s", sub_type=EXCLUSIVE, consumer_id=1, request_id=7)
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    [found] = client.connection.context.topics.find(TopicName.parse("orders")).subscriptions.values()  # type: ignore[union-attr]
    counts: list[int] = []
    found.acknowledge = lambda acks, *_: counts.append(len(list(acks)))  # type: ignore[method-assign]

    def redeliver(_: object, positions: Sized, epoch: int | None, *, is_unhandled: bool) -> None:
        counts.append(-len(positions))
        assert is_unhandled, "else messages count as refused that no caller had"

    found.redeliver = redeliver  # type: ignore[method-assign]
    ids = [pb.MessageIdData(ledger_id=1, entry_id=number) for number in range(IDS_IN_TURN + 1)]
    client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=ids)))
    unread = pb.CommandRedeliverUnack(consumer_id=1, message_ids=ids, is_unhandled=True)
    client.say(T(type=T.REDELIVER_UNACK, redeliver_unack=unread))
    await turns(lambda: len(counts) == 4)
    assert sorted(counts) == [-IDS_IN_TURN, -1, 1, IDS_IN_TURN]


@pytest.mark.parametrize("kind", [EXCLUSIVE, pb.CommandSubscribe.SHARED])
@pytest.mark.parametrize("others", [0, IDS_IN_TURN])
async def test_a_long_acknowledgement_of_what_nobody_has_is_refused(lone: LoneBroker, kind: Any, others: int) -> None:
    """I15: its bits would stay with the cursor, up to 128 KiB for an entry of one message."""
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(topic="orders", subscription="s", sub_type=kind, consumer_id=1, request_id=7)
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    [subscription] = client.connection.context.topics.find(TopicName.parse("orders")).subscriptions.values()  # type: ignore[union-attr]
    producer = pb.CommandProducer(topic="orders", producer_id=1, request_id=8)
    client.say(T(type=T.PRODUCER, producer=producer))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0)), ENTRY)
    await turns(lambda: client.answer(T.SEND_RECEIPT))
    stored = client.transport.answers[-1].send_receipt.message_id

    async def acknowledge(words: int) -> pb.CommandAckResponse:
        client.transport.answers.clear()
        one = pb.MessageIdData(ledger_id=stored.ledger_id, entry_id=stored.entry_id, ack_set=[1, *[-1] * (words - 1)])
        ids = [one, *(pb.MessageIdData(ledger_id=1 << 40, entry_id=1) for _ in range(others))]
        client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=ids, request_id=9)))
        await turns(lambda: client.answer(T.ACK_RESPONSE))
        return client.transport.answers[-1].ack_response

    refused = await acknowledge(65)
    assert (refused.request_id, refused.error) == (9, pb.NOT_ALLOWED_ERROR)
    assert "is for 4160 messages" in refused.message
    assert subscription.cursor.partial_count == 0
    assert not (await acknowledge(64)).HasField("error")
    assert subscription.cursor.partial_count == 1
    assert not (await acknowledge(65)).HasField("error"), "it says no more than the one before"


async def test_a_long_acknowledgement_that_is_refused_takes_no_others_with_it(lone: LoneBroker) -> None:
    """Clients send what gathered while they were not connected in one command."""
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(topic="orders", subscription="s", sub_type=EXCLUSIVE, consumer_id=1, request_id=7)
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    [subscription] = client.connection.context.topics.find(TopicName.parse("orders")).subscriptions.values()  # type: ignore[union-attr]
    client.say(T(type=T.PRODUCER, producer=pb.CommandProducer(topic="orders", producer_id=1, request_id=8)))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
    for number in range(2):
        client.say(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=number)), ENTRY)
    await turns(lambda: sum(answer.type == T.SEND_RECEIPT for answer in client.transport.answers) == 2)
    ids = [answer.send_receipt.message_id for answer in client.transport.answers if answer.type == T.SEND_RECEIPT]
    ids[1].ack_set.extend([1, *[-1] * 64])
    mark = subscription.cursor.mark
    client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=ids, request_id=9)))
    await turns(lambda: client.answer(T.ACK_RESPONSE))
    assert client.transport.answers[-1].ack_response.error == pb.NOT_ALLOWED_ERROR
    assert (subscription.cursor.mark, subscription.cursor.partial_count) == (mark + 1, 0)


async def test_a_consumer_is_closed_after_its_long_lists(lone: LoneBroker) -> None:
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(topic="orders", subscription="s", sub_type=EXCLUSIVE, consumer_id=1, request_id=7)
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    [found] = client.connection.context.topics.find(TopicName.parse("orders")).subscriptions.values()  # type: ignore[union-attr]
    counts: list[int] = []
    found.acknowledge = lambda acks, *_: counts.append(len(list(acks)))  # type: ignore[method-assign]
    for first in (0, 100_000):
        ids = [pb.MessageIdData(ledger_id=1, entry_id=first + number) for number in range(IDS_IN_TURN + 1)]
        client.say(T(type=T.ACK, ack=pb.CommandAck(consumer_id=1, ack_type=INDIVIDUAL, message_id=ids)))
    closing = pb.CommandCloseConsumer(consumer_id=1, request_id=8)
    client.say(T(type=T.CLOSE_CONSUMER, close_consumer=closing))
    await turns(lambda: client.transport.answers[-1].success.request_id == 8)
    assert counts == [IDS_IN_TURN, 1] * 2
    assert not found.consumers


async def test_a_role_has_so_many_producers() -> None:
    async with LoneBroker("orders", producers_per_role_max=2) as lone:
        client = Client(lone.broker)
        client.connection.count_role("billing")
        counted = client.connection.context.producers_of_roles
        for number in range(1, 4):
            wanted = pb.CommandProducer(topic="orders", producer_id=number, request_id=number)
            client.say(T(type=T.PRODUCER, producer=wanted))
            await turns(lambda count=number: len(client.transport.answers) > count)  # type: ignore[misc]
        [error] = errors(client)
        assert (error.request_id, "producers_per_role_max" in error.message) == (3, True)
        assert counted["billing"] == 2
        client.say(T(type=T.CLOSE_PRODUCER, close_producer=pb.CommandCloseProducer(producer_id=1, request_id=9)))
        assert counted["billing"] == 1
        client.leave()
        assert counted["billing"] == 0


async def test_a_connection_that_has_all_it_may_is_told_so_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that was told to try again would do so until the end of its time."""
    monkeypatch.setattr(producer_commands, "PRODUCERS_MAX", 1)
    monkeypatch.setattr(consumer_commands, "CONSUMERS_MAX", 1)
    async with LoneBroker("orders") as lone:
        client = Client(lone.broker)
        for number in (1, 2):
            producer = pb.CommandProducer(topic="orders", producer_id=number, request_id=number)
            consumer = pb.CommandSubscribe(
                topic="orders",
                subscription=f"s{number}",
                sub_type=EXCLUSIVE,
                consumer_id=number,
                request_id=10 + number,
            )
            before = len(client.transport.answers)
            client.say(T(type=T.PRODUCER, producer=producer))
            client.say(T(type=T.SUBSCRIBE, subscribe=consumer))
            await turns(lambda count=before: len(client.transport.answers) >= count + 2)  # type: ignore[misc]
        found = {error.request_id: (error.error, error.message) for error in errors(client)}
        assert {request: code for request, (code, _) in found.items()} == {2: pb.PRODUCER_BUSY, 12: pb.CONSUMER_BUSY}
        assert all("use another client" in message for _, message in found.values())
        client.leave()
