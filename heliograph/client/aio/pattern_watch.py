"""A watch for the topics of a namespace whose names match a regular expression."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Collection
from re import Pattern

from heliograph.base.errors import (
    Advice,
    BadRequestError,
    HeliographError,
    InvalidConfigError,
    QuotaExceededError,
    UnsupportedError,
)
from heliograph.client.aio.session import ClientSession
from heliograph.client.aio.transport.connection import BrokerConnection, RequestIdSpace
from heliograph.client.options import ConsumerOptions
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import DEFAULT_NAMESPACE, DEFAULT_TENANT, DOMAINS, TopicName
from heliograph.protocol.topics_pattern import TopicNames, TopicsPattern

TOPICS_MAX = 10_000  # that one consumer receives from # I15

Changed = Callable[[Collection[TopicName], Collection[TopicName]], Awaitable[None]]
_T = pb.BaseCommand
log = logging.getLogger(__name__)


class PatternWatch:
    """Knows which topics match as long as a consumer is open: a broker tells what comes and goes.

    Every ``pattern_update_ms``, and when the connection is lost, a broker is asked, with the hash of what is known. A
    broker that tells nothing, or not of such topics, is asked for all of them.

    The dead letter and retry topics of the consumer's own subscription never match: it would receive its dead letters.

    Args:
        own: Further topics of the consumer that do not match.
        changed: Awaited with a topic that is new, or with one that is gone. If it raises for a new one, that is passed
            again behind others, unless it is gone by then.
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
        self._known: set[TopicName] = set()  # what ``changed`` was told
        self._names = TopicNames()  # all topics and partitions that match, as a broker told
        self._found: dict[TopicName, set[str]] = {}  # those of ``_names`` that are wanted, by topic
        self._pending: dict[TopicName, None] = {}  # those in only one of ``_known`` and ``_found``
        self._watcher_id = session.next_id()
        self._connection: BrokerConnection | None = None  # on which the watcher was opened
        self._early: list[pb.CommandWatchTopicUpdate] | None = None  # what is told while a question is unanswered
        self._wake = asyncio.Event()  # something was told, or the connection was lost
        self._task: asyncio.Task[None] | None = None

    async def ask(self) -> set[TopicName]:
        """Return the topics that match now, with retries.

        Raises:
            UnsupportedError, QuotaExceededError: There are too many.
            NotPermittedError, ConnectionLostError, RequestTimeoutError: The broker's answer, or why there is none.
        """
        await self._session.retry(self._ask)
        self._check_count()
        return set(self._found)

    def start(self, known: Collection[TopicName]) -> None:
        """Start watching, unless the consumer's options turn it off."""
        self._known = set(known)
        self._compare()
        if self._period > 0:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop watching. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        connection, self._connection = self._connection, None
        if connection is not None and connection.topic_watchers.pop(self._watcher_id, None) is not None:
            connection.request(self._close_command)  # its answer changes nothing

    def forget(self, topic: TopicName) -> None:
        """Take a topic, or the topic of a partition, for new when it is seen again."""
        whole = TopicName.parse(topic.partitioned_name)
        self._known.discard(whole)
        for name in self._found.pop(whole, set()):  # so that the next answer tells of it, if it exists
            self._names.discard(name)
        self._mark(whole)

    async def check(self) -> None:
        """Compare once.

        Raises:
            HeliographError: No broker can be asked, or the new topics cannot be opened yet.
        """
        await self.ask()
        await self._follow()

    def on_topics_changed(self, update: pb.CommandWatchTopicUpdate) -> None:
        """Note the changes that the broker reports."""
        if self._early is not None:
            self._early.append(update)
            return
        for name in update.deleted_topics:
            self._note(name, exists=False)
        for name in update.new_topics:
            self._note(name, exists=True)
        self._wake.set()

    def on_connection_lost(self, error: HeliographError) -> None:
        """Open the watcher elsewhere."""
        self._connection = None
        self._wake.set()

    def _note(self, name: str, *, exists: bool) -> None:
        if exists:
            self._names.add(name)
        else:
            self._names.discard(name)
        topic = TopicName.parse(TopicName.parse(name).partitioned_name)
        if not self._is_wanted(topic):
            return
        parts = self._found.setdefault(topic, set())
        if exists:
            parts.add(name)
        else:
            parts.discard(name)
        if not parts:
            del self._found[topic]
        self._mark(topic)

    def _mark(self, topic: TopicName) -> None:
        if (topic in self._found) is (topic in self._known):
            self._pending.pop(topic, None)
        else:
            self._pending[topic] = None

    def _learn(self, names: Collection[str]) -> None:
        self._names, self._found = TopicNames(names), {}
        for name in self._names:
            self._note(name, exists=True)
        self._compare()

    def _compare(self) -> None:
        """Note all topics that ``changed`` was not told of yet, new ones by their names."""
        self._pending = dict.fromkeys(sorted(self._found.keys() ^ self._known, key=str))

    def _check_count(self) -> None:
        if len(self._found) > TOPICS_MAX:  # I15
            raise QuotaExceededError(f"{len(self._found)} topics match", field="topic", limit=f"{TOPICS_MAX} topics")

    def _is_wanted(self, topic: TopicName) -> bool:
        if str(topic) in self._own or topic.local_name.endswith(self._own_endings):
            return False
        return self._pattern.matches(f"{topic.namespace}/{topic.local_name}")

    async def _ask(self) -> None:
        connection = self._connection or await self._session.lookup.any_connection()
        if self._period > 0 and self._domain == "persistent" and connection.takes_topic_watchers:
            try:
                await self._watch(connection)
                return
            except UnsupportedError as error:
                log.info("topics that match %s are looked for, and not followed: %s", self._expression, error)
                connection.topic_watchers.pop(self._watcher_id, None)
                self._connection = None
        kind = pb.CommandGetTopicsOfNamespace
        mode = kind.PERSISTENT if self._domain == "persistent" else kind.NON_PERSISTENT

        def build(request_id: int) -> pb.BaseCommand:
            question = kind(
                request_id=request_id, namespace=self._namespace, mode=mode, topics_pattern=self._expression
            )
            return pb.BaseCommand(type=_T.GET_TOPICS_OF_NAMESPACE, get_topics_of_namespace=question)

        self._learn((await connection.request(build, RequestIdSpace.LOOKUP)).topics)

    async def _watch(self, connection: BrokerConnection) -> None:
        """Open the watcher, or ask about it if it is open, and learn what matches."""
        known = self._names.hash

        def build(request_id: int) -> pb.BaseCommand:
            question = pb.CommandWatchTopicList(
                request_id=request_id,
                watcher_id=self._watcher_id,
                namespace=self._namespace,
                topics_pattern=self._expression,
                topics_hash=known,
            )
            return pb.BaseCommand(type=_T.WATCH_TOPIC_LIST, watch_topic_list=question)

        self._early = []
        connection.topic_watchers[self._watcher_id] = self
        self._connection = connection
        try:
            answer = await connection.request(build)
            if answer.topics_hash != known:
                self._learn(answer.topic)
        finally:  # after a failure, the next answer corrects what these make of older names
            early, self._early = self._early, None
            for update in early:
                self.on_topics_changed(update)

    def _close_command(self, request_id: int) -> pb.BaseCommand:
        close = pb.CommandWatchTopicListClose(request_id=request_id, watcher_id=self._watcher_id)
        return pb.BaseCommand(type=_T.WATCH_TOPIC_LIST_CLOSE, watch_topic_list_close=close)

    async def _follow(self) -> None:
        """Tell of each topic as it is when its turn comes: it may have gone while others were opened.

        A topic that cannot be opened waits behind the others, and keeps them waiting only if they would fail, too.
        """
        self._check_count()
        failure: HeliographError | None = None
        for topic in sorted(self._pending, key=self._found.__contains__):  # those that are gone are first
            if topic in self._known and topic not in self._found:
                self._known.discard(topic)
                self._mark(topic)
                await self._changed([], [topic])
            elif topic in self._found and topic not in self._known:
                try:
                    await self._changed([topic], [])
                    self._known.add(topic)
                except HeliographError as error:
                    failure = error
                    self._pending.pop(topic, None)  # it goes to the end
                    if error.advice is not Advice.STOP:
                        break
                finally:
                    self._mark(topic)
        if failure is not None:
            raise failure

    async def _run(self) -> None:
        due = self._session.loop.time() + self._period
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            is_told = self._wake.is_set() and self._connection is not None
            self._wake.clear()
            if not is_told:
                due = self._session.loop.time() + self._period
            try:
                await (self._follow() if is_told else self.check())
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
