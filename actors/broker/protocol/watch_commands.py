"""The commands WATCH_TOPIC_LIST and WATCH_TOPIC_LIST_CLOSE: a client follows the topics that match a pattern."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from heliograph.actors.broker.authorization import HeldRight
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.protocol.lookup_commands import matching, namespace_parts, topics_hash
from heliograph.base.errors import HeliographError, UnsupportedError
from heliograph.operations.table import Right, Scope
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.topics_pattern import TopicsPattern

WATCHERS_MAX = 100  # of one connection


class TopicWatcher:
    """One watcher of a connection: what its client knows of the topics that match its pattern."""

    def __init__(self, connection: PulsarConnection, watcher_id: int, namespace: str, pattern: TopicsPattern) -> None:
        self.namespace = namespace
        self.is_closed = False
        self._connection = connection
        self._watcher_id = watcher_id
        self._pattern = pattern
        self._known: list[str] = []
        self._next: list[str] | None = None
        self._turn = asyncio.Lock()  # so that the client is told of changes in their order
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> list[str]:
        """Return the names that match now. Later changes are told relative to them."""
        async with self._turn:
            names = await self._connection.context.topic_lists.names(self.namespace)
            self._known = await matching(names, self._pattern)
            return self._known

    def changed(self, names: list[str]) -> None:
        """Tell the client what is different in the list of all topics of the namespace."""
        self._next = names
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    def close(self) -> None:
        """Tell the client nothing any more."""
        self.is_closed = True
        if self._task is not None:
            self._task.cancel()
        self._connection.context.topic_lists.leave(self.namespace, self.changed)

    async def _tell(self) -> None:
        while self._next is not None:
            names, self._next = self._next, None
            async with self._turn:
                found = await matching(names, self._pattern)
                before, now = set(self._known), set(found)
                self._known = found
                if before != now and not self.is_closed:
                    self._send_update(sorted(now - before), sorted(before - now))

    def _send_update(self, new: list[str], deleted: list[str]) -> None:
        update = pb.CommandWatchTopicUpdate(
            watcher_id=self._watcher_id,
            new_topics=new,
            deleted_topics=deleted,
            topics_hash=topics_hash(self._known),
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
            names = await watcher.read()
        except HeliographError as error:
            self._forget(wanted.watcher_id)
            self.connection.send_error(wanted.request_id, error)
            return
        digest = topics_hash(names)
        success = pb.CommandWatchTopicListSuccess(
            request_id=wanted.request_id,
            watcher_id=wanted.watcher_id,
            topic=[] if wanted.topics_hash == digest else names,  # the client has them
            topics_hash=digest,
        )
        self.connection.send(BaseCommand(type=BaseCommand.WATCH_TOPIC_LIST_SUCCESS, watch_topic_list_success=success))

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
        watcher = TopicWatcher(self.connection, wanted.watcher_id, f"{tenant}/{namespace}", pattern)
        self._watchers[wanted.watcher_id] = watcher
        await self.connection.context.topic_lists.follow(watcher.namespace, watcher.changed)
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
