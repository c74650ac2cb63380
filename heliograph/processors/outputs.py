"""The producers of a processor's partition: they publish each output once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from heliograph.base.errors import NotPermittedError, ProducerBusyError, UnsupportedError
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.client.aio.producer.routing import Router
from heliograph.client.schemas.schema import Schema
from heliograph.processors.records import GroupRecord, ProcessorOutput
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.producer.producer import AsyncProducer
    from heliograph.protocol.schema import SchemaInfo

BUSY_SECONDS = 0.25  # between two attempts at the name of an owner that stands still, until its connection is ended
DEDUPLICATION_SECONDS = 0.05  # between two looks whether a topic deduplicates
DEDUPLICATION_LOOKS = 200

quiet = QuietLog(logging.getLogger(__name__))


class WrittenSchema(Schema[bytes]):
    """A schema whose values are encoded already."""

    def __init__(self, inner: Schema[Any]) -> None:
        self._inner = inner

    @property
    @override
    def info(self) -> SchemaInfo | None:
        return self._inner.info

    @property
    @override
    def properties(self) -> Mapping[str, str]:
        return self._inner.properties

    @override
    def encode(self, value: bytes) -> bytes:
        return value

    @override
    def decoder(self, written: SchemaInfo | None) -> Callable[[bytes], bytes]:
        return bytes


class Outputs:
    """Sends the outputs of committed groups, under names and sequence ids that the next owner uses for the same ones.

    Args:
        name: Beginning of the names of the producers, the same for each owner of the partition.
        schemas: By full names of topics; topics without one have no schema.
    """

    def __init__(self, client: AsyncClient, name: str, schemas: Mapping[str, Schema[Any] | None]) -> None:
        self._client = client
        self._name = name
        self._schemas = schemas
        self._routers: dict[str, Router | None] = {}  # of each topic that was prepared; None: it has no partitions
        self._producers: dict[tuple[str, int], AsyncProducer[Any]] = {}

    async def prepare(self, topic: str) -> None:
        """Look a topic up, and have it deduplicate.

        Raises:
            UnsupportedError: It does not deduplicate, and the role may not set the policy.
        """
        if topic in self._routers:
            return
        async with self._client.producer(topic):  # which creates it
            partitions = await self._client.partitions(topic)
        await self._deduplicate(topic)
        self._routers[topic] = Router(partitions) if partitions else None

    def choose(self, output: ProcessorOutput) -> int:
        """Return the partition of an output to a topic that was prepared, -1 if the topic has none."""
        router = self._routers[output.topic]
        if router is None:
            return -1
        return router.advance() if output.key is None else router.of_key(output.key)

    async def publish(self, group: GroupRecord) -> None:
        """Publish the outputs of a committed group, except the outputs that the topics hold already.

        Raises:
            HeliographError: As ``AsyncProducer.send_many`` raises it. Another call publishes the missing outputs.
        """
        shares: dict[tuple[str, int], list[ProcessorOutput]] = {}
        for output in group.outputs:
            shares.setdefault((output.topic, output.partition), []).append(output)
        await asyncio.gather(*(self._publish(place, group, share) for place, share in shares.items()))

    async def close(self) -> None:
        await asyncio.gather(*(producer.close() for producer in self._producers.values()))

    async def _publish(self, place: tuple[str, int], group: GroupRecord, outputs: Sequence[ProcessorOutput]) -> None:
        first_id, name = group.next_ids[place], f"{self._name}/{group.life}"
        producer = self._producers.get(place)
        if producer is None:
            producer = await self._opened(place, name, first_id)
            stored = producer.last_sequence_id + 1 - first_id  # by the owner before
            if stored > 0:
                outputs = outputs[stored:]
                await producer.close()
                producer = await self._opened(place, name, first_id + stored)
            self._producers[place] = producer
        if outputs:
            await producer.send_many(
                [each.payload for each in outputs],
                keys=[each.key for each in outputs],
                properties=[each.properties for each in outputs],
                event_times_ms=[each.event_time_ms for each in outputs],
            )

    async def _opened(self, place: tuple[str, int], name: str, first_id: int) -> AsyncProducer[Any]:
        topic, partition = place
        full_name = topic if partition < 0 else str(TopicName.parse(topic).of_partition(partition))
        schema = self._schemas.get(topic)
        while True:
            producer: AsyncProducer[Any] = self._client.producer(
                full_name,
                schema=None if schema is None else WrittenSchema(schema),
                name=name,
                initial_sequence_id=first_id - 1,
                stop_at_failure=True,
                send_timeout_ms=0,
            )
            try:
                await producer.open()
                return producer
            except ProducerBusyError as error:  # most often the owner before, whose connection the broker is trying
                quiet.warning("busy", "%s waits to publish to %s: %s", name, full_name, error)
                await producer.close()
                await asyncio.sleep(BUSY_SECONDS)

    async def _deduplicate(self, topic: str) -> None:
        try:
            await self._client.admin.namespaces.set_topic_policies(topic, {"deduplication": True})
        except NotPermittedError as error:
            if not await self._deduplicates(topic):
                raise UnsupportedError(f"{topic} does not deduplicate: {error}", field="deduplication") from error
        for _ in range(DEDUPLICATION_LOOKS):
            if await self._deduplicates(topic):
                return
            await asyncio.sleep(DEDUPLICATION_SECONDS)
        raise UnsupportedError(f"{topic} does not deduplicate, although its policy says so", field="deduplication")

    async def _deduplicates(self, topic: str) -> bool:
        stats = await self._client.admin.topic_stats(topic)
        parts = stats.get("partitions") or {}
        return all(each.get("deduplicationStatus") == "Enabled" for each in (parts.values() if parts else [stats]))
