"""A worker: it runs the jobs of a queue, several at a time, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import socket
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import (
    AlreadyClosedError,
    HeliographError,
    InvalidConfigError,
    MessageTooLargeError,
    ReceiveTimeoutError,
    TopicTerminatedError,
)
from heliograph.client.aio.client import AsyncClient
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.attempt import JobFailure, JobRun
from heliograph.tasks.expiry import Expiry
from heliograph.tasks.options import SUBSCRIPTION, TaskOptions
from heliograph.tasks.records import (
    ATTEMPTS,
    ID,
    NAME,
    NAMED,
    PARENT,
    JobRecord,
    JobState,
    letter_properties,
)
from heliograph.tasks.scheduler import Scheduler, Schedules
from heliograph.tasks.session import QueueSession, new_record

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message
    from heliograph.client.sync.client import Client
    from heliograph.tasks.task import Task

TURN_SECONDS = 0.02  # that a slot waits for a job of one priority before it looks at the next
KEY_WAITING_MAX = 100  # jobs that wait in a worker for another one of their key; more wait at their slots # I15
RESTART_SECONDS = 5.0  # before a slot that failed to reach the broker goes on

log = logging.getLogger(__name__)


class RunningJobs:
    """Lets many jobs run at a time, or one alone."""

    def __init__(self) -> None:
        self._running = 0
        self._alone = 0  # that run alone, or wait for it; no other begins meanwhile
        self._changed = asyncio.Condition()

    async def none_is_alone(self) -> None:
        """Wait until no job runs alone or waits for it."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._alone == 0)

    def reserve_alone(self) -> None:
        """Let no other job begin: ``entered`` is called next, for a job that runs alone."""
        self._alone += 1

    @asynccontextmanager
    async def entered(self, *, alone: bool) -> AsyncIterator[None]:
        """Wait until a job may begin, and count it as running within the block."""
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: self._running == 0 if alone else self._alone == 0)
                self._running += 1
            try:
                yield
            finally:
                self._running -= 1
        finally:
            self._alone -= alone
            async with self._changed:
                self._changed.notify_all()


class TaskWorker:
    """Runs jobs of one queue in this event loop, and sync functions on threads.

    Args:
        client: The client of its handles; it is not closed here.
        tasks: The tasks of the queue.
        name: Shown with the jobs.

    Raises:
        InvalidConfigError: The tasks have different queues or options of a queue.
    """

    def __init__(self, client: AsyncClient, tasks: Sequence[Task[Any, Any]], name: str | None = None) -> None:
        self.options = _common_options(tasks)
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._tasks = {task.name: task for task in tasks}
        self._functions = {task.name: task.checked_function() for task in tasks}
        self.session = QueueSession(client, self.options)
        first, longest = self.options.backoff
        self._consumers: list[AsyncConsumer[bytes]] = [
            client.consumer(
                topic,
                SUBSCRIPTION,
                type="shared" if self.options.per_key is None else "key_shared",
                initial_position="earliest",
                receiver_queue=0,
                name=self.name,
                nack_delay_ms=max(1, round(first * 1000)),
                nack_multiplier=2.0,
                nack_delay_max_ms=max(1, round(longest * 1000)),
            )
            for topic in self.options.job_topics
        ]
        self._schedules = Schedules(client, self.options)
        self._expiry = Expiry(client, self.session, self._schedules)
        self._scheduling: asyncio.Task[None] | None = None
        self._running = RunningJobs()
        self._keys: dict[str, int] = {}  # jobs that run, by key, if the task limits them
        self._key_ended = asyncio.Condition()
        self._behind: dict[str, deque[Message]] = {}  # jobs that wait for another one of their key
        self._turns = [0.0] * len(self._consumers)
        self._threads = ThreadPoolExecutor(self.options.concurrency, thread_name_prefix="heliograph-task")
        self._receiving: set[asyncio.Task[Message]] = set()  # waits of slots that are free
        self._is_stopping = False

    async def run(self) -> None:
        """Work until this is cancelled; then take no job any more, let those in hand end, and leave.

        Raises:
            NotPermittedError, HeliographError: The queue cannot be opened.
        """
        slots: list[asyncio.Task[None]] = []
        try:
            await self.session.open()
            await self.session.prepare_topics()
            await asyncio.gather(*(consumer.open() for consumer in self._consumers))
            self._expiry.start()
            log.info("worker %s begins with the jobs of %s", self.name, self.options.queue)
            loop = asyncio.get_running_loop()
            self._scheduling = loop.create_task(Scheduler(self.session, self._schedules).run())
            slots = [loop.create_task(self._serve_slot()) for _ in range(self.options.concurrency)]
            ended, _ = await asyncio.wait(slots, return_when=asyncio.FIRST_COMPLETED)
            for slot in ended:
                slot.result()  # it raises: a slot ends by itself only if the worker cannot go on
        finally:
            await asyncio.shield(self._end(slots))

    async def _end(self, slots: Sequence[asyncio.Task[None]]) -> None:
        self._is_stopping = True
        self._interrupt_receiving()
        await end_task(self._scheduling)
        await asyncio.gather(*slots, return_exceptions=True)
        await self._expiry.stop()
        await self._schedules.close()
        await asyncio.gather(*(consumer.close() for consumer in self._consumers), return_exceptions=True)
        await self.session.close()
        self._threads.shutdown(wait=False)
        log.info("worker %s has ended", self.name)

    # -- taking jobs

    async def _serve_slot(self) -> None:
        while not self._is_stopping:
            await self._running.none_is_alone()
            receiving = asyncio.get_running_loop().create_task(self._next())
            self._receiving.add(receiving)
            try:
                await asyncio.wait([receiving])
                if receiving.cancelled():
                    continue
                message = receiving.result()
            except ReceiveTimeoutError:
                continue
            except (AlreadyClosedError, TopicTerminatedError):
                raise
            except HeliographError as error:
                log.warning("worker %s takes no job for %.0f s: %s", self.name, RESTART_SECONDS, error)
                await asyncio.sleep(RESTART_SECONDS)
                continue
            finally:
                self._receiving.discard(receiving)
            if self._is_stopping:
                return  # it came as the waits were interrupted; closing the consumer gives it back
            await self._serve_key(message)

    def _interrupt_receiving(self) -> None:
        """End the waits for a job. Messages that the broker has sent meanwhile go back to it."""
        for receiving in self._receiving:
            receiving.cancel()

    async def _next(self) -> Message:
        """Return the next job. Of several priorities, the one whose turn it is waits first.

        Raises:
            ReceiveTimeoutError: There was none of that priority.
            HeliographError: As receiving raises.
        """
        if len(self._consumers) == 1:
            return await self._consumers[0].receive()
        place = self._turns.index(min(self._turns))
        self._turns[place] += 1 << place  # a later priority has half the turns of the one before
        for other in range(len(self._consumers)):
            consumer = self._consumers[(place + other) % len(self._consumers)]
            try:
                return await consumer.receive(TURN_SECONDS)
            except ReceiveTimeoutError:
                continue
        raise ReceiveTimeoutError("no job of any priority came", field="timeout")

    async def _serve_key(self, message: Message) -> None:
        """Run a job, and then the jobs that waited for it; or leave it to the slot that runs its key."""
        key, most = message.key, self.options.per_key
        if key is None or most is None:
            await self._serve(message)
            return
        if self._keys.get(key, 0) >= most:
            waiting = self._behind.setdefault(key, deque())
            if len(waiting) < KEY_WAITING_MAX:
                waiting.append(message)
                return
            async with self._key_ended:  # this slot takes no other job meanwhile
                await self._key_ended.wait_for(lambda: self._keys.get(key, 0) < most)
            if self._is_stopping:
                return  # closing the consumer gives it back
        self._keys[key] = self._keys.get(key, 0) + 1
        try:
            await self._serve(message)
            while (waiting := self._behind.get(key, deque())) and not self._is_stopping:
                await self._serve(waiting.popleft())
        finally:
            self._keys[key] -= 1
            if not self._keys[key]:
                del self._keys[key]
                self._behind.pop(key, None)  # only a worker that stops has some left; the next one gets them
            async with self._key_ended:
                self._key_ended.notify_all()

    async def _serve(self, message: Message) -> None:
        try:
            await self._handle(message)
        except HeliographError as error:  # what it did not acknowledge is delivered again, to it or to another one
            if self.session.failure is not None:
                raise self.session.failure from error
            log.warning("job %s is given back: %s", message.properties.get(ID), error)
            with contextlib.suppress(HeliographError):
                await self._consumer_of(message).nack(message)

    # -- one job

    async def _handle(self, message: Message) -> None:
        job_id, name = message.properties.get(ID), message.properties.get(NAME, "")
        if not job_id or name not in self._tasks:
            why = f"no worker of this queue knows the task {name!r}" if job_id else "the message is no job"
            await self._bury(message, job_id, None, JobFailure(why))
            return
        is_named = NAMED in message.properties
        source = str(message.message_id)
        known = await self._known(job_id, must_be_new=is_named or message.delivery_attempt > 1)
        if known is not None and not _may_begin(known, name, source):
            known = await self._known(job_id, must_be_new=True)  # the view may be behind a job that was submitted again
        if known is not None and known.task not in ("", name):
            why = f"{job_id!r} is the id of a job of the task {known.task!r}"
            await self._bury(message, f"{job_id} ({name})", None, JobFailure(why))
            return
        if known is not None and not _may_begin(known, name, source):
            await self._consumer_of(message).ack(message)
            return
        record = self._begun(message, known, source)
        if record.crashes >= self.options.crashes:
            times = "once" if record.crashes == 1 else f"{record.crashes} times"
            await self._bury(message, job_id, record, JobFailure(f"its worker ended {times} while it ran alone"))
            return
        if record.is_alone:
            self._running.reserve_alone()
            self._interrupt_receiving()
        async with self._running.entered(alone=record.is_alone):
            await self._attempt(message, job_id, record, is_named=is_named)

    async def _known(self, job_id: str, *, must_be_new: bool) -> JobRecord | None:
        if must_be_new:
            await self.session.states.refresh()
        return self.session.states.get(job_id)

    def _begun(self, message: Message, known: JobRecord | None, source: str) -> JobRecord:
        """Return the state of a job that begins now. A job that a dead worker had begun runs alone."""
        was_lost = known is not None and known.state is JobState.STARTED
        crashes = 0 if known is None else known.crashes + (was_lost and known.is_alone)
        name, parent = message.properties[NAME], message.properties.get(PARENT)
        return replace(
            new_record(name, JobState.STARTED, message.key, parent),
            source=source,
            worker=self.name,
            attempt=message.redelivery_count + crashes + 1,
            is_alone=was_lost,
            crashes=crashes,
        )

    async def _attempt(self, message: Message, job_id: str, record: JobRecord, *, is_named: bool) -> None:
        run = JobRun(
            self.session,
            self._functions[record.task],
            self._threads,
            message,
            job_id,
            record,
            is_coroutine=inspect.iscoroutinefunction(self._tasks[record.task].function),
        )
        try:
            await self.session.record(job_id, record)
            known = await self._known(job_id, must_be_new=is_named)
            if known is not None and (known.has_ended or (is_named and known.source != record.source)):
                await self.session.record(job_id, known)  # which compaction would forget otherwise
                await self._consumer_of(message).ack(message)
                return
            await self._store(message, job_id, run, await run.outcome())
        finally:
            await run.end()

    async def _store(self, message: Message, job_id: str, run: JobRun, outcome: bytes | JobFailure | None) -> None:
        """Record how an attempt ended, and acknowledge the message or have it delivered again."""
        if isinstance(outcome, bytes):
            try:
                inline, at = await self.session.store_result(outcome)
            except MessageTooLargeError as error:
                outcome = JobFailure.of(error, is_final=True)
            else:
                ended = run.record.moved(JobState.SUCCESS, wall_ms(), result=inline, result_at=at, note="")
                await self.session.record(job_id, ended)
        if isinstance(outcome, JobFailure) and not outcome.is_final and message.redelivery_count < self.options.retries:
            retry = run.record.moved(JobState.RETRY, wall_ms(), is_alone=False, note=outcome.text)
            if await self.session.settle(job_id, retry):
                await self._consumer_of(message).nack(message)
                return
        elif isinstance(outcome, JobFailure):
            await self._bury(message, job_id, run.record, outcome)
            return
        await self._consumer_of(message).ack(message)  # it has a result, was revoked, or another worker has ended it

    async def _bury(self, message: Message, job_id: str | None, record: JobRecord | None, why: JobFailure) -> None:
        """Publish the letter of a job, record that it failed, and acknowledge it, in this order."""
        attempt = record.attempt if record is not None else message.delivery_attempt
        log.warning("job %s of %s failed for good: %s", job_id, self.options.queue, why.text)
        kept = {**message.properties, ATTEMPTS: str(attempt), **({ID: job_id} if job_id else {})}
        await self.session.bury(message, letter_properties(message.key, kept, why.text, why.traceback))
        if job_id:
            begun = record or new_record(message.properties.get(NAME, ""), JobState.PENDING, message.key)
            ended = begun.moved(JobState.FAILURE, wall_ms(), is_alone=False, note=why.text)
            await self.session.settle(job_id, ended)
        await self._consumer_of(message).ack(message)

    def _consumer_of(self, message: Message) -> AsyncConsumer[bytes]:
        if len(self._consumers) == 1:
            return self._consumers[0]
        topic = TopicName.parse(message.topic).partitioned_name
        return self._consumers[self.options.job_topics.index(topic)]


def _common_options(tasks: Sequence[Task[Any, Any]]) -> TaskOptions:
    """Return the options of the queue, which are the first task's.

    Raises:
        InvalidConfigError: Another task has others.
    """
    first = tasks[0].options
    for task in tasks:
        if task.options != first:
            raise InvalidConfigError(
                f"the tasks {tasks[0].name} and {task.name} of one worker have different options", field="queue"
            )
    if len({task.name for task in tasks}) < len(tasks):
        raise InvalidConfigError("two tasks of one queue have the same name", field="name")
    return first


def _may_begin(known: JobRecord, name: str, source: str) -> bool:
    """Return whether a message of a job with a state may be begun."""
    return known.task in ("", name) and not known.has_ended and known.source in ("", source)


async def serve(client: Client, tasks: Sequence[Task[Any, Any]], name: str | None) -> None:
    """Work in this event loop on own connections until cancelled; raises as ``Task.work``."""
    own = AsyncClient(client.options)
    try:
        await TaskWorker(own, tasks, name).run()
    finally:
        await asyncio.shield(own.close())
