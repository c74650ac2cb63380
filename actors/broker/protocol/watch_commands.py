"""The commands WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE: a client follows the topics that match a pattern."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from heliograph.actors.broker.authorization import HeldRight
from heliograph.actors.broker.namespaces.topic_lists import (
    CHANGES_MAX,
    NAMES_BETWEEN_TURNS,
    bytes_of,
    matches,
)
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.protocol.lookup_commands import namespace_parts
from heliograph.base.errors import HeliographError, UnsupportedError
from heliograph.operations.table import Right, Scope
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.topic_name import TopicName
from heliograph.protocol.topics_pattern import TopicNames, TopicsPattern

WATCHERS_MAX = 100  # of one connection
RETRY_SECONDS = 1.0  # after the topics could not be read

log = logging.getLogger(__name__)


class TopicWatcher:
    """One watcher of a connection: what its client knows of the topics that match its pattern.

    Args:
        on_overflow: called when more names match than a watcher follows.
    """

    def __init__(
        self,
        connection: PulsarConnection,
        watcher_id: int,
        namespace: str,
        pattern: TopicsPattern,
        on_overflow: Callable[[], None],
    ) -> None:
        self.namespace = namespace
        self.is_closed = False
        self._connection = connection
        self._watcher_id = watcher_id
        self._pattern = pattern
        self._on_overflow = on_overflow
        self._known: TopicNames | None = None  # None until the list was read
        self._size = 0  # bytes_of all that is known # <= NAMES_BYTES_MAX
        self._changes: dict[str, bool] = {}  # not looked at yet
        self._is_behind = False  # changes were missed: the list is read again
        self._turn = asyncio.Lock()  # so that the client is told of changes in their order
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> tuple[Iterable[str], str]:
        """Return the matching names, and their hash. Later changes are relative to them.

        They are listed only the first time.
        """
        async with self._turn:
            if self._known is None:
                self._learn(await self._list())
                self._start()
            assert self._known is not None, "it was read"
            await asyncio.sleep(0)  # the list, its hash and the answer are three turns of the loop
            digest = self._known.hash
            await asyncio.sleep(0)
            return self._known, digest

    def changed(self, changes: Mapping[str, bool]) -> None:
        """Tell the client of those changes that concern its pattern."""
        self._changes.update(changes)
        if len(self._changes) > CHANGES_MAX:  # I15
            self._changes.clear()
            self._is_behind = True
        self._start()

    def missed(self) -> None:
        """Read the list again, and send the client the differences."""
        self._is_behind = True
        self._start()

    def close(self) -> None:
        """Tell the client nothing any more."""
        self.is_closed = True
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
        self._connection.context.topic_lists.leave(self.namespace, self)
        self._resize(0)

    def _start(self) -> None:
        if self._known is not None and (self._changes or self._is_behind) and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._tell())

    async def _tell(self) -> None:
        try:
            while (self._changes or self._is_behind) and not self.is_closed:
                async with self._turn:
                    changes, self._changes = self._changes, {}
                    is_behind, self._is_behind = self._is_behind, False
                    new, gone = await (self._compared() if is_behind else self._apply(changes))
                    if (new or gone) and not self.is_closed:
                        self._send_update(new, gone)
        except UnsupportedError as error:
            log.warning("a client cannot follow the topics that match any more: %s", error)
            self._on_overflow()
        except HeliographError as error:
            log.warning("the topics of %s cannot be read: %s", self.namespace, error)
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self.missed)

    def _learn(self, names: list[str]) -> None:
        self._known = TopicNames(names)
        self._resize(sum(map(bytes_of, names)))

    def _resize(self, size: int) -> None:
        if self.is_closed:
            size = 0
        before, self._size = self._size, size
        self._connection.context.topic_lists.account(before, size, self.namespace)

    async def _list(self) -> list[str]:
        return await self._connection.context.topic_lists.matching(self.namespace, self._pattern)

    async def _compared(self) -> tuple[list[str], list[str]]:
        """Read the list again; return which names are new in it, and which are gone."""
        assert self._known is not None, "it was read before"
        before = set(self._known)
        self._learn(await self._list())
        now = set(self._known)
        return sorted(now - before), sorted(before - now)

    async def _apply(self, changes: Mapping[str, bool]) -> tuple[list[str], list[str]]:
        """Change the known names; return the new names, and the names that are gone."""
        known, new, gone = self._known, list[str](), list[str]()
        assert known is not None, "it was read before"
        size = self._size
        for number, (name, exists) in enumerate(changes.items()):
            if number % NAMES_BETWEEN_TURNS == 0:
                await asyncio.sleep(0)
            if exists and not matches(self._pattern, TopicName.parse(name)):
                continue
            if not (known.add(name) if exists else known.discard(name)):
                continue
            (new if exists else gone).append(name)
            size += bytes_of(name) * (1 if exists else -1)
        self._resize(size)
        return new, gone

    def _send_update(self, new: list[str], deleted: list[str]) -> None:
        assert self._known is not None, "it was read before"
        update = pb.CommandWatchTopicUpdate(
            watcher_id=self._watcher_id,
            new_topics=new,
            deleted_topics=deleted,
            topics_hash=self._known.hash,
        )
        self._connection.send(BaseCommand(type=BaseCommand.WATCH_TOPIC_UPDATE, watch_topic_update=update))


class WatchCommands:
    """The watchers of one connection."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        self._watchers: dict[int, TopicWatcher] = {}
        connection.handlers[BaseCommand.WATCH_TOPIC_LIST] = lambda command, _: self._watch(command.watch_topic_list)
        connection.handlers[BaseCommand.WATCH_TOPIC_LIST_CLOSE] = self._close
        connection.on_lost.append(self._connection_lost)
        connection.opened.append(self._opened)

    async def _watch(self, wanted: pb.CommandWatchTopicList) -> None:
        """Open a watcher. A client that names an open one asks whether it has missed something."""
        try:
            watcher = self._watchers.get(wanted.watcher_id) or await self._open(wanted)
            names, digest = await watcher.read()
        except HeliographError as error:
            self._forget(wanted.watcher_id)
            self.connection.send_error(wanted.request_id, error)
            return
        answer = BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS)
        success = answer.watch_topic_list_success  # built in place: a copy of the names takes as long again
        success.request_id, success.watcher_id, success.topics_hash = wanted.request_id, wanted.watcher_id, digest
        if wanted.topics_hash != digest:  # else the client has them
            success.topic.extend(names)
        self.connection.send(answer)

    async def _open(self, wanted: pb.CommandWatchTopicList) -> TopicWatcher:
        tenant, namespace = namespace_parts(wanted.namespace)
        await self.connection.context.authorizer.check_client(
            self.connection, Right.PRODUCE_OR_CONSUME, f"{tenant}/{namespace}", "WatchTopicList"
        )
        if wanted.watcher_id in self._watchers:  # asked for twice, and opened meanwhile
            return self._watchers[wanted.watcher_id]
        if len(self._watchers) >= WATCHERS_MAX:
            raise UnsupportedError("the connection has too many watchers", limit=f"{WATCHERS_MAX} watchers")
        pattern = TopicsPattern(wanted.topics_pattern)
        overflow = partial(self._forget, wanted.watcher_id)
        watcher = TopicWatcher(self.connection, wanted.watcher_id, f"{tenant}/{namespace}", pattern, overflow)
        self._watchers[wanted.watcher_id] = watcher
        await self.connection.context.topic_lists.follow(watcher.namespace, watcher)
        if watcher.is_closed:
            watcher.close()  # meanwhile, by its client
        return watcher

    def _close(self, command: BaseCommand, section: memoryview | None) -> None:
        self._forget(command.watch_topic_list_close.watcher_id)
        self.connection.send_success(command.watch_topic_list_close.request_id)

    def _opened(self) -> Iterator[HeldRight]:
        """Yield the watchers. A client whose watcher is closed is told nothing any more; the protocol has no command
        for that, and the client asks again by itself now and then."""
        for watcher_id, watcher in list(self._watchers.items()):
            close = partial(self._revoke, watcher_id, watcher)
            yield HeldRight(Right.PRODUCE_OR_CONSUME, Scope.NAMESPACE, watcher.namespace, None, close)

    def _revoke(self, watcher_id: int, watcher: TopicWatcher) -> None:
        if self._watchers.get(watcher_id) is watcher:
            self._forget(watcher_id)

    def _forget(self, watcher_id: int) -> None:
        watcher = self._watchers.pop(watcher_id, None)
        if watcher is not None:
            watcher.close()

    def _connection_lost(self) -> None:
        for watcher_id in list(self._watchers):
            self._forget(watcher_id)
