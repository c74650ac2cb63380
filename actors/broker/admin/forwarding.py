"""How an operation reaches the broker that owns the topic: here, or at a peer, once or for each partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from heliograph.actors.broker.admin.topics import OwnedTopics
from heliograph.actors.broker.broker_context import BrokerContext
from heliograph.base.completion import all_ended
from heliograph.base.errors import BadRequestError, NotFoundError, ServiceNotReadyError
from heliograph.operations.table import AdminOperation, Owner
from heliograph.protocol.topic_name import TopicName

Json = dict[str, Any]

PARTITIONS_AT_ONCE_MAX = 32  # asked for their statistics


class AdminApi(Protocol):
    """The calls that brokers make to each other."""

    async def forwarded(self, method: str, arguments: Json) -> Any:
        """Run a method of ``OwnedTopics`` on ``arguments["topic"]``, here and nowhere else.

        Raises:
            ServiceNotReadyError: this broker is not the owner either.
        """

    async def asked(self, method: str, arguments: Json) -> Any:
        """Run a method of ``BrokerDuties``."""


PeerOf = Callable[[str], AdminApi]


class OwnerCalls:
    """Runs methods of ``OwnedTopics`` at the owner of the topic.

    Args:
        owned: runs them here.
        peer: finds another broker by its actor name; None if there is only this one.
    """

    def __init__(self, context: BrokerContext, owned: OwnedTopics, peer: PeerOf | None) -> None:
        self._catalog = context.catalog
        self._ownership = context.ownership
        self._owned = owned
        self._peer = peer

    def serves(self, topic: TopicName) -> bool:
        """Return whether a topic is open here, and no other broker can own it: then metadata need not be asked."""
        return self._ownership.knows and self._owned.is_open(topic)

    async def call(self, operation: AdminOperation, arguments: Json) -> Any:
        """Run an operation that consists of the owner's method of the same name and nothing else."""
        if operation.owner is Owner.OF_ONE:
            return await self.at_one(operation.method_name, **arguments)
        assert operation.owner is Owner.OF_EACH, f"{operation.name} is implemented on any broker"
        await self.at_each(operation.method_name, **arguments)
        return None

    async def at(self, topic: TopicName, method: str, /, **arguments: Any) -> Any:
        """Run a method at the owner of a topic without partitions, or of one partition."""
        owner = None if self.serves(topic) else await self._ownership.resolve(topic)
        if owner is None or owner.is_us:
            return await self._owned.run(method, topic, arguments)
        if self._peer is None:
            raise ServiceNotReadyError(f"{topic} is served by {owner.broker_id}")
        return await self._peer(owner.actor_name).forwarded(method, {"topic": str(topic), **arguments})

    async def at_one(self, method: str, /, topic: str, **arguments: Any) -> Any:
        """Run a method at the owner of a topic.

        Raises:
            BadRequestError: the topic is partitioned.
        """
        name = TopicName.parse(topic)
        if await self._catalog.partitions(name):
            raise BadRequestError(f"{name} is partitioned: ask for one of its partitions", field="topic")
        return await self.at(name, method, **arguments)

    async def at_each(self, method: str, /, topic: str, **arguments: Any) -> dict[str, Any]:
        """Run a method for each partition in turn, or for the topic itself; return the answers by full name."""
        return {str(part): await self.at(part, method, **arguments) for part in await self._parts(topic)}

    async def at_each_that_has_it(self, method: str, /, topic: str, **arguments: Any) -> list[Any]:
        """Run a method for each partition. Some partitions, but not all, may lack its subject.

        Raises:
            NotFoundError: all partitions lack it.
        """
        answers, missing = [], None
        for part in await self._parts(topic):
            try:
                answers.append(await self.at(part, method, **arguments))
            except NotFoundError as error:
                missing = error
        if missing is not None and not answers:
            raise missing
        return answers

    async def at_once(
        self, method: str, topic: TopicName, partitions: int, arguments: Callable[[TopicName], Json] = lambda part: {}
    ) -> dict[str, Json]:
        """Run a method for all partitions concurrently, with the arguments of each; return the answers by full name."""
        limit = asyncio.Semaphore(PARTITIONS_AT_ONCE_MAX)

        async def ask(part: TopicName) -> Json:
            async with limit:
                answer: Json = await self.at(part, method, **arguments(part))
                return answer

        names = topic.partitions(partitions)
        return dict(zip(map(str, names), await all_ended(map(ask, names)), strict=True))

    async def run_here(self, method: str, arguments: Json) -> Any:
        """Run a method that another broker forwarded; see ``AdminApi.forwarded``."""
        name = TopicName.parse(arguments.pop("topic"))
        owner = await self._ownership.resolve(name, authoritative=True)
        if not owner.is_us:
            raise ServiceNotReadyError(f"{name} is served by {owner.broker_id}")
        return await self._owned.run(method, name, arguments)

    async def _parts(self, topic: str) -> list[TopicName]:
        name = TopicName.parse(topic)
        return list(name.partitions(await self._catalog.partitions(name)))
