"""The topics and partitions that one consumer receives from, which grow while it is open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from heliograph.base.errors import HeliographError, TopicNotFoundError
from heliograph.client.aio.consumer.inbox import Inbox, PermitTurns
from heliograph.client.aio.consumer.partition import PartitionConsumer
from heliograph.client.aio.growth import GrowthWatch
from heliograph.client.aio.handle import open_all
from heliograph.client.aio.pattern_watch import PatternWatch
from heliograph.client.aio.session import ClientSession
from heliograph.client.options import ConsumerOptions
from heliograph.client.schemas.schema import Schema
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

log = logging.getLogger(__name__)


class SubscribedParts:
    """The partitions of all topics of a consumer.

    Args:
        options: Those with which the partitions subscribe.
        retry_topics: Topics to receive from besides those of the options; from their first message on, since all of
            them are of this subscription.
        on_ack_timeout: Told of entries that were not acknowledged in time.

    Attributes:
        inbox: The inbox that all of them deliver into.
        by_name: Each partition, or topic without partitions, by its full name. It changes in place.
    """

    def __init__(
        self,
        session: ClientSession,
        options: ConsumerOptions,
        schema: Schema | None,
        retry_topics: Sequence[str],
        on_ack_timeout: Callable[[Sequence[MessageId]], None],
    ) -> None:
        self.inbox = Inbox(sources=0)
        self.by_name: dict[str, PartitionConsumer] = {}
        self._session = session
        self._options = options
        self._schema = schema
        self._on_ack_timeout = on_ack_timeout
        self._retry_topics = [TopicName.parse(topic) for topic in retry_topics]
        self._growth = GrowthWatch(session, {}, self._subscribe_later)
        self._pattern: PatternWatch | None = None
        if options.pattern is not None:
            own = {*retry_topics, *([options.dead_letter_topic] if options.dead_letter_topic else [])}
            self._pattern = PatternWatch(session, options, own, self._on_topics)

    async def open(self) -> None:
        """Subscribe to all topics, or to none; raises as ``AsyncConsumer``."""
        try:
            await self._open()
        except BaseException:
            await self.stop_watching()
            raise

    async def _open(self) -> None:
        topics = [TopicName.parse(topic) for topic in self._options.topics]
        if self._pattern is not None:
            topics = sorted(await self._pattern.ask(), key=str)
            self.inbox.sources = 1  # the namespace: there may always be another topic
        counts = {topic: await self._session.partitions(topic) for topic in [*topics, *self._retry_topics]}
        names = [name for topic in topics for name in topic.partitions(counts[topic])]
        retries = [name for topic in self._retry_topics for name in topic.partitions(counts[topic])]
        sharers = len(names) + len(retries)
        self.inbox.sources += sharers
        parts = self._made(names, self._options, sharers)
        parts += self._made(retries, replace(self._options, initial_position="earliest"), sharers)
        await open_all(parts)
        self.by_name |= {part.topic_name: part for part in parts}
        for topic, count in counts.items():
            self._growth.add(topic, count)
        if self._pattern is not None:
            self._pattern.start(topics)

    async def stop_watching(self) -> None:
        """Look for no more topics and partitions."""
        await self._growth.stop()
        if self._pattern is not None:
            await self._pattern.stop()

    async def close(self) -> None:
        """Send the acknowledgements that are left, then leave the topics."""
        await asyncio.gather(*(part.close() for part in list(self.by_name.values())))

    def _made(self, names: Collection[TopicName], options: ConsumerOptions, sharers: int) -> list[PartitionConsumer]:
        queue = max(1, options.receiver_queue // max(1, sharers))
        bytes_max = max(1, options.receiver_bytes_max // max(1, sharers))
        turns = self.inbox.turns
        if turns is None and options.is_shared and options.receiver_queue < sharers:
            turns = self.inbox.turns = PermitTurns(self.inbox, options.receiver_queue, self._session.loop)
        return [
            PartitionConsumer(
                self._session,
                name,
                options,
                self.inbox,
                queue=queue,
                turns=turns,
                bytes_max=bytes_max,
                schema=self._schema,
                on_failed=self._on_failed,
                on_ack_timeout=self._on_ack_timeout,
            )
            for name in names
        ]

    async def _subscribe_later(self, names: Sequence[TopicName]) -> None:
        """Subscribe to topics and partitions that were added since the opening, from their first messages on."""
        options = replace(self._options, initial_position="earliest")
        if options.start is not None:
            options = replace(options, start=MessageId.EARLIEST)
        parts = self._made(names, options, len(self.by_name) + len(names))
        self.inbox.sources += len(names)
        self.by_name |= {part.topic_name: part for part in parts}  # the first may deliver before the last is open
        try:
            await open_all(parts)
        except BaseException:
            self._forget(parts)
            raise

    def _forget(self, parts: Collection[PartitionConsumer]) -> None:
        for part in parts:
            if self.by_name.pop(part.topic_name, None) is not None:
                self.inbox.sources -= 1

    # -- topics of a pattern

    async def _on_topics(self, added: Collection[TopicName], removed: Collection[TopicName]) -> None:
        for topic in added:
            count = await self._session.partitions(topic)
            await self._subscribe_later(topic.partitions(count))
            self._growth.add(topic, count)
        for topic in removed:
            self._growth.forget(topic)
            gone = [part for part in self.by_name.values() if part.topic.partitioned_name == str(topic)]
            self._forget(gone)
            for part in gone:
                await part.close()

    def _on_failed(self, part: PartitionConsumer, error: HeliographError) -> None:
        """End the consumer with the error of one part, unless it is of a pattern, and its topic was deleted."""
        if self._pattern is not None and isinstance(error, TopicNotFoundError):
            log.info("%s was deleted: the consumer goes on without it", part.topic_name)
            self._forget([part])
            self._pattern.forget(part.topic)
        else:
            self.inbox.fail(error)
