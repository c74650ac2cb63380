"""The commands GET_SCHEMA and GET_OR_CREATE_SCHEMA, and the schemas of new producers and consumers."""

from __future__ import annotations

from heliograph.actors.broker.namespaces.policies import effective
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.schema.registry import SchemaNotFoundError, SchemaRegistry
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import HeliographError, IncompatibleSchemaError
from heliograph.metadata.model import Policies
from heliograph.operations.table import Right
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.schema import SchemaInfo, SchemaType, check_size, from_wire, to_wire, version_bytes, version_of
from heliograph.protocol.server_error import code_of
from heliograph.protocol.topic_name import TopicName


class SchemaCommands:
    """The schema commands of one connection."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        connection.handlers[BaseCommand.GET_SCHEMA] = lambda command, _: self._get(command.get_schema)
        connection.handlers[BaseCommand.GET_OR_CREATE_SCHEMA] = lambda command, _: self._get_or_create(
            command.get_or_create_schema
        )

    async def _get(self, wanted: pb.CommandGetSchema) -> None:
        answer = pb.CommandGetSchemaResponse(request_id=wanted.request_id)
        try:
            version = version_of(wanted.schema_version) if wanted.schema_version else None
            topic, context = TopicName.parse(wanted.topic), self.connection.context
            await context.authorizer.check_client(self.connection, Right.PRODUCE_OR_CONSUME, topic, "GetSchema")
            found = await context.schemas.get(topic, version)
            answer.schema.CopyFrom(to_wire(found.schema))
            answer.schema_version = version_bytes(found.version)
        except SchemaNotFoundError as error:
            if wanted.HasField("schema_version") and not wanted.schema_version:
                # The Go client asks by the empty version of messages that were sent with `NewBytesSchema`.
                answer.schema.CopyFrom(to_wire(SchemaInfo(SchemaType.NONE)))
            else:  # clients take this code as "no schema", and any other one as a failure
                answer.error_code, answer.error_message = pb.TOPIC_NOT_FOUND, str(error)
        except HeliographError as error:
            answer.error_code, answer.error_message = code_of(error), str(error)
        self.connection.send(BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE, get_schema_response=answer))

    async def _get_or_create(self, wanted: pb.CommandGetOrCreateSchema) -> None:
        answer = pb.CommandGetOrCreateSchemaResponse(request_id=wanted.request_id)
        try:
            topic = TopicName.parse(wanted.topic)
            catalog = self.connection.context.catalog
            await self.connection.context.authorizer.check_client(
                self.connection, Right.PRODUCE, topic, "GetOrCreateSchema"
            )
            await catalog.ensure(topic, may_create=False)
            overrides = (await catalog.topic_policies(topic)).overrides
            policies = effective(await catalog.policies(topic), overrides)
            schemas = self.connection.context.schemas
            answer.schema_version = await _version_for(schemas, topic, _schema_of(wanted), policies)
        except HeliographError as error:
            answer.error_code, answer.error_message = code_of(error), str(error)
        self.connection.send(
            BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE, get_or_create_schema_response=answer)
        )


def _schema_of(wanted: pb.CommandProducer | pb.CommandSubscribe | pb.CommandGetOrCreateSchema) -> SchemaInfo | None:
    """Return the schema of a command, None if it has none.

    Raises:
        BadRequestError: it is too large to be stored, or its type is not known.
    """
    if not wanted.HasField("schema"):
        return None
    schema = from_wire(wanted.schema)
    check_size(schema)
    return schema


async def producer_schema(registry: SchemaRegistry, topic: BrokerTopic, wanted: pb.CommandProducer) -> bytes:
    """Register the schema of a new producer. Return its version, empty for a producer without a schema.

    Raises:
        IncompatibleSchemaError: the schema or the policies of the topic do not allow it.
        QuotaExceededError, ServiceNotReadyError.
    """
    schema = _schema_of(wanted)
    return await _version_for(registry, topic.name, schema, topic.policies)


async def _version_for(
    registry: SchemaRegistry, topic: TopicName, schema: SchemaInfo | None, policies: Policies
) -> bytes:
    """Return the version of the schema that messages are sent with, and register it if it is new.

    The version is empty, and nothing is registered, for messages without a schema. Those are also what clients declare
    as type NONE: ``Schema.BYTES`` of the Java client and ``NewBytesSchema`` of the Go client.
    """
    if schema is None or schema.is_none:
        if policies.schema_validation_enforced and await registry.has_schema(topic):
            raise IncompatibleSchemaError(f"{topic} only takes producers with a schema", field="schema")
        return b""
    if schema.type is SchemaType.AUTO_CONSUME:
        raise IncompatibleSchemaError("AUTO_CONSUME is for consumers", field="schema")
    return version_bytes(await registry.add(topic, schema, policies))


async def check_consumer_schema(registry: SchemaRegistry, topic: BrokerTopic, wanted: pb.CommandSubscribe) -> None:
    """Check that a new consumer's schema can read the topic; register it if nobody published to the topic yet.

    Where a topic has messages or producers, and no schema, a consumer is let in and registers nothing: it may read, and
    what it registered would decide which producers come later.

    Raises:
        IncompatibleSchemaError, QuotaExceededError, ServiceNotReadyError.
    """
    schema = _schema_of(wanted)
    if schema is None or schema.is_none or schema.type is SchemaType.AUTO_CONSUME:
        return
    is_unpublished = not topic.producers and not topic.has_entries
    if is_unpublished and not await registry.has_schema(topic.name):
        await registry.add(topic.name, schema, topic.policies)
        return
    await registry.check_consumer(topic.name, schema, topic.policies)
