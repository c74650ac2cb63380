"""Finds partitions and owners of topics by asking brokers."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from heliograph.aio.connection import Connection, Space
from heliograph.aio.pool import ConnectionPool
from heliograph.errors import ConnectionLostError, HeliographError, ServiceNotReadyError
from heliograph.options import ClientOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.server_error import exception_of
from heliograph.protocol.topic_name import TopicName

REDIRECTS_MAX = 20

_T = pb.BaseCommand
_Lookup = pb.CommandLookupResponse
_log = logging.getLogger(__name__)


class Lookup:
    """Asks any broker where a topic is served, and follows redirects to the one that serves it."""

    def __init__(self, options: ClientOptions, pool: ConnectionPool, random: Random) -> None:
        self._options = options
        self._pool = pool
        self.service_urls = list(options.service_urls)
        random.shuffle(self.service_urls)

    async def any_connection(self) -> Connection:
        """A connection to any broker; one that answered last time is asked first.

        Raises:
            ConnectionLostError: no broker can be reached; the message lists each address and its failure.
        """
        try:
            return await self._first_reachable()
        except ConnectionLostError:
            if self._options.discovery_namespace is None or not await self._rediscover():
                raise
            return await self._first_reachable()

    async def partitions(self, topic: TopicName) -> int:
        """Partitions of ``topic``, 0 when it has none.

        Raises:
            TopicNotFoundError, ServiceNotReadyError, ConnectionLostError, RequestTimeoutError: as the broker answers.
        """
        connection = await self.any_connection()

        def build(request_id: int) -> pb.BaseCommand:
            question = pb.CommandPartitionedMetadata(topic=str(topic), request_id=request_id)
            return pb.BaseCommand(type=_T.PARTITIONED_METADATA, partitioned_metadata=question)

        answer = await connection.request(build, Space.LOOKUP)
        if answer.response == pb.CommandPartitionedMetadataResponse.FAILED:
            raise exception_of(answer.error, answer.message)
        return int(answer.partitions)

    async def owner(self, topic: TopicName) -> Connection:
        """A connection to the broker that serves ``topic``.

        Raises:
            ServiceNotReadyError: nobody owns it for the moment, or the redirects do not end.
            TopicNotFoundError, ConnectionLostError, RequestTimeoutError, ...: as the broker answers.
        """
        connection = await self.any_connection()
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            answer = await self._ask(connection, topic, authoritative)
            if answer.response == _Lookup.FAILED:
                raise exception_of(answer.error, answer.message)
            url = answer.url_tls if connection.url.startswith("pulsar+ssl") else answer.url
            if not url:
                raise ServiceNotReadyError(f"{connection.url} names no broker for {topic}")
            connection = await self._pool.get(url)
            if answer.response == _Lookup.CONNECT:
                return connection
            authoritative = answer.authoritative
        raise ServiceNotReadyError(f"looking up {topic} was redirected {REDIRECTS_MAX} times")

    async def _ask(self, connection: Connection, topic: TopicName, authoritative: bool) -> pb.CommandLookupResponse:
        def build(request_id: int) -> pb.BaseCommand:
            question = pb.CommandLookup(topic=str(topic), request_id=request_id, authoritative=authoritative)
            return pb.BaseCommand(type=_T.LOOKUP, lookup=question)

        answer: pb.CommandLookupResponse = await connection.request(build, Space.LOOKUP)
        return answer

    async def _first_reachable(self) -> Connection:
        failures = []
        for url in list(self.service_urls):
            try:
                return await self._pool.get(url)
            except ConnectionLostError as error:
                failures.append(str(error))
                if len(self.service_urls) > 1 and self.service_urls[0] == url:
                    self.service_urls.append(self.service_urls.pop(0))
        raise ConnectionLostError("no broker can be reached: " + "; ".join(failures), field="address")

    async def _rediscover(self) -> bool:
        """Asks Ray for brokers again; False when that brings nothing new."""
        from heliograph.discovery import service_urls  # Ray is only imported by callers that live in a Ray cluster

        assert self._options.discovery_namespace is not None
        try:
            found = await asyncio.to_thread(service_urls, self._options.discovery_namespace)
        except HeliographError as error:
            _log.info("no brokers found through Ray: %s", error)
            return False
        if not found or set(found) == set(self.service_urls):
            return False
        self.service_urls = list(found)
        return True
