"""GET_OR_CREATE_SCHEMA, and the schemas that producers and consumers bring, command by command."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.schema.registry import SchemaRegistry
from heliograph.metadata import codec
from heliograph.metadata.model import TopicPolicies
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.schema import version_bytes
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns

TOPIC = "orders"
NAME = TopicName.parse(TOPIC)
NONE = pb.Schema(name="Bytes", schema_data=b"", type=pb.Schema.NONE)
STRING = pb.Schema(name="String", schema_data=b"", type=pb.Schema.STRING)
AUTO_CONSUME = pb.Schema(name="AutoConsume", schema_data=b"", type=pb.Schema.AUTO_CONSUME)


async def get_or_create(lone: LoneBroker, schema: pb.Schema, topic: str = TOPIC) -> pb.CommandGetOrCreateSchemaResponse:
    client = Client(lone.broker)
    wanted = pb.CommandGetOrCreateSchema(request_id=1, topic=topic, schema=schema)
    client.say(T(type=T.GET_OR_CREATE_SCHEMA, get_or_create_schema=wanted))
    await turns(lambda: client.answer(T.GET_OR_CREATE_SCHEMA_RESPONSE))
    client.leave()
    return client.transport.answers[-1].get_or_create_schema_response


async def get_schema(lone: LoneBroker, version: bytes | None) -> pb.CommandGetSchemaResponse:
    client = Client(lone.broker)
    client.say(T(type=T.GET_SCHEMA, get_schema=pb.CommandGetSchema(request_id=1, topic=TOPIC, schema_version=version)))
    await turns(lambda: client.answer(T.GET_SCHEMA_RESPONSE))
    client.leave()
    return client.transport.answers[-1].get_schema_response


async def produce(lone: LoneBroker, schema: pb.Schema) -> pb.BaseCommand:
    client = Client(lone.broker)
    wanted = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1, schema=schema)
    client.say(T(type=T.PRODUCER, producer=wanted))
    await turns(lambda: client.answer(T.PRODUCER_SUCCESS) or client.answer(T.ERROR))
    client.leave()
    return client.transport.answers[-1]


async def subscribe(lone: LoneBroker, schema: pb.Schema) -> pb.BaseCommand:
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(
        topic=TOPIC, subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1, schema=schema
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS) or client.answer(T.ERROR))
    client.leave()
    return client.transport.answers[-1]


@pytest.mark.parametrize("has_schema", [False, True])
async def test_bytes_have_the_empty_version_and_nothing_is_stored(lone: LoneBroker, has_schema: bool) -> None:
    """``Schema.BYTES`` is of type NONE on the wire; dead letter producers of the Java client ask for its version."""
    if has_schema:
        assert (await get_or_create(lone, STRING)).schema_version == version_bytes(0)
    answer = await get_or_create(lone, NONE)
    assert not answer.HasField("error_code"), answer.error_message
    assert answer.HasField("schema_version")
    assert answer.schema_version == b""
    success = (await produce(lone, NONE)).producer_success
    assert success.schema_version == b""
    assert (await subscribe(lone, NONE)).type == T.SUCCESS
    assert await SchemaRegistry(lone.broker._store).has_schema(NAME) is has_schema


async def test_bytes_are_refused_where_schemas_are_enforced(lone: LoneBroker) -> None:
    await get_or_create(lone, STRING)
    policies = codec.encode(TopicPolicies(overrides={"schema_validation_enforced": True}))
    await lone.broker._store.create(Catalog.policies_path(NAME), policies, parents=True)
    answer = await get_or_create(lone, NONE)
    assert answer.error_code == pb.INCOMPATIBLE_SCHEMA
    assert "only takes producers with a schema" in answer.error_message


async def test_consumers_that_take_any_schema_register_none(lone: LoneBroker) -> None:
    assert (await subscribe(lone, AUTO_CONSUME)).type == T.SUCCESS
    assert not await SchemaRegistry(lone.broker._store).has_schema(NAME)
    for refused in (
        (await produce(lone, AUTO_CONSUME)).error.error,
        (await get_or_create(lone, AUTO_CONSUME)).error_code,
    ):
        assert refused == pb.INCOMPATIBLE_SCHEMA


async def test_a_schema_of_an_unknown_type_is_refused(lone: LoneBroker) -> None:
    """protobuf drops the number of a type that it does not know, which must not turn the schema into bytes."""
    external = pb.Schema.FromString(
        pb.Schema(name="x", schema_data=b"").SerializePartialToString() + b"\x20\x16"  # 22, EXTERNAL
    )
    client = Client(lone.broker)
    wanted = pb.CommandGetOrCreateSchema(request_id=1, topic=TOPIC)
    wanted.schema.CopyFrom(external)
    command = T(type=T.GET_OR_CREATE_SCHEMA, get_or_create_schema=wanted)
    work = client.connection.handlers[T.GET_OR_CREATE_SCHEMA](command, None)
    assert work is not None
    await work
    await turns(lambda: client.answer(T.GET_OR_CREATE_SCHEMA_RESPONSE))
    answer = client.transport.answers[-1].get_or_create_schema_response
    assert answer.error_code == pb.NOT_ALLOWED_ERROR
    assert "type" in answer.error_message
    client.leave()


async def test_a_topic_that_does_not_exist_has_no_versions(lone: LoneBroker) -> None:
    assert (await get_or_create(lone, NONE, "nowhere")).error_code == pb.TOPIC_NOT_FOUND


async def test_the_empty_version_of_a_topic_without_a_schema_is_the_schema_none(lone: LoneBroker) -> None:
    """The Go client decodes by it what it published with ``NewBytesSchema``."""
    assert (await get_schema(lone, None)).error_code == pb.TOPIC_NOT_FOUND
    found = await get_schema(lone, b"")
    assert not found.HasField("error_code")
    assert found.schema.type == pb.Schema.NONE
    assert found.schema_version == b""
