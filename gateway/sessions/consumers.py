"""Consumers that stay open between REST requests.

A session is named by topic, subscription and a name that the caller may choose; callers that choose none share one.
The session remembers a delivered message until it is acknowledged, until the acknowledgement timeout (then it is
delivered again), or until the session is closed or has been idle for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from heliograph.base.completion import shielded
from heliograph.base.errors import AlreadyClosedError, ConflictError, NotFoundError
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.errors import TooManySessionsError
from heliograph.gateway.http.caller import Caller
from heliograph.gateway.http.limits import Shares
from heliograph.gateway.ports import ConsumerPort, MessagePort, without_payload
from heliograph.gateway.sessions.agents import Agents
from heliograph.gateway.sessions.receivers import ReceiverRoom
from heliograph.protocol.message_id import MessageId

UNACKNOWLEDGED_MAX = 50_000  # messages that one session delivered and that are not acknowledged


@dataclass(frozen=True, slots=True)
class SessionKey:
    """The name of a REST session."""

    topic: str
    subscription: str
    name: str = "default"
    role: str = ""  # of the caller: a session serves one role only


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """The subscription options of a REST consumer.

    Args:
        type: the client's name of a subscription type, such as ``shared``.
        receiver_queue: messages to request ahead, at most as many as one request takes: the subscription's other
            consumers cannot get a message that waits here.
    """

    type: str = "shared"
    initial_position: str = "latest"
    receiver_queue: int = 100


@dataclass(frozen=True, slots=True)
class DeliveredMessage:
    """A message without its payload, and the time of its delivery in seconds."""

    message: MessagePort
    delivered_at: float


@dataclass
class RestConsumer:
    """One consumer, the messages it delivered, and those it keeps for the next request."""

    consumer: ConsumerPort
    options: SubscribeOptions
    owner: Caller
    last_used: float
    receiver_bytes: int  # taken of the room
    users: int = 0
    is_left: bool = False  # the caller of the last request for messages went away while it waited
    polling: asyncio.Lock = field(default_factory=asyncio.Lock)
    undelivered: deque[MessagePort] = field(default_factory=deque)
    delivered: OrderedDict[MessageId, DeliveredMessage] = field(default_factory=OrderedDict)  # oldest first

    async def receive(
        self, max_messages: int, bytes_max: int, timeout: float, clock: Callable[[], float], left: asyncio.Future[None]
    ) -> list[MessagePort]:
        """Return the messages of one answer: kept ones first, else those that arrive in ``timeout`` seconds.

        Args:
            left: done once the caller is gone, which ends the wait. Its messages go to a request that waits already, or
                else back to the subscription (``RestConsumers.using``).

        Raises:
            TooManySessionsError: too many messages of this session are not acknowledged.
        """
        receiving = asyncio.ensure_future(self._receive(max_messages, bytes_max, timeout, clock, left))
        try:
            await asyncio.wait((receiving, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            receiving.cancel()  # without effect once it is done; a wait that is cancelled loses no message
            await asyncio.wait((receiving,))
        self.is_left = left.done()
        return [] if receiving.cancelled() else receiving.result()

    async def _receive(
        self, max_messages: int, bytes_max: int, timeout: float, clock: Callable[[], float], left: asyncio.Future[None]
    ) -> list[MessagePort]:
        room = min(max_messages, UNACKNOWLEDGED_MAX - len(self.delivered))
        if room <= 0:
            raise TooManySessionsError(
                f"{len(self.delivered)} messages of this session are not acknowledged: acknowledge some first",
                limit=f"{UNACKNOWLEDGED_MAX} messages",
            )
        try:
            async with asyncio.timeout(timeout):
                await self.polling.acquire()
        except TimeoutError:
            return []
        try:
            if not self.undelivered:
                self.undelivered.extend(await self.consumer.receive_many(room, timeout))
            if left.done():
                return []
            taken = self._take(room, bytes_max)
            now = clock()
            for message in taken:
                self.delivered[message.message_id] = DeliveredMessage(without_payload(message), now)
                self.delivered.move_to_end(message.message_id)
            return taken
        finally:
            self.polling.release()

    async def acknowledge(self, ids: Sequence[MessageId], cumulative: bool) -> None:
        """Acknowledge messages. The acknowledgement is durable once this returns."""
        if cumulative:
            last = ids[-1]
            await self.consumer.ack_cumulative(self._delivered_or_id(last))
            for id_ in [id_ for id_ in self.delivered if id_ <= last and id_.partition == last.partition]:
                del self.delivered[id_]
            return
        await self.consumer.ack_many([self._delivered_or_id(id_) for id_ in ids])
        for id_ in ids:
            self.delivered.pop(id_, None)

    async def redeliver(self, ids: Sequence[MessageId]) -> None:
        """Request that messages are delivered again."""
        for id_ in ids:
            await self.consumer.nack(self._delivered_or_id(id_))
            self.delivered.pop(id_, None)

    def _delivered_or_id(self, id_: MessageId) -> MessagePort | MessageId:
        """Return the message where this session delivered it: it knows more of its entry than its id does."""
        item = self.delivered.get(id_)
        return id_ if item is None else item.message

    def _take(self, max_messages: int, bytes_max: int) -> list[MessagePort]:
        taken: list[MessagePort] = []
        size = 0
        while self.undelivered and len(taken) < max_messages and size < bytes_max:
            message = self.undelivered.popleft()
            size += len(message.data)
            taken.append(message)
        return taken

    def overdue(self, before: float) -> list[MessageId]:
        """Return the ids of the messages that were delivered before a time and are not acknowledged."""
        ids = []
        for id_, item in self.delivered.items():
            if item.delivered_at >= before:
                break
            ids.append(id_)
        return ids


class RestConsumers:
    """The open REST sessions, at most ``rest_consumers_max`` (I15).

    Args:
        room: bound of the messages that they request ahead.
    """

    def __init__(
        self,
        agents: Agents,
        config: GatewayConfig,
        room: ReceiverRoom,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._room = room
        self._agents = agents
        self._shares = Shares("REST consumers", config.rest_consumers_per_caller_max, "rest_consumers_per_caller_max")
        self._config = config
        self._clock = clock
        self._sessions: dict[SessionKey, RestConsumer] = {}
        self._opening: dict[SessionKey, asyncio.Task[RestConsumer]] = {}

    @property
    def clock(self) -> Callable[[], float]:
        """Return the clock, in seconds, whose times ``expire`` takes."""
        return self._clock

    async def session(self, caller: Caller, key: SessionKey, options: SubscribeOptions | None = None) -> RestConsumer:
        """Return the session of that name; open it if there is none.

        Args:
            caller: counts for the session, if it opens it.
            options: how to subscribe; None: the open session's options, or the defaults.

        Raises:
            TopicNotFoundError: the topic does not exist; REST consume does not create it.
            ConflictError: the session is open with another subscription type.
            TooManySessionsError: ``rest_consumers_max`` sessions are open, or as many as the caller may have.
        """
        assert key.role == caller.role, "no caller gets a session of another role"
        session = self._sessions.get(key)
        if session is None:
            session = await self._open(caller, key, options or SubscribeOptions())
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
        """Mark a session as in use, so that it is not closed as idle. Close it if its consumer has ended.

        The next request then subscribes again, or fails with the reason. A session whose caller went away is closed,
        too, once nobody has a message of it to acknowledge: what it requested ahead goes to other consumers at once.
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
            if self._is_forsaken(session) and self._sessions.get(key) is session:
                await self.close_session(key)

    @staticmethod
    def _is_forsaken(session: RestConsumer) -> bool:
        return session.is_left and not session.users and not session.delivered

    async def close_session(self, key: SessionKey) -> bool:
        """Close one session; its unacknowledged messages are delivered again. Return False if there is none."""
        session = self._sessions.pop(key, None)
        if session is None:
            return False
        self._shares.give_back(session.owner)
        self._room.give_back(session.receiver_bytes)
        await session.consumer.close()
        return True

    async def drop(self, topic: str) -> None:
        """Close the sessions of a topic that is being deleted, and of its partitions."""
        partition = f"{topic}-partition-"
        for key in [key for key in self._sessions if key.topic == topic or key.topic.startswith(partition)]:
            await self.close_session(key)

    async def expire(self, now: float) -> None:
        """Close idle sessions, and request redelivery of overdue messages. ``now`` is a time of ``clock``."""
        idle_seconds = self._config.rest_consumer_idle_ms / 1000
        ack_seconds = self._config.rest_ack_timeout_ms / 1000
        for key, session in list(self._sessions.items()):
            if self._is_forsaken(session) or (session.users == 0 and now - session.last_used >= idle_seconds):
                await self.close_session(key)
            elif ack_seconds and (overdue := session.overdue(now - ack_seconds)):
                await session.redeliver(overdue)

    async def close(self) -> None:
        for key in list(self._sessions):
            await self.close_session(key)

    def __len__(self) -> int:
        return len(self._sessions) + len(self._opening)

    async def _open(self, caller: Caller, key: SessionKey, options: SubscribeOptions) -> RestConsumer:
        task = self._opening.get(key)
        if task is None:
            if len(self) >= self._config.rest_consumers_max:
                raise TooManySessionsError(
                    f"{len(self)} REST consumers are open: close some, or raise rest_consumers_max",
                    field="rest_consumers_max",
                    limit=f"{self._config.rest_consumers_max} consumers",
                )
            self._shares.take(caller)
            task = self._opening[key] = asyncio.ensure_future(self._subscribe(caller, key, options))
            task.add_done_callback(lambda _: self._opening.pop(key, None))
        return await shielded(task)  # a caller that is cancelled must not fail the others that wait

    async def _subscribe(self, caller: Caller, key: SessionKey, options: SubscribeOptions) -> RestConsumer:
        room = self._room.take()
        try:
            return await self._subscribed(caller, key, options, room)
        except BaseException:
            self._shares.give_back(caller)
            self._room.give_back(room)
            raise

    async def _subscribed(self, caller: Caller, key: SessionKey, options: SubscribeOptions, room: int) -> RestConsumer:
        # Raises TopicNotFoundError: subscribing would create the topic.
        await self._agents.admin_of(caller).partitions(key.topic)
        arguments: dict[str, Any] = {
            "type": options.type,
            "initial_position": options.initial_position,
            "receiver_queue": options.receiver_queue,
            "receiver_bytes_max": room,
        }
        client = self._agents.client_of(caller.principal)
        consumer = await client.consumer(key.topic, key.subscription, **arguments)
        session = self._sessions[key] = RestConsumer(consumer, options, caller, self._clock(), room)
        return session
