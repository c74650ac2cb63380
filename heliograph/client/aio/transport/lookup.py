"""Lookups: how many partitions a topic has, and which broker owns one."""

from __future__ import annotations

import asyncio
import logging
from random import Random

from heliograph.base.completion import end_task
from heliograph.base.errors import ConnectionLostError, HeliographError, ServiceNotReadyError
from heliograph.client.aio.transport.connection import BrokerConnection, RequestIdSpace
from heliograph.client.aio.transport.pool import ConnectionPool
from heliograph.client.options import ENCRYPTED, ClientOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.server_error import exception_of
from heliograph.protocol.topic_name import TopicName

REDIRECTS_MAX = 20

_T = pb.BaseCommand
_Lookup = pb.CommandLookupResponse
log = logging.getLogger(__name__)


class Lookup:
    """Asks any broker for the owner of a topic, and follows redirects until it is found."""

    def __init__(self, options: ClientOptions, pool: ConnectionPool, random: Random) -> None:
        self._options = options
        self._pool = pool
        self.service_urls = list(options.service_urls)
        random.shuffle(self.service_urls)
        self._asking: dict[BrokerConnection, asyncio.Task[None]] = {}  # about brokers that are silent

    async def any_connection(self) -> BrokerConnection:
        """Return a connection to any broker, the one that answered last if it still does.

        Raises:
            ConnectionLostError: No broker can be reached; the message lists each address and its failure.
        """
        try:
            return await self._first_reachable()
        except ConnectionLostError:
            if self._options.discovery_namespace is None or not await self._rediscover():
                raise
            return await self._first_reachable()

    async def partitions(self, topic: TopicName) -> int:
        """Return the number of partitions of ``topic``, 0 for a topic without.

        Raises:
            TopicNotFoundError, ServiceNotReadyError, ConnectionLostError, RequestTimeoutError: The broker's answer, or
                why there is none.
        """
        connection = await self.any_connection()

        def build(request_id: int) -> pb.BaseCommand:
            question = pb.CommandPartitionedMetadata(topic=str(topic), request_id=request_id)
            return pb.BaseCommand(type=_T.PARTITIONED_METADATA, partitioned_metadata=question)

        answer = await connection.request(build, RequestIdSpace.LOOKUP)
        if answer.response == pb.CommandPartitionedMetadataResponse.FAILED:
            raise exception_of(answer.error, answer.message)
        return int(answer.partitions)

    async def owner(self, topic: TopicName, *, is_confirmed: bool = True) -> BrokerConnection:
        """Return a connection to the broker that owns ``topic``.

        Args:
            is_confirmed: ask the owner that another broker names whether it is. Otherwise it may have changed just now:
                then that broker refuses the caller, who asks again.

        Raises:
            ServiceNotReadyError: The topic has no owner now, or the redirects do not end.
            TopicNotFoundError, ConnectionLostError, RequestTimeoutError, ...: The broker's answer, or why there is
                none.
        """
        connection = await self.any_connection()
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            answer = await self._ask(connection, topic, authoritative)
            if answer.response == _Lookup.FAILED and answer.error == pb.METADATA_ERROR:
                raise ServiceNotReadyError(answer.message)  # here it says that the owner changes
            if answer.response == _Lookup.FAILED:
                raise exception_of(answer.error, answer.message)
            url = answer.url_tls if connection.url.startswith(ENCRYPTED) else answer.url
            if not url:
                raise ServiceNotReadyError(f"{connection.url} names no broker for {topic}")
            connection = await self._pool.get(url)
            if answer.response == _Lookup.CONNECT or not (is_confirmed or answer.authoritative):
                return connection  # without authority, a broker names one that has the bundle already
            authoritative = answer.authoritative
        raise ServiceNotReadyError(f"the lookup of {topic} was redirected {REDIRECTS_MAX} times")

    def suspect(self, connection: BrokerConnection) -> None:
        """Ask another broker whether the topics of a silent one have moved; if so, its connection ends.

        A broker that stands still keeps its sockets open, but loses its topics with its session.
        """
        topics = [session.topic for session in connection.producers.values()]
        topics += [session.topic for session in connection.consumers.values()]
        if not topics or connection in self._asking:
            return
        task = asyncio.get_running_loop().create_task(self._leave_if_moved(connection, topics[0]))
        self._asking[connection] = task
        task.add_done_callback(lambda _: self._asking.pop(connection, None))

    async def close(self) -> None:
        """End what ``suspect`` began."""
        for task in list(self._asking.values()):
            await end_task(task)

    async def _leave_if_moved(self, silent: BrokerConnection, topic: TopicName) -> None:
        for url in [url for url in self.service_urls if url != silent.url]:
            try:
                owner = await self._owner_besides(silent, await self._pool.get(url), topic)
            except HeliographError as error:
                log.debug("%s does not say who owns %s: %s", url, topic, error)
                continue
            if owner is not None:
                if silent.url in self.service_urls:  # the next lookup asks others first
                    self.service_urls.remove(silent.url)
                    self.service_urls.append(silent.url)
                silent.abort(ConnectionLostError(f"{silent.url} is silent, and {topic} has moved to {owner}"))
            return

    async def _owner_besides(self, silent: BrokerConnection, asked: BrokerConnection, topic: TopicName) -> str | None:
        """Return the address of the owner as other brokers know it; None if that is still the silent one."""
        authoritative = False
        for _ in range(REDIRECTS_MAX):
            answer = await self._ask(asked, topic, authoritative)
            url = answer.url_tls if asked.url.startswith(ENCRYPTED) else answer.url
            if answer.response == _Lookup.FAILED or url == silent.url or not url:
                return None
            if answer.response == _Lookup.CONNECT:
                return str(url)
            asked, authoritative = await self._pool.get(url), answer.authoritative
        return None

    async def _ask(
        self, connection: BrokerConnection, topic: TopicName, authoritative: bool
    ) -> pb.CommandLookupResponse:
        def build(request_id: int) -> pb.BaseCommand:
            question = pb.CommandLookup(topic=str(topic), request_id=request_id, authoritative=authoritative)
            return pb.BaseCommand(type=_T.LOOKUP, lookup=question)

        answer: pb.CommandLookupResponse = await connection.request(build, RequestIdSpace.LOOKUP)
        return answer

    async def _first_reachable(self) -> BrokerConnection:
        failures: list[ConnectionLostError] = []
        for url in list(self.service_urls):
            try:
                return await self._pool.get(url)
            except ConnectionLostError as error:
                failures.append(error)
                if len(self.service_urls) > 1 and self.service_urls[0] == url:
                    self.service_urls.append(self.service_urls.pop(0))
        told = "no broker can be reached: " + "; ".join(map(str, failures))
        raise ConnectionLostError(told, field="address") from failures[-1]

    async def _rediscover(self) -> bool:
        """Ask Ray for brokers again; return False if there are no new ones."""
        from heliograph.client.discovery import (
            service_urls,  # Ray is only imported by callers that live in a Ray cluster
        )

        assert self._options.discovery_namespace is not None
        try:
            found = await asyncio.to_thread(
                service_urls,
                self._options.discovery_namespace,
                encrypted=self.service_urls[0].startswith(ENCRYPTED),  # what was encrypted stays so
            )
        except HeliographError as error:
            log.info("no brokers found through Ray: %s", error)
            return False
        if not found or set(found) == set(self.service_urls):
            return False
        self.service_urls = list(found)
        return True
