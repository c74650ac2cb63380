"""The commands LOOKUP, PARTITIONED_METADATA and GET_TOPICS_OF_NAMESPACE."""

from __future__ import annotations

import re
import zlib

from heliograph.actors.broker.namespaces.catalog import NON_PERSISTENT, PERSISTENT
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.server_error import code_of
from heliograph.protocol.topic_name import DOMAINS, TopicName

PATTERN_CHARACTERS_MAX = 1_000
_DOMAINS_OF = {
    pb.CommandGetTopicsOfNamespace.PERSISTENT: (PERSISTENT,),
    pb.CommandGetTopicsOfNamespace.NON_PERSISTENT: (NON_PERSISTENT,),
    pb.CommandGetTopicsOfNamespace.ALL: DOMAINS,
}


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
            owner = await context.ownership.resolve(topic, authoritative=wanted.authoritative)
            answer.url = owner.service_url
            if owner.service_url_tls:
                answer.url_tls = owner.service_url_tls
            answer.response = answer.CONNECT if owner.is_us else answer.REDIRECT
            answer.authoritative = owner.is_us or owner.is_assigned
        except HeliographError as error:
            answer.response, answer.error, answer.message = answer.FAILED, code_of(error), str(error)
        self.connection.send(BaseCommand(type=BaseCommand.LOOKUP_RESPONSE, lookup_response=answer))

    async def _partitions(self, wanted: pb.CommandPartitionedMetadata) -> None:
        answer = pb.CommandPartitionedMetadataResponse(request_id=wanted.request_id)
        try:
            catalog = self.connection.context.catalog
            topic = TopicName.parse(wanted.topic)
            answer.partitions = await catalog.auto_partitions(topic, may_create=wanted.auto_creation)
            answer.response = answer.SUCCESS
        except HeliographError as error:
            answer.response, answer.error, answer.message = answer.FAILED, code_of(error), str(error)
        self.connection.send(
            BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE, partitioned_metadata_response=answer)
        )

    async def _topics(self, wanted: pb.CommandGetTopicsOfNamespace) -> None:
        try:
            tenant, separator, namespace = wanted.namespace.partition("/")
            if not separator or not tenant or not namespace:
                raise BadRequestError(f"{wanted.namespace!r} is not of the form tenant/namespace", field="namespace")
            catalog, names = self.connection.context.catalog, []
            for domain in _DOMAINS_OF[wanted.mode]:
                names += [str(name) for name in await catalog.topics(tenant, namespace, domain)]
            if wanted.topics_pattern:
                names = _matching(names, wanted.topics_pattern)
        except HeliographError as error:
            self.connection.send_error(wanted.request_id, error)
            return
        digest = f"{zlib.crc32(','.join(names).encode()):08x}"
        is_same = wanted.topics_hash == digest
        answer = pb.CommandGetTopicsOfNamespaceResponse(
            request_id=wanted.request_id,
            topics=[] if is_same else names,
            filtered=bool(wanted.topics_pattern),
            topics_hash=digest,
            changed=not is_same,
        )
        self.connection.send(
            BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, get_topics_of_namespace_response=answer)
        )


def _matching(names: list[str], pattern: str) -> list[str]:
    """Return the names that a pattern matches. It is applied to the names without their domain."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise BadRequestError("the pattern is too long", field="topicsPattern", limit=f"{PATTERN_CHARACTERS_MAX}")
    try:
        expression = re.compile(pattern.partition("://")[2] or pattern)
    except re.error as error:
        raise BadRequestError(f"{pattern!r} is not a regular expression: {error}", field="topicsPattern") from error
    return [name for name in names if expression.fullmatch(name.partition("://")[2])]
