"""Deletes states and results when their time has passed, and keeps schedules: one worker of a queue at a time does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from heliograph.base.clock import seconds_of, wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import AlreadyClosedError, HeliographError, ProtocolError
from heliograph.tasks.options import EXPIRY
from heliograph.tasks.records import JobRecord
from heliograph.tasks.scheduler import Schedules

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message
    from heliograph.tasks.session import QueueSession

AGAIN_SECONDS = 5.0  # after a failure
HELD_MESSAGES_MAX = 100  # requested ahead # I15

log = logging.getLogger(__name__)
_Expire = Callable[["Message"], Awaitable[None]]


class Expiry:
    """Follow states, results and schedules by a failover subscription; its backlog has not expired yet."""

    def __init__(self, client: AsyncClient, session: QueueSession, schedules: Schedules) -> None:
        self._session = session
        self._schedules = schedules
        self._seconds = seconds_of(session.options.results_for, "results_for")
        options = session.options
        self._consumers = {
            client.consumer(
                topic, EXPIRY, type="failover", initial_position="earliest", receiver_queue=HELD_MESSAGES_MAX
            ): expire
            for topic, expire in (
                (options.states_topic, self._expire),
                (options.results_topic, _nothing),
                (options.schedules_topic, self._keep),
            )
        }
        self._following: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._following = asyncio.get_running_loop().create_task(self._follow_all())

    async def stop(self) -> None:
        await end_task(self._following)
        await asyncio.gather(*(consumer.close() for consumer in self._consumers), return_exceptions=True)

    async def _follow_all(self) -> None:
        await asyncio.gather(*(self._follow(*each) for each in self._consumers.items()))

    async def _follow(self, consumer: AsyncConsumer[bytes], expire: _Expire) -> None:
        while True:
            message: Message | None = None
            try:
                message = await consumer.receive()
                await asyncio.sleep(max(0.0, message.publish_time_ms / 1000 + self._seconds - wall_ms() / 1000))
                await expire(message)
                await consumer.ack(message)
            except AlreadyClosedError:
                return
            except HeliographError as error:
                log.warning("%s expires nothing for %.0f s: %s", self._session.options.queue, AGAIN_SECONDS, error)
                if message is not None:
                    await consumer.nack(message)
                await asyncio.sleep(AGAIN_SECONDS)

    async def _expire(self, message: Message) -> None:
        """Delete the key of a job that has ended, if this is its last state. The last state of any other is published
        again: this subscription may be all that keeps it."""
        if message.key is None or not message.data:
            return
        try:
            record = JobRecord.decode(message.data)
        except ProtocolError as error:
            log.warning("%s: the state of job %s is left out: %s", message.topic, message.key, error)
            return
        if self._session.states.get(message.key) == record:
            await self._session.record(message.key, None if record.has_ended else record)

    async def _keep(self, message: Message) -> None:
        """Store a schedule again: it does not expire."""
        if message.key is not None and message.data:
            await self._schedules.open()
            await self._schedules.keep(message.key, message.data)


async def _nothing(message: Message) -> None:
    """Let a result expire: it is acknowledged, and nothing else holds it."""
