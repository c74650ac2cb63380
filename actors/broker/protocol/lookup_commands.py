"""The commands LOOKUP, PARTITIONED_METADATA and GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

import asyncio
import logging

from heliograph.actors.broker.listeners import AdvertisedListener, listener_of
from heliograph.actors.broker.namespaces.catalog import NON_PERSISTENT, PERSISTENT
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.protocol.refused_commands import NO_TRANSACTIONS
from heliograph.base.errors import BadRequestError, HeliographError, UnsupportedError
from heliograph.operations.table import Right
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of
from heliograph.protocol.topic_name import DOMAINS, TopicName
from heliograph.protocol.topics_pattern import TopicsPattern, topics_hash

GO_CLIENT = "Pulsar-Go-"  # the beginning of the client version of the Go client
_DOMAINS_OF = {
    pb.CommandGetTopicsOfNamespace.PERSISTENT: (PERSISTENT,),
    pb.CommandGetTopicsOfNamespace.NON_PERSISTENT: (NON_PERSISTENT,),
    pb.CommandGetTopicsOfNamespace.ALL: DOMAINS,
}

log = logging.getLogger(__name__)


class LookupCommands:
    """The questions of a client before it produces or consumes. Any broker can answer them."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        connection.handlers[BaseCommand.LOOKUP] = lambda command, _: self._lookup(command.lookup)
        connection.handlers[BaseCommand.PARTITIONED_METADATA] = lambda command, _: self._partitions(
            command.partitioned_metadata
        )
        connection.handlers[BaseCommand.GET_TOPICS_OF_NAMESPACE] = lambda command, _: self._topics(
            command.get_topics_of_namespace
        )

    async def _lookup(self, wanted: pb.CommandLookup) -> None:
        answer = pb.CommandLookupResponse(request_id=wanted.request_id)
        try:
            context = self.connection.context
            topic = TopicName.parse(wanted.topic)
            if topic.is_transaction_coordinator:
                raise UnsupportedError(NO_TRANSACTIONS)
            await context.authorizer.check_client(self.connection, Right.PRODUCE_OR_CONSUME, topic, "Lookup")
            owner = await context.ownership.resolve(topic, authoritative=wanted.authoritative)
            addresses = AdvertisedListener(owner.service_url, owner.service_url_tls)
            if wanted.advertised_listener_name:
                addresses = listener_of(owner.listeners, wanted.advertised_listener_name, owner.broker_id)
            if addresses.url:
                answer.url = addresses.url
            if addresses.url_tls:
                answer.url_tls = addresses.url_tls
            answer.response = answer.CONNECT if owner.is_us else answer.REDIRECT
            answer.authoritative = owner.is_us or owner.is_assigned
        except HeliographError as error:
            answer.response, answer.error, answer.message = answer.FAILED, self._code_of_lookup(error), str(error)
        self.connection.send(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookup_response=answer))

    def _code_of_lookup(self, error: HeliographError) -> pb.ServerError:
        """Return the code of a lookup that failed, or of the question for partitions.

        Clients hang up when one is answered with SERVICE_NOT_READY, so all their producers and consumers at this broker
        are interrupted. That is right if this broker serves nothing any more, and wrong while one bundle changes its
        owner or the metadata store is silent: then they are told METADATA_ERROR, which only has them ask again.
        """
        code = code_of(error)
        is_serving = not self.connection.context.ownership.is_lost
        return pb.METADATA_ERROR if code == pb.SERVICE_NOT_READY and is_serving else code

    async def _partitions(self, wanted: pb.CommandPartitionedMetadata) -> None:
        answer = pb.CommandPartitionedMetadataResponse(request_id=wanted.request_id)
        try:
            context = self.connection.context
            topic = TopicName.parse(wanted.topic)
            # The Java client reports the reason at once. The Go client reports the code only, so it is told that the
            # topic has no partitions, which it reports as a broker without transactions.
            if topic.is_transaction_coordinator and not self.connection.client_version.startswith(GO_CLIENT):
                raise UnsupportedError(NO_TRANSACTIONS)
            if not topic.is_transaction_coordinator:
                await context.authorizer.check_client(
                    self.connection, Right.PRODUCE_OR_CONSUME, topic, "Get Partition Metadata"
                )
                known = None if context.ownership.is_certain else context.partitions.get(topic)
                if known is None:
                    known = context.partitions.note(
                        topic,
                        await context.catalog.auto_partitions(
                            topic, may_create=wanted.auto_creation, on_created=self.connection.note_creation
                        ),
                    )
                answer.partitions = known
            answer.response = answer.SUCCESS
        except HeliographError as error:
            answer.response, answer.error, answer.message = answer.FAILED, self._code_of_lookup(error), str(error)
        self.connection.send(
            BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitioned_metadata_response=answer)
        )

    async def _topics(self, wanted: pb.CommandGetTopicsOfNamespace) -> None:
        try:
            tenant, namespace = namespace_parts(wanted.namespace)
            await self.connection.context.authorizer.check_client(
                self.connection, Right.PRODUCE_OR_CONSUME, f"{tenant}/{namespace}", "GetTopicsOfNamespace"
            )
            pattern = _pattern_of(wanted)
            names = await self.connection.context.topic_lists.matching(
                f"{tenant}/{namespace}", pattern, _DOMAINS_OF[wanted.mode]
            )
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
            return
        await asyncio.sleep(0)  # the list, its hash and the answer are three turns of the loop
        digest = topics_hash(names)
        await asyncio.sleep(0)
        answer = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        found = answer.get_topics_of_namespace_response  # built in place: a copy of the names takes as long again
        found.request_id, found.topics_hash = wanted.request_id, digest
        found.filtered, found.changed = pattern is not None, wanted.topics_hash != digest
        if found.changed:
            found.topics.extend(names)
        self.connection.send(answer)


def namespace_parts(name: str) -> tuple[str, str]:
    """Return the tenant and the local name of a namespace; raise BadRequestError if it has another form."""
    tenant, separator, namespace = name.partition("/")
    if not separator or not tenant or not namespace or "/" in namespace:
        raise BadRequestError(f"{name!r} is not of the form tenant/namespace", field="namespace")
    return tenant, namespace


def _pattern_of(wanted: pb.CommandGetTopicsOfNamespace) -> TopicsPattern | None:
    """Return the pattern of a question, None if the client has to apply it: it knows more kinds of expressions."""
    if not wanted.topics_pattern:
        return None
    try:
        return TopicsPattern(wanted.topics_pattern)
    except UnsupportedError as error:
        log.debug("a client filters the topics of %s itself: %s", wanted.namespace, error)
        return None
