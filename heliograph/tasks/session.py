"""The producers of a queue and the view of its states, in one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from heliograph.base.clock import Duration, wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    ConflictError,
    HeliographError,
    NotFoundError,
    NotPermittedError,
    TopicNotFoundError,
)
from heliograph.client.aio.handle import AsyncHandle
from heliograph.client.aio.producer.arguments import checked_text
from heliograph.client.aio.table_view import AsyncTableView
from heliograph.client.options import TableViewOptions
from heliograph.client.schemas.schema import Schema
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.options import EXPIRY, SUBSCRIPTION, JobRate, TaskOptions
from heliograph.tasks.records import KEY_BYTES_MAX, NAME, NAMED, RESULT_BYTES_INLINE, JobRecord, JobState

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.message import Message
    from heliograph.protocol.schema import SchemaInfo

COMPACTION_BYTES = 64 << 20  # of states that are published before they are compacted again
RESULT_SECONDS = 30.0  # for the message of a result, which is stored, to be read

log = logging.getLogger(__name__)
_Watcher = Callable[[JobRecord | HeliographError], None]


def check_job_key(key: str | None) -> None:
    """Raise BadRequestError if no job can have a key."""
    if key is not None and len(checked_text(key).encode()) > KEY_BYTES_MAX:
        raise BadRequestError("the key of a job is too long", field="key", limit=f"{KEY_BYTES_MAX} bytes")


@dataclass(frozen=True, slots=True)
class QueueLoad:
    """The load of a queue, of all its priorities.

    Attributes:
        backlog: Jobs that wait or run.
        delayed: How many of these jobs are for a later time.
        consumers: Names of the workers that take jobs.
    """

    backlog: int
    delayed: int
    consumers: tuple[str, ...]

    @property
    def due(self) -> int:
        """Return the number of jobs that wait or run now. Delayed jobs are not counted: they need no worker yet."""
        return max(0, self.backlog - self.delayed)

    @classmethod
    async def of(cls, client: AsyncClient, topics: Sequence[str], subscription: str = SUBSCRIPTION) -> QueueLoad:
        """Ask the brokers for the load of a subscription of some topics; a topic that is not there has none."""
        found: list[Mapping[str, Any]] = []
        for topic in topics:
            with contextlib.suppress(TopicNotFoundError):  # nothing was submitted yet
                stats = await client.admin.topic_stats(topic)
                found.append(stats["subscriptions"].get(subscription, {}))
        names = {consumer.get("consumerName", "") for each in found for consumer in each.get("consumers", ())}
        return cls(
            sum(int(each.get("backlogMessages", 0)) for each in found),
            sum(int(each.get("msgDelayed", 0)) for each in found),
            tuple(sorted(names)),
        )


class JobRecordSchema(Schema[JobRecord]):
    """States as the values of a topic that has no schema in the registry."""

    @override
    def encode(self, value: JobRecord) -> bytes:
        return value.encode()

    @override
    def decoder(self, written: SchemaInfo | None) -> Callable[[bytes], JobRecord]:
        return JobRecord.decode


class JobStates(AsyncTableView[JobRecord]):
    """The latest state of each job of a queue.

    Opening raises the errors of ``AsyncTableView``.
    """

    def __init__(self, client: AsyncClient, options: TaskOptions) -> None:
        topic = str(TopicName.parse(options.states_topic))
        super().__init__(client, TableViewOptions(topic, schema=JobRecordSchema(), keys_max=options.jobs_max))

    @override
    def _is_accepted(self, key: str, value: Any) -> bool:
        return isinstance(value, JobRecord) and value.replaces(self._values.get(key))


class QueueSession(AsyncHandle):
    """Submits, records and watches the jobs of one queue.

    Opening raises the errors of ``AsyncProducer`` and ``AsyncTableView``.
    """

    def __init__(self, client: AsyncClient, options: TaskOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        schema = JobRecordSchema()
        self.states = JobStates(client, options)
        self._recorder = client.producer(options.states_topic, schema=schema, initial_subscription=EXPIRY)
        self._results = client.producer(options.results_topic, initial_subscription=EXPIRY)
        self._letters = client.producer(options.letters_topic, initial_subscription=SUBSCRIPTION)
        self._queue = [client.producer(each, initial_subscription=SUBSCRIPTION) for each in options.job_topics]
        self._watchers: dict[str, list[_Watcher]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.failure: HeliographError | None = None  # why the states are followed no more

    async def submit(
        self, payload: bytes, properties: Mapping[str, str], *, key: str | None, delay: Duration, priority: int
    ) -> MessageId:
        """Publish a job; it is durable when this returns. Errors are those of ``AsyncProducer.send``."""
        check_job_key(key)
        await self.open()
        delay_or_none = delay or None
        return await self._queue[priority].send(payload, key=key, properties=properties, deliver_after=delay_or_none)

    async def submit_once(
        self,
        job_id: str,
        payload: bytes,
        properties: Mapping[str, str],
        *,
        key: str | None = None,
        delay: Duration = 0,
        priority: int = 0,
    ) -> None:
        """Publish a job, unless its caller chose an id that has a state.

        Raises:
            ConflictError: A job of another task has the id.
            HeliographError: As ``submit``.
        """
        if NAMED in properties:
            known = await self.known(job_id)
            if known is not None and known.task not in ("", properties[NAME]):
                raise ConflictError(f"{job_id!r} is the id of a job of the task {known.task!r}", field="id")
            if known is not None:
                return
        await self.submit(payload, properties, key=key, delay=delay, priority=priority)

    async def known(self, job_id: str) -> JobRecord | None:
        """Return the present record of a job."""
        await self.open()
        await self.states.refresh()
        return self.states.get(job_id)

    async def revoke(self, job_id: str, task: str) -> bool:
        """Revoke a job unless it has ended.

        Args:
            task: Name of its task, for a job without a state.

        Returns:
            Whether it is revoked now. A worker that ends it at the same moment may store a result nevertheless.
        """
        record = await self.known(job_id)
        if record is not None and record.has_ended:
            return record.state is JobState.REVOKED
        known = record or new_record(task, JobState.PENDING)
        return await self.settle(job_id, known.moved(JobState.REVOKED, wall_ms()))

    async def record(self, job_id: str, record: JobRecord | None) -> None:
        """Publish the state of a job, durable when this returns; None deletes it."""
        await self.open()
        await self._recorder.send(record, key=job_id)

    async def settle(self, job_id: str, record: JobRecord) -> bool:
        """Publish a state that must not hide a later one, such as the result that another worker stored meanwhile.

        Returns:
            Whether it holds. If not, the state that holds was published again, for compaction.
        """
        await self.open()
        await self.states.refresh()
        if not record.replaces(self.states.get(job_id)):
            return False
        await self.record(job_id, record)
        await self.states.refresh()
        known = self.states.get(job_id)
        if known is None or known == record or known.replaces(record):
            return True
        await self.record(job_id, known)
        return False

    async def bury(self, message: Message, properties: Mapping[str, str]) -> None:
        """Publish the letter of a job that failed for good, durable when this returns."""
        await self.open()
        await self._letters.send(message.data, key=message.key, properties=properties)

    async def store_result(self, data: bytes) -> tuple[bytes | None, str | None]:
        """Return the fields of a job's record that hold its result; a large result is stored first.

        Raises:
            MessageTooLargeError: The result has more than 64 MiB.
        """
        if len(data) <= RESULT_BYTES_INLINE:
            return data, None
        return None, str(await self._results.send(data))

    async def load_result(self, record: JobRecord) -> bytes:
        """Return the encoded result of a job that has one.

        Raises:
            NotFoundError: It has expired.
        """
        if record.result_at is None:
            return record.result or b""
        reader = self.client.reader(self.options.results_topic, record.result_at, inclusive=True, receiver_queue=1)
        async with reader:
            wanted = MessageId.parse(record.result_at)
            while await reader.has_message_available():
                message = await reader.receive(RESULT_SECONDS)
                if message.message_id == wanted:
                    return message.data
                if message.message_id > wanted:  # those before it are between its chunks
                    break
        raise NotFoundError("the result of this job has expired", field="id")

    def watch(self, job_id: str, watcher: _Watcher) -> Callable[[], None]:
        """Call ``watcher`` at each change of a job's state, or once with the failure that ends the view.

        Returns:
            A function that ends the watch.
        """
        watchers = self._watchers.setdefault(job_id, [])
        watchers.append(watcher)

        def end() -> None:
            watchers.remove(watcher)
            if not watchers and self._watchers.get(job_id) is watchers:
                del self._watchers[job_id]

        return end

    async def ended(self, job_id: str) -> JobRecord:
        """Return the final state of a job once there is one.

        Raises:
            AlreadyClosedError, QuotaExceededError, HeliographError: The states are followed no more.
        """
        await self.open()
        found: asyncio.Future[JobRecord] = asyncio.get_running_loop().create_future()

        def settle(record: JobRecord | HeliographError) -> None:
            if found.done():
                return
            if isinstance(record, HeliographError):
                found.set_exception(record)
            elif record.has_ended:
                found.set_result(record)

        end = self.watch(job_id, settle)
        try:
            if (record := self.states.get(job_id)) is not None:
                settle(record)
            return await found
        finally:
            end()

    async def compact(self, topic: str) -> None:
        """Have the broker compact a topic of the queue, if the role may say so."""
        try:
            await self.client.admin.namespaces.set_topic_policies(
                topic, {"compaction_threshold_bytes": COMPACTION_BYTES}
            )
        except NotPermittedError as error:
            log.warning("%s is compacted only if its namespace says so: %s", topic, error)

    async def prepare_topics(self) -> None:
        """Have the states compacted, and the rate of the task kept by the broker. For workers.

        Raises:
            NotPermittedError: The role may not administer the topics, and the task has a rate.
        """
        await self.compact(self.options.states_topic)
        policies = self.client.admin.namespaces
        if self.options.rate is None:
            return
        rate = JobRate.parse(self.options.rate)
        values = {
            "subscription_dispatch_messages_per_second": rate.jobs,
            "subscription_dispatch_period_seconds": rate.seconds,
        }
        for topic in self.options.job_topics:
            await policies.set_topic_policies(topic, values, subscription=SUBSCRIPTION)

    @override
    async def _do_open(self) -> None:
        handles: list[AsyncHandle] = [*self._queue, self._recorder, self._results, self._letters]
        await asyncio.gather(*(handle.open() for handle in handles))
        await self.states.open()
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    @override
    async def _do_close(self) -> None:
        await end_task(self._watching)
        self._tell_all(AlreadyClosedError("the session of this queue was closed"))
        handles: list[AsyncHandle] = [*self._queue, self._recorder, self._results, self._letters, self.states]
        await asyncio.gather(*(handle.close() for handle in handles))

    async def _watch(self) -> None:
        failure: HeliographError = AlreadyClosedError("the topic of the states was terminated")
        try:
            async for job_id, record in self.states.updates():
                if record is not None:
                    self._tell(job_id, record)
        except HeliographError as error:
            failure = error
        self.failure = failure
        self._tell_all(failure)

    def _tell(self, job_id: str, record: JobRecord | HeliographError) -> None:
        for watcher in list(self._watchers.get(job_id, ())):
            watcher(record)

    def _tell_all(self, failure: HeliographError) -> None:
        for job_id in list(self._watchers):
            self._tell(job_id, failure)


def new_record(task: str, state: JobState, key: str | None = None, parent: str | None = None) -> JobRecord:
    """Return a state of now."""
    return JobRecord(task=task, state=state, at_ms=wall_ms(), key=key, parent=parent)
