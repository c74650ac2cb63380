"""Every command of the binary protocol, sent as every role. A command without a rule fails."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

from heliograph.actors.broker import revocation
from heliograph.metadata import codec, paths
from heliograph.metadata.model import NamespacePolicies
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand as T
from heliograph.protocol.topic_name import TopicName
from tests.unit.auth.roles import (
    ADMIN,
    CONFIG,
    CONSUME,
    EITHER,
    GRANTS,
    LIST,
    NAMESPACE,
    PRODUCE,
    SUBSCRIBE,
    SUBSCRIPTION,
    TOPIC,
    Caller,
    callers,
    create_records,
)
from tests.unit.broker.clients import Client, LoneBroker
from tests.unit.broker.world import turns

# Commands that open or ask for something, with what they need.
NEEDS: dict[int, str] = {
    T.PRODUCER: PRODUCE,
    T.SUBSCRIBE: SUBSCRIBE,
    T.LOOKUP: EITHER,
    T.PARTITIONED_METADATA: EITHER,
    T.GET_SCHEMA: EITHER,
    T.GET_OR_CREATE_SCHEMA: PRODUCE,
    T.GET_TOPICS_OF_NAMESPACE: LIST,
    T.WATCH_TOPIC_LIST: LIST,
}
# Commands that name what an earlier one has opened: a client without it has nothing to name.
OF_WHAT_IS_OPEN = {
    T.SEND, T.CLOSE_PRODUCER, T.ACK, T.FLOW, T.REDELIVER_UNACK, T.UNSUBSCRIBE, T.CLOSE_CONSUMER, T.SEEK,
    T.GET_LAST_MESSAGE_ID, T.CONSUMER_STATS, T.WATCH_TOPIC_LIST_CLOSE,
}  # fmt: skip
# Commands that ask for nothing, or are refused to every caller.
OF_THE_CONNECTION = {
    T.CONNECT, T.PING, T.PONG, T.AUTH_RESPONSE, T.TC_CLIENT_CONNECT_REQUEST, T.NEW_TXN, T.ADD_PARTITION_TO_TXN,
    T.ADD_SUBSCRIPTION_TO_TXN, T.END_TXN,
}  # fmt: skip
# Each operation that it calls has a right of its own: tests/unit/auth/test_operations_matrix.py.
OF_OPERATIONS = {T.ADMIN_CALL}

MESSAGES: dict[int, str] = {
    T.PRODUCER: "Client is not authorized to Produce",
    T.SUBSCRIBE: "Client is not authorized to subscribe",
    T.LOOKUP: "Client is not authorized to Lookup",
    T.PARTITIONED_METADATA: "Client is not authorized to Get Partition Metadata",
    T.GET_SCHEMA: "Client is not authorized to GetSchema",
    T.GET_OR_CREATE_SCHEMA: "Client is not authorized to GetOrCreateSchema",
    T.GET_TOPICS_OF_NAMESPACE: "Client is not authorized to GetTopicsOfNamespace",
    T.WATCH_TOPIC_LIST: "Client is not authorized to WatchTopicList",
}


def command(kind: int) -> pb.BaseCommand:
    schema = pb.Schema(name="s", type=pb.Schema.STRING, schema_data=b"")
    by_kind: dict[int, Any] = {
        T.PRODUCER: {"producer": pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)},
        T.SUBSCRIBE: {
            "subscribe": pb.CommandSubscribe(
                topic=TOPIC,
                subscription=SUBSCRIPTION,
                sub_type=pb.CommandSubscribe.SHARED,
                consumer_id=1,
                request_id=1,
            )
        },
        T.LOOKUP: {"lookup": pb.CommandLookup(topic=TOPIC, request_id=1)},
        T.PARTITIONED_METADATA: {"partitioned_metadata": pb.CommandPartitionedMetadata(topic=TOPIC, request_id=1)},
        T.GET_SCHEMA: {"get_schema": pb.CommandGetSchema(topic=TOPIC, request_id=1)},
        T.GET_OR_CREATE_SCHEMA: {
            "get_or_create_schema": pb.CommandGetOrCreateSchema(topic=TOPIC, request_id=1, schema=schema)
        },
        T.GET_TOPICS_OF_NAMESPACE: {
            "get_topics_of_namespace": pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE, request_id=1)
        },
        T.WATCH_TOPIC_LIST: {
            "watch_topic_list": pb.CommandWatchTopicList(
                namespace=NAMESPACE, topics_pattern="persistent://acme/shop/.*", watcher_id=1, request_id=1
            )
        },
    }
    return T(type=T.Type.Name(T.Type.ValueType(kind)), **by_kind[kind])


def refusal(answer: pb.BaseCommand) -> str | None:
    """Return the message of an answer with the code of a missing right, None for any other answer."""
    for found in (answer.error, answer.lookup_response, answer.partitioned_metadata_response):
        if found.error == pb.AUTHORIZATION_ERROR:
            return str(found.message)
    for schemas in (answer.get_schema_response, answer.get_or_create_schema_response):
        if schemas.error_code == pb.AUTHORIZATION_ERROR:
            return str(schemas.error_message)
    return None


@pytest.fixture(scope="module")
async def lone() -> AsyncIterator[LoneBroker]:
    async with LoneBroker(auth=CONFIG) as running:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(revocation, "REST_SECONDS", 0.0)
            await create_records(running.broker._store)
            await running.broker._catalog.create(TopicName.parse(TOPIC))
            yield running


async def client_of(lone: LoneBroker, caller: Caller) -> Client:
    """Return a client that was let in, and give it the caller's role."""
    client = Client(lone.broker)
    await turns(lambda: client.answer(T.CONNECTED))
    client.connection.principal = caller.principal
    return client


async def answer_to(client: Client, wanted: pb.BaseCommand) -> pb.BaseCommand:
    await turns(lambda: client.answer(T.CONNECTED))
    before = len(client.transport.answers)
    client.say(wanted)
    await turns(lambda: len(client.transport.answers) > before)
    return client.transport.answers[before]


async def test_every_command_has_a_rule(lone: LoneBroker) -> None:
    client = await client_of(lone, next(callers()))
    assert set(client.connection.handlers) == set(NEEDS) | OF_WHAT_IS_OPEN | OF_THE_CONNECTION | OF_OPERATIONS
    client.leave()


@pytest.mark.parametrize("kind", NEEDS, ids=lambda kind: T.Type.Name(kind))
async def test_a_command_is_answered_to_those_who_have_the_right(lone: LoneBroker, kind: int) -> None:
    for caller in callers():
        client = await client_of(lone, caller)
        said = refusal(await answer_to(client, command(kind)))
        if NEEDS[kind] in caller.may:
            assert said is None, f"{caller} was refused"
        else:
            assert said == MESSAGES[kind], f"{caller} was not refused"
        assert client.connection.is_open
        client.leave()


async def test_an_operation_is_run_in_the_role_of_the_connection(lone: LoneBroker) -> None:
    for caller in callers():
        client = await client_of(lone, caller)
        arguments = msgpack.packb({"namespace": NAMESPACE})
        call = pb.CommandAdminCall(request_id=1, operation="namespaces.policies", arguments=arguments)
        answer = await answer_to(client, T(type=T.ADMIN_CALL, admin_call=call))
        failure = msgpack.unpackb(answer.admin_answer.answer).get("failure", {})
        assert (failure.get("class") == "NotPermittedError") == (ADMIN not in caller.may), str(caller)
        client.leave()


async def test_a_producer_needs_consume_for_its_initial_subscription(lone: LoneBroker) -> None:
    for caller in callers():
        client = await client_of(lone, caller)
        producer = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, initial_subscription_name=SUBSCRIPTION)
        is_allowed = refusal(await answer_to(client, T(type=T.PRODUCER, producer=producer))) is None
        assert is_allowed == ({PRODUCE, CONSUME, SUBSCRIBE} <= caller.may), str(caller)
        client.leave()


async def test_commands_of_what_is_not_open_do_nothing(lone: LoneBroker) -> None:
    """A client without rights that names a consumer of its own invention is told that there is none."""
    client = await client_of(lone, next(callers()))
    before = len(client.transport.answers)
    client.say(T(type=T.UNSUBSCRIBE, unsubscribe=pb.CommandUnsubscribe(consumer_id=9, request_id=2)))
    seek = pb.CommandSeek(consumer_id=9, request_id=3, message_publish_time=0)
    client.say(T(type=T.SEEK, seek=seek))
    await turns(lambda: len(client.transport.answers) >= before + 2)
    assert {answer.error.error for answer in client.transport.answers[before:]} == {pb.CONSUMER_NOT_FOUND}
    client.leave()


async def test_a_refused_client_creates_nothing(lone: LoneBroker) -> None:
    client = await client_of(lone, next(each for each in callers() if str(each) == "nobody"))
    new = "persistent://acme/shop/unheard-of"
    await answer_to(client, T(type=T.PRODUCER, producer=pb.CommandProducer(topic=new, producer_id=1, request_id=1)))
    assert not await lone.broker._catalog.exists(TopicName.parse(new))
    client.leave()


async def test_a_revoked_right_closes_what_is_open(lone: LoneBroker) -> None:
    principals = {str(each): each for each in callers()}
    client = await client_of(lone, principals["reader"])
    feeder = await client_of(lone, principals["feeder"])
    assert (await answer_to(client, command(T.SUBSCRIBE))).type == T.SUCCESS
    assert (await answer_to(client, command(T.WATCH_TOPIC_LIST))).type == T.WATCH_TOPIC_LIST_SUCCESS
    assert (await answer_to(feeder, command(T.PRODUCER))).type == T.PRODUCER_SUCCESS
    record = codec.encode(NamespacePolicies())
    await lone.broker._store.set(paths.namespace("acme", "shop"), record)
    await turns(lambda: client.answer(T.CLOSE_CONSUMER) and feeder.answer(T.CLOSE_PRODUCER))
    assert client.connection.is_open
    await turns(lambda: not any(list(part()) for part in client.connection.opened))
    assert refusal(await answer_to(client, command(T.SUBSCRIBE))) == MESSAGES[T.SUBSCRIBE]
    assert refusal(await answer_to(feeder, command(T.PRODUCER))) == MESSAGES[T.PRODUCER]
    await lone.broker._store.set(paths.namespace("acme", "shop"), codec.encode(NamespacePolicies(auth_policies=GRANTS)))
    assert (await answer_to(client, command(T.SUBSCRIBE))).type == T.SUCCESS
    client.leave()
    feeder.leave()
