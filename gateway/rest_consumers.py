"""Consumers kept open between REST requests.

A session is named by topic, subscription and a name that the caller may choose; callers that name none share one. A
message handed out stays with the session until it is acknowledged, until the acknowledgement timeout (then it is
delivered again), or until the session is closed or idle for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from gateway.config import GatewayConfig
from gateway.errors import TooManySessionsError
from gateway.ports import Admin, Client, Consumer, Message, without_payload
from heliograph.errors import AlreadyClosedError, ConflictError, NotFoundError
from heliograph.protocol.message_id import MessageId

UNACKNOWLEDGED_MAX = 50_000  # messages handed out by one session and not acknowledged


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What names a REST consumer."""

    topic: str
    subscription: str
    name: str = "default"


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """How a REST consumer subscribes.

    Args:
        type: one of the client's words, such as ``shared``.
        receiver_queue: messages asked for ahead of the requests. No more than one request takes: what waits here is
            out of reach for the subscription's other consumers.
    """

    type: str = "shared"
    initial_position: str = "latest"
    receiver_queue: int = 100


@dataclass(frozen=True, slots=True)
class HandedOut:
    """A message without its payload, and when it was handed out."""

    message: Message
    when: float


@dataclass
class RestConsumer:
    """One consumer, what it handed out, and what it holds back for the next request."""

    consumer: Consumer
    options: SubscribeOptions
    last_used: float
    users: int = 0
    polling: asyncio.Lock = field(default_factory=asyncio.Lock)
    held_back: deque[Message] = field(default_factory=deque)
    handed_out: OrderedDict[MessageId, HandedOut] = field(default_factory=OrderedDict)  # oldest first

    async def receive(
        self, max_messages: int, bytes_max: int, timeout: float, clock: Callable[[], float]
    ) -> list[Message]:
        """Messages for one answer: what was held back first, else what arrives in ``timeout`` seconds."""
        room = min(max_messages, UNACKNOWLEDGED_MAX - len(self.handed_out))
        if room <= 0:
            raise TooManySessionsError(
                f"{len(self.handed_out)} messages of this session are not acknowledged: acknowledge some first",
                limit=f"{UNACKNOWLEDGED_MAX} messages",
            )
        try:
            async with asyncio.timeout(timeout):
                await self.polling.acquire()
        except TimeoutError:
            return []
        try:
            if not self.held_back:
                self.held_back.extend(await self.consumer.receive_many(room, timeout))
            taken = self._take(room, bytes_max)
            now = clock()
            for message in taken:
                self.handed_out[message.message_id] = HandedOut(without_payload(message), now)
                self.handed_out.move_to_end(message.message_id)
            return taken
        finally:
            self.polling.release()

    def put_back(self, messages: Sequence[Message]) -> None:
        """Take back what could not be handed to the caller; the next request gets it first."""
        for message in reversed(messages):
            self.handed_out.pop(message.message_id, None)
            self.held_back.appendleft(message)

    async def acknowledge(self, ids: Sequence[MessageId], cumulative: bool) -> None:
        """Acknowledge; durable once this returns."""
        if cumulative:
            last = ids[-1]
            await self.consumer.ack_cumulative(self._known(last))
            for id_ in [id_ for id_ in self.handed_out if id_ <= last and id_.partition == last.partition]:
                del self.handed_out[id_]
            return
        await self.consumer.ack_many([self._known(id_) for id_ in ids])
        for id_ in ids:
            self.handed_out.pop(id_, None)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Have messages delivered again."""
        for id_ in ids:
            await self.consumer.nack(self._known(id_))
            self.handed_out.pop(id_, None)

    def _known(self, id_: MessageId) -> Message | MessageId:
        """The message itself where this session handed it out; it knows more of its entry than its id does."""
        item = self.handed_out.get(id_)
        return id_ if item is None else item.message

    def _take(self, max_messages: int, bytes_max: int) -> list[Message]:
        taken: list[Message] = []
        size = 0
        while self.held_back and len(taken) < max_messages and size < bytes_max:
            message = self.held_back.popleft()
            size += len(message.value)
            taken.append(message)
        return taken

    def overdue(self, before: float) -> list[MessageId]:
        """Ids of the messages handed out before a moment and not acknowledged since."""
        ids = []
        for id_, item in self.handed_out.items():
            if item.when >= before:
                break
            ids.append(id_)
        return ids


class RestConsumers:
    """At most ``rest_consumers_max`` sessions (I15)."""

    def __init__(
        self, client: Client, admin: Admin, config: GatewayConfig, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._admin = admin
        self._config = config
        self._clock = clock
        self._sessions: dict[SessionKey, RestConsumer] = {}
        self._opening: dict[SessionKey, asyncio.Task[RestConsumer]] = {}

    @property
    def clock(self) -> Callable[[], float]:
        """Seconds, as ``expire`` wants them."""
        return self._clock

    async def session(self, key: SessionKey, options: SubscribeOptions | None = None) -> RestConsumer:
        """The session of that name, opened when it is not there.

        Args:
            options: how to subscribe; None: as the open session does, or by default.

        Raises:
            TopicNotFoundError: the topic does not exist; REST consume creates none.
            ConflictError: the session is open with another subscription type.
            TooManySessionsError: as many sessions are open as may be.
        """
        session = self._sessions.get(key)
        if session is None:
            session = await self._open(key, options or SubscribeOptions())
        if options is not None and options.type != session.options.type:
            raise ConflictError(
                f"session {key.name!r} of subscription {key.subscription!r} is open with type {session.options.type}: "
                "close it, or name another session",
                field="type",
            )
        session.last_used = self._clock()
        return session

    @contextlib.asynccontextmanager
    async def using(self, key: SessionKey, session: RestConsumer) -> AsyncIterator[None]:
        """Keep a session from being closed as idle; close it if its consumer turns out to be over.

        The next request then subscribes anew, or learns why it cannot.
        """
        session.users += 1
        try:
            yield
        except (AlreadyClosedError, NotFoundError):
            if self._sessions.get(key) is session:
                await self.close_session(key)
            raise
        finally:
            session.users -= 1
            session.last_used = self._clock()

    async def close_session(self, key: SessionKey) -> bool:
        """Close one session; what it did not acknowledge is delivered again. False: there was none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        await session.consumer.close()
        return True

    async def drop(self, topic: str) -> None:
        """Close the sessions of a topic that is being deleted, and of its partitions."""
        partition = f"{topic}-partition-"
        for key in [key for key in self._sessions if key.topic == topic or key.topic.startswith(partition)]:
            await self.close_session(key)

    async def expire(self, now: float) -> None:
        """Close sessions that are idle, and have overdue messages delivered again."""
        idle_seconds = self._config.rest_consumer_idle_ms / 1000
        ack_seconds = self._config.rest_ack_timeout_ms / 1000
        for key, session in list(self._sessions.items()):
            if session.users == 0 and now - session.last_used >= idle_seconds:
                await self.close_session(key)
            elif ack_seconds and (overdue := session.overdue(now - ack_seconds)):
                await session.redeliver(overdue)

    async def close(self) -> None:
        """Close all sessions."""
        for key in list(self._sessions):
            await self.close_session(key)

    def __len__(self) -> int:
        return len(self._sessions) + len(self._opening)

    async def _open(self, key: SessionKey, options: SubscribeOptions) -> RestConsumer:
        task = self._opening.get(key)
        if task is None:
            if len(self) >= self._config.rest_consumers_max:
                raise TooManySessionsError(
                    f"{len(self)} REST consumers are open: close some, or raise rest_consumers_max",
                    field="rest_consumers_max",
                    limit=f"{self._config.rest_consumers_max} consumers",
                )
            task = self._opening[key] = asyncio.ensure_future(self._subscribe(key, options))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await asyncio.shield(task)  # a caller that goes away must not fail the others that wait

    async def _subscribe(self, key: SessionKey, options: SubscribeOptions) -> RestConsumer:
        await self._admin.partitions(key.topic)  # raises TopicNotFoundError: subscribing would create the topic
        arguments: dict[str, Any] = {
            "type": options.type,
            "initial_position": options.initial_position,
            "receiver_queue": options.receiver_queue,
            "receiver_bytes_max": self._config.receiver_bytes_max,
        }
        consumer = await self._client.consumer(key.topic, key.subscription, **arguments)
        session = self._sessions[key] = RestConsumer(consumer, options, self._clock())
        return session
