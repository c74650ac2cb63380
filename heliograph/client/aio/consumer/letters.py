"""Dead letters and retries: messages that a consumer publishes to another topic instead of receiving them again.

Topics and properties have the names that Pulsar's clients use, so these can receive the letters.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from heliograph.base.errors import HeliographError, InvalidTopicNameError, UnsupportedError
from heliograph.base.guard.quiet_log import SparseLog
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.options import ConsumerOptions, ProducerOptions
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import LOCAL_NAME_BYTES_MAX, TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.session import HandleOwner

REAL_TOPIC = "REAL_TOPIC"  # the topic that the message was published to first
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"  # its id there
ORIGIN_MESSAGE_ID_FORMERLY = "ORIGIN_MESSAGE_IDY_TIME"  # the name of the same in old clients, which new ones still set
RECONSUME_TIMES = "RECONSUMETIMES"
DELAY_TIME = "DELAY_TIME"  # ms
DEAD_SUFFIX = "-DLQ"
RETRY_SUFFIX = "-RETRY"

log = logging.getLogger(__name__)


class LetterTopics:
    """The dead letter topic and the retry topics of one consumer, and the producers that publish to them."""

    def __init__(self, client: HandleOwner, options: ConsumerOptions) -> None:
        self._log = SparseLog(log)
        self._client = client
        self._options = options
        self._retry_topics: set[str] = set()
        for topic in options.topics:  # a name that no topic can have is told now, not with the first letter
            if options.has_dead_letters:
                _check_name(self._dead_topic, topic, "dead_letter_topic")
            if options.retry:
                _check_name(self._retry_topic, topic, "retry_topic")
        if options.retry:
            self._retry_topics = set(map(self._retry_topic, options.topics))
        self._producers: dict[str, AsyncProducer] = {}  # by topic: at most two for each topic of the consumer

    @property
    def retry_topics(self) -> Sequence[str]:
        """Full names of the topics that the consumer receives from besides its own."""
        return sorted(self._retry_topics)

    def is_dead(self, message: Message) -> bool:
        """Return whether a message was delivered too often, so that no caller receives it any more."""
        limit, crashes_max, delivery = self._options.max_redeliver, self._options.max_crashes, message._delivery
        if crashes_max is not None and delivery is not None and delivery.lone_crashes > crashes_max:
            return True
        return limit is not None and message.redelivery_count > limit

    def is_last_delivery(self, message: Message) -> bool:
        """Return whether a message becomes a dead letter if its caller does not acknowledge it."""
        limit = self._options.max_redeliver
        return limit is not None and message.redelivery_count >= limit

    async def bury(self, message: Message) -> bool:
        """Publish a dead letter; return False if that failed, which is logged, and the message must be kept."""
        try:
            await self._publish(self._dead_topic(self._origin(message)), message, self._properties(message))
        except HeliographError as error:
            position = message.message_id
            self._log.warning("dead", "%s of %s is no dead letter yet: %s", position, message.topic, error)
            return False
        return True

    async def retry(self, message: Message, delay: float, properties: Mapping[str, str] | None) -> None:
        """Publish a message to the retry topic, or as a dead letter if it was there often enough.

        Raises:
            UnsupportedError: The consumer has no retry topic.
            HeliographError: Publishing failed.
        """
        if not self._options.retry:
            raise UnsupportedError("reconsume_later needs a consumer with retry=True", field="retry")
        noted = {**self._properties(message), **(properties or {})}
        times = _number(noted.get(RECONSUME_TIMES)) + 1
        noted |= {RECONSUME_TIMES: str(times), DELAY_TIME: str(round(max(delay, 0) * 1000))}
        limit = self._options.max_redeliver
        if limit is not None and times > limit:
            await self._publish(self._dead_topic(self._origin(message)), message, noted)
        else:
            topic = self._retry_topic(self._origin(message))
            await self._publish(topic, message, noted, delay)

    async def close(self) -> None:
        producers, self._producers = self._producers, {}
        await asyncio.gather(*(producer.close() for producer in producers.values()))

    # -- publishing

    async def _publish(
        self, topic: str, message: Message, properties: Mapping[str, str], delay: float = 0
    ) -> MessageId:
        producer = self._producers.get(topic)
        if producer is None:
            is_dead = topic not in self._retry_topics
            subscription = self._options.dead_letter_subscription if is_dead else None
            options = ProducerOptions(topic, initial_subscription=subscription)
            producer = self._producers[topic] = AsyncProducer(self._client, options)
        return await producer.send(
            message.data,
            key=message.key,
            properties=properties,
            event_time_ms=message.event_time_ms,
            deliver_after=delay if delay > 0 else None,
        )

    def _properties(self, message: Message) -> dict[str, str]:
        """Return the properties of a message with its origin, which it keeps over several retries."""
        origin = str(message.message_id)
        noted = {
            REAL_TOPIC: message.topic,
            ORIGIN_MESSAGE_ID: origin,
            ORIGIN_MESSAGE_ID_FORMERLY: origin,
        }
        return noted | dict(message.properties)

    # -- names

    def _origin(self, message: Message) -> str:
        """Return the name, without partition, of the topic that a message was published to first."""
        base = TopicName.parse(message.topic).partitioned_name
        if base not in self._retry_topics:
            return base
        try:
            return TopicName.parse(message.properties.get(REAL_TOPIC, "")).partitioned_name
        except HeliographError:
            return base  # another program published it there

    def _dead_topic(self, origin: str) -> str:
        base = TopicName.parse(origin).partitioned_name
        named = self._options.dead_letter_topic
        return str(TopicName.parse(named or f"{base}-{self._options.subscription}{DEAD_SUFFIX}"))

    def _retry_topic(self, origin: str) -> str:
        base = TopicName.parse(origin).partitioned_name
        if base in self._retry_topics:
            return base
        named = self._options.retry_topic or f"{base}-{self._options.subscription}{RETRY_SUFFIX}"
        return str(TopicName.parse(named))


def _check_name(named: Callable[[str], str], topic: str, option: str) -> None:
    """Raise InvalidTopicNameError if the name of a consumer's other topic is none, or too long for a new topic."""
    try:
        size = len(TopicName.parse(named(topic)).local_name.encode())
    except InvalidTopicNameError as error:
        raise InvalidTopicNameError(f"{option} of {topic[:80]}: {error}: choose another", field=option) from error
    if size > LOCAL_NAME_BYTES_MAX:
        raise InvalidTopicNameError(
            f"{option} of {topic[:80]}: the name has {size} bytes: choose another",
            field=option,
            limit=f"{LOCAL_NAME_BYTES_MAX} bytes",
        )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else 0
