"""A watch for the topics of a namespace whose names match a regular expression."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from re import Pattern

from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    InvalidConfigError,
    QuotaExceededError,
    UnsupportedError,
)
from heliograph.client.aio.session import ClientSession
from heliograph.client.aio.transport.connection import RequestIdSpace
from heliograph.client.options import ConsumerOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import DEFAULT_NAMESPACE, DEFAULT_TENANT, DOMAINS, TopicName
from heliograph.protocol.topics_pattern import TopicsPattern

TOPICS_MAX = 10_000  # that one consumer receives from # I15

Changed = Callable[[Collection[TopicName], Collection[TopicName]], Awaitable[None]]
_T = pb.BaseCommand
log = logging.getLogger(__name__)


class PatternWatch:
    """Asks brokers every ``pattern_update_ms`` which topics match, as long as a consumer is open.

    The dead letter and retry topics of the consumer's own subscription never match: it would receive its dead letters.

    Args:
        own: Further topics of the consumer that do not match.
        changed: Awaited with the topics that are new and those that are gone. If it raises, both are passed again.
    """

    def __init__(
        self, session: ClientSession, options: ConsumerOptions, own: Collection[str], changed: Changed
    ) -> None:
        assert options.pattern is not None, "there is something to watch"
        self._session = session
        self._period = options.pattern_update_ms / 1000
        self._domain, self._namespace, self._expression = full_pattern(options.pattern)
        self._pattern = TopicsPattern(self._expression)
        self._own = {TopicName.parse(topic).partitioned_name for topic in own}
        self._own_endings = tuple(f"-{options.subscription}{ending}" for ending in ("-DLQ", "-RETRY"))
        self._changed = changed
        self._known: set[TopicName] = set()
        self._task: asyncio.Task[None] | None = None

    async def ask(self) -> set[TopicName]:
        """Return the topics that match now, with retries.

        Raises:
            QuotaExceededError: There are too many.
            NotPermittedError, ConnectionLostError, RequestTimeoutError: The broker's answer, or why there is none.
        """
        answer = await self._session.retry(self._ask)
        topics = {TopicName.parse(TopicName.parse(name).partitioned_name) for name in answer.topics}
        found = {topic for topic in topics if self._is_wanted(topic)}
        if len(found) > TOPICS_MAX:  # I15
            raise QuotaExceededError(f"{len(found)} topics match", field="topic", limit=f"{TOPICS_MAX} topics")
        return found

    def start(self, known: Collection[TopicName]) -> None:
        """Start watching, unless the consumer's options turn it off."""
        self._known = set(known)
        if self._period > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def forget(self, topic: TopicName) -> None:
        """Take a topic, or the topic of a partition, for new when it is seen again."""
        self._known.discard(TopicName.parse(topic.partitioned_name))

    async def check(self) -> None:
        """Compare once.

        Raises:
            HeliographError: No broker can be asked, or the new topics cannot be opened yet.
        """
        found = await self.ask()
        for topic in sorted(found - self._known, key=str):
            await self._changed([topic], [])
            self._known.add(topic)
        for topic in sorted(self._known - found, key=str):
            self._known.discard(topic)
            await self._changed([], [topic])

    def _is_wanted(self, topic: TopicName) -> bool:
        if str(topic) in self._own or topic.local_name.endswith(self._own_endings):
            return False
        return self._pattern.matches(f"{topic.namespace}/{topic.local_name}")

    async def _ask(self) -> pb.CommandGetTopicsOfNamespaceResponse:
        connection = await self._session.lookup.any_connection()
        kind = pb.CommandGetTopicsOfNamespace
        mode = kind.PERSISTENT if self._domain == "persistent" else kind.NON_PERSISTENT

        def build(request_id: int) -> pb.BaseCommand:
            question = kind(
                request_id=request_id, namespace=self._namespace, mode=mode, topics_pattern=self._expression
            )
            return pb.BaseCommand(type=_T.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=question)

        answer: pb.CommandGetTopicsOfNamespaceResponse = await connection.request(build, RequestIdSpace.LOOKUP)
        return answer

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._period)
            try:
                await self.check()
            except HeliographError as error:
                log.info("cannot look for topics that match %s, retrying later: %s", self._expression, error)


def pattern_text(expression: Pattern[str]) -> str:
    """Return the text of an expression that a consumer can have.

    Raises:
        UnsupportedError: It has flags, or a form that RE2 does not have.
        BadRequestError: As ``full_pattern`` raises it.
    """
    if expression.flags & ~re.UNICODE:
        raise UnsupportedError(f"{expression!r} has flags; write them into the expression: (?i)", field="topic")
    full_pattern(expression.pattern)
    return expression.pattern


def full_pattern(pattern: str) -> tuple[str, str, str]:
    """Return the domain and the namespace that a pattern is of, and the expression for names without domain.

    Args:
        pattern: An expression for the last part of names in ``public/default``, or with a namespace in front, or with a
            domain in front of that. Domain and namespace are no expressions.

    Raises:
        BadRequestError: The namespace is an expression, or missing behind the domain.
        UnsupportedError: The expression is none of RE2.
    """
    domain, separator, rest = pattern.partition("://")
    if not separator:
        domain, rest = "persistent", pattern
    parts = rest.split("/", 2)
    if len(parts) == 1 and not separator:
        parts = [DEFAULT_TENANT, DEFAULT_NAMESPACE, rest]
    if domain not in DOMAINS or len(parts) != 3:
        raise BadRequestError(f"{pattern!r} is not of the form tenant/namespace/expression", field="topic")
    namespace = TopicName.parse(f"{domain}://{parts[0]}/{parts[1]}/t").namespace
    expression = f"{namespace.replace('.', chr(92) + '.')}/(?:{parts[2]})"
    TopicsPattern(expression)
    if not parts[2]:
        raise InvalidConfigError("the pattern is empty", field="topic")
    return domain, namespace, expression
