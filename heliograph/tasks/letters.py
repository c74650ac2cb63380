"""The jobs of a queue that failed for good: their letters, and submitting them again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heliograph.tasks.encoding import shown_arguments
from heliograph.tasks.options import PRIORITIES_MAX, SUBSCRIPTION, TaskOptions
from heliograph.tasks.records import ATTEMPTS, ENCODING, ID, NAME, PARENT, PRIORITY, REASON, TRACEBACK, JobState
from heliograph.tasks.session import QueueSession, new_record

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message

HELD_MAX = 1_000  # letters that are looked at, at a time # I15
QUIET_SECONDS = 1.0  # without a letter: there are no more
_Handle = Callable[["Message"], Awaitable[None]]
_OF_LETTERS = (REASON, TRACEBACK, ATTEMPTS)


@dataclass(frozen=True, slots=True)
class Letter:
    """A job that failed for good.

    Attributes:
        id: Id of the job; empty if the message was no job.
        task: Name of the task.
        reason: The last error.
        traceback: Where it was raised; empty if the function was not called.
        attempts: How often it was begun.
        failed_at_ms: When it failed, in ms since the epoch.
        arguments: Text of the job's arguments; of a pickle the values in it, read without running it.
    """

    id: str
    task: str
    reason: str
    traceback: str
    attempts: int
    failed_at_ms: int
    arguments: str

    @classmethod
    def of(cls, properties: Mapping[str, str], payload: bytes, failed_at_ms: int) -> Letter:
        """Return the letter that a message is, by its properties, payload and time of publishing."""
        attempts = properties.get(ATTEMPTS, "")
        return cls(
            properties.get(ID, ""),
            properties.get(NAME, ""),
            properties.get(REASON, ""),
            properties.get(TRACEBACK, ""),
            int(attempts) if attempts.isdecimal() else 0,
            failed_at_ms,
            shown_arguments(payload, properties.get(ENCODING, "")),
        )


class Letters:
    """The letters of one queue. Its calls may run beside those of others: each letter is handled once.

    Errors are those of ``AsyncConsumer``.
    """

    def __init__(self, client: AsyncClient, queue: str) -> None:
        self._client = client
        self._options = TaskOptions(queue)
        self._sessions: dict[int, QueueSession] = {}  # by priority

    async def found(self, most: int = HELD_MAX) -> list[Letter]:
        """Return the oldest letters, at most ``most`` of the first 1,000."""
        async with self._consumer() as consumer:
            letters: list[Letter] = []
            async for message in _held(consumer):
                letters.append(Letter.of(message.properties, message.data, message.publish_time_ms))
                if len(letters) == min(most, HELD_MAX):
                    break
            return letters

    async def submit_again(self, ids: Collection[str] | None = None) -> list[str]:
        """Submit jobs again, with the arguments that they had, and delete their letters.

        Args:
            ids: Of the jobs; None: all.

        Returns:
            The ids of the jobs that were submitted. A failed call may have submitted some.
        """
        try:
            return await self._each(ids, self._submit)
        finally:
            await asyncio.gather(*(session.close() for session in self._sessions.values()))
            self._sessions.clear()

    async def purge(self, ids: Collection[str] | None = None) -> list[str]:
        """Delete letters; the states of the jobs stay. Arguments and result are those of ``submit_again``."""
        return await self._each(ids, _nothing)

    async def _each(self, ids: Collection[str] | None, handle: _Handle) -> list[str]:
        done: list[str] = []
        async with self._consumer() as consumer:
            async for message in _held(consumer):
                job_id = message.properties.get(ID, "")
                if ids is not None and job_id not in ids:
                    continue
                await handle(message)
                await consumer.ack(message)
                done.append(job_id)
        return done

    async def _submit(self, message: Message) -> None:
        properties = {name: value for name, value in message.properties.items() if name not in _OF_LETTERS}
        text = properties.get(PRIORITY, "0")
        priority = int(text) if text.isdecimal() and int(text) < PRIORITIES_MAX else 0
        session = self._sessions.setdefault(
            priority, QueueSession(self._client, replace(self._options, priorities=priority + 1))
        )
        await session.open()
        if job_id := properties.get(ID):
            await session.states.refresh()
            known = session.states.get(job_id)
            if known is not None and known.state is not JobState.FAILURE:
                return  # it was submitted again already, or has a result
            # The state goes first: a worker acknowledges a job that it knows to have failed.
            record = new_record(properties.get(NAME, ""), JobState.PENDING, message.key, properties.get(PARENT))
            await session.record(job_id, record)
        await session.submit(message.data, properties, key=message.key, delay=0, priority=priority)

    def _consumer(self) -> AsyncConsumer[bytes]:
        return self._client.consumer(
            self._options.letters_topic,
            SUBSCRIPTION,
            type="shared",
            initial_position="earliest",
            receiver_queue=HELD_MAX,
        )


async def _held(consumer: AsyncConsumer[bytes]) -> AsyncIterator[Message]:
    """Yield the letters that there were at the call. Unacknowledged letters count as held, and bound it."""
    lasts = await consumer.last_message_ids()
    while messages := await consumer.receive_many(HELD_MAX, QUIET_SECONDS):
        for message in messages:
            if message.topic in lasts and message.message_id <= lasts[message.topic]:
                yield message


async def _nothing(message: Message) -> None:
    """Leave a letter as it is before it is deleted."""
