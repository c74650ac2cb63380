"""A broker of taskiq on Heliograph, which also keeps the results (docs/tasks.md).

broker = HeliographBroker("embed")
@broker.task
async def embed(text: str) -> list[float]: ...
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import PickleSerializer
from typing_extensions import override

from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    HeliographError,
    NotFoundError,
    TopicTerminatedError,
)
from heliograph.client.access import connect_async
from heliograph.tasks.expiry import Expiry
from heliograph.tasks.options import SUBSCRIPTION, TaskOptions
from heliograph.tasks.records import ENCODING, ID, NAME, NOTE_CHARACTERS_MAX, PRIORITY, JobRecord, JobState
from heliograph.tasks.scheduler import Schedules
from heliograph.tasks.session import QueueSession
from heliograph.tasks.worker import RESTART_SECONDS

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message

_Result = TypeVar("_Result")

log = logging.getLogger(__name__)


class HeliographBroker(AsyncBroker):
    """Sends tasks to a durable queue and takes them from it; ``helio tasks list`` shows those that have ended.

    A task that was kicked is durable. A worker that is killed gives its tasks to others at once. The labels ``delay``
    (seconds), ``key`` and ``priority`` of a task are those of ``Task.submit``. Calls that reach the cluster raise the
    errors of ``AsyncProducer``, ``AsyncConsumer`` and ``heliograph.connect_async``.

    Args:
        queue: Topic of the queue.
        address: As ``heliograph.connect`` takes it; None: what ``heliograph.connect()`` finds.
        held: Tasks that a worker asks for ahead.
        serializer: How results are written; pickles by default, as the other backends of taskiq do.
        results_for: Seconds that results are kept, while workers run.
        priorities: Number of priorities.
        connect: Further arguments of ``heliograph.connect``.

    Raises:
        InvalidConfigError, InvalidTopicNameError: An argument is out of range.
    """

    def __init__(
        self,
        queue: str,
        address: str | None = None,
        *,
        held: int = 1,
        serializer: TaskiqSerializer | None = None,
        results_for: float = 86_400.0,
        priorities: int = 1,
        **connect: Any,
    ) -> None:
        super().__init__()
        self.options = TaskOptions(queue, results_for=results_for, priorities=priorities)
        self.result_backend = QueueResults(self, serializer or PickleSerializer())
        self._held = held
        self._connect = partial(connect_async, address, **connect)
        self._opening = asyncio.Lock()
        self._client: AsyncClient | None = None
        self._session: QueueSession | None = None
        self.names: dict[str, str] = {}  # of the tasks that this process runs, by their ids

    async def session(self) -> QueueSession:
        """Return the open session of the queue."""
        async with self._opening:
            if self._client is None:
                self._client = await self._connect()
            if self._session is None or self._session.failure is not None:
                self._session = QueueSession(self._client, self.options)
            await self._session.open()
            return self._session

    @override
    async def startup(self) -> None:
        """Connect to the cluster."""
        await self.session()
        await super().startup()

    @override
    async def shutdown(self) -> None:
        """Leave the cluster; other workers get the tasks that were not acknowledged."""
        await super().shutdown()
        client, self._client, self._session = self._client, None, None
        if client is not None:
            await client.close()

    @override
    async def kick(self, message: BrokerMessage) -> None:
        """Publish a task; it is durable when this returns."""
        labels = message.labels
        priority = int(labels.get("priority", 0))
        if not 0 <= priority < self.options.priorities:
            raise BadRequestError(
                f"priority is {priority}", field="priority", limit=f"0 to {self.options.priorities - 1}"
            )
        properties = {ID: message.task_id, NAME: message.task_name, ENCODING: "taskiq"}
        if priority:
            properties[PRIORITY] = str(priority)
        key = labels.get("key")
        await (await self.session()).submit(
            message.message,
            properties,
            key=None if key is None else str(key),
            delay=float(labels.get("delay", 0)),
            priority=priority,
        )

    @override
    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they come, those of all priorities, and let results expire meanwhile."""
        session = await self.session()
        await session.prepare_topics()
        client = session.client
        schedules = Schedules(client, self.options)
        expiry = Expiry(client, session, schedules)
        arrived: asyncio.Queue[tuple[AsyncConsumer[bytes], Message]] = asyncio.Queue(1)  # I15
        consumers = [
            client.consumer(topic, SUBSCRIPTION, type="shared", initial_position="earliest", receiver_queue=self._held)
            for topic in self.options.job_topics
        ]
        receiving = [asyncio.ensure_future(_receive(consumer, arrived)) for consumer in consumers]
        expiry.start()
        try:
            while True:
                getting = asyncio.ensure_future(arrived.get())
                try:
                    await asyncio.wait([getting, *receiving], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    if not getting.done():
                        getting.cancel()
                for each in receiving:
                    if each.done():
                        each.result()  # it raises why the tasks come no more
                consumer, message = getting.result()
                task_id = message.properties.get(ID, "")
                if await _in_time(partial(_has_ended, session, message, task_id)):
                    await _in_time(partial(self._acknowledge, consumer, message, task_id))
                    continue
                self.names[task_id] = message.properties.get(NAME, "")
                yield AckableMessage(data=message.data, ack=partial(self._acknowledge, consumer, message, task_id))
        finally:
            for each in receiving:
                each.cancel()
            await asyncio.gather(*receiving, return_exceptions=True)
            await expiry.stop()
            await schedules.close()
            await asyncio.gather(*(consumer.close() for consumer in consumers), return_exceptions=True)

    async def _acknowledge(self, consumer: AsyncConsumer[bytes], message: Message, task_id: str) -> None:
        self.names.pop(task_id, None)
        await consumer.ack(message)


class QueueResults(AsyncResultBackend[Any]):
    """The results and the progress of a broker's tasks, in the topics of its queue."""

    def __init__(self, broker: HeliographBroker, serializer: TaskiqSerializer) -> None:
        self._broker = broker
        self._serializer = serializer

    @override
    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        """Store a result, durable when this returns."""
        session = await self._broker.session()
        inline, at = await session.store_result(self._serializer.dumpb(result.model_dump()))
        state, note = (JobState.FAILURE, repr(result.error)) if result.is_err else (JobState.SUCCESS, "")
        await session.record(
            task_id,
            JobRecord(
                self._broker.names.get(task_id, ""),
                state,
                wall_ms(),
                note=note[:NOTE_CHARACTERS_MAX],
                result=inline,
                result_at=at,
            ),
        )

    @override
    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether a task has ended."""
        record = await self._known(task_id)
        return record is not None and record.has_ended

    @override
    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        """Return the result of a task that has ended.

        Raises:
            ResultGetError: It has none, or it has expired.
        """
        record = await self._known(task_id)
        if record is None or not record.has_ended:
            raise ResultGetError
        try:
            data = await (await self._broker.session()).load_result(record)
        except NotFoundError as error:
            raise ResultGetError from error
        found = TaskiqResult[Any].model_validate(self._serializer.loadb(data))
        if not with_logs:
            found.log = None
        return found

    @override
    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store how far a task is.

        Raises:
            BadRequestError: The progress has more than 1,000 characters as JSON.
        """
        note = progress.model_dump_json()
        if len(note) > NOTE_CHARACTERS_MAX:
            raise BadRequestError(
                "the progress is too long", field="progress", limit=f"{NOTE_CHARACTERS_MAX} characters of JSON"
            )
        record = JobRecord(self._broker.names.get(task_id, ""), JobState.STARTED, wall_ms(), note=note)
        await (await self._broker.session()).record(task_id, record)

    @override
    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return how far a task is, or None if it did not say."""
        record = await self._known(task_id)
        if record is None or record.state is not JobState.STARTED or not record.note:
            return None
        return TaskProgress[Any].model_validate_json(record.note)

    async def _known(self, task_id: str) -> JobRecord | None:
        session = await self._broker.session()
        await session.states.refresh()
        return session.states.get(task_id)


async def _receive(
    consumer: AsyncConsumer[bytes], arrived: asyncio.Queue[tuple[AsyncConsumer[bytes], Message]]
) -> None:
    while True:
        await arrived.put((consumer, await _in_time(consumer.receive)))


async def _in_time(call: Callable[[], Awaitable[_Result]]) -> _Result:
    """Return what a call returns, however long no broker answers it: an error would end the worker."""
    while True:
        try:
            return await call()
        except (AlreadyClosedError, TopicTerminatedError):
            raise
        except HeliographError as error:
            log.warning("no task is taken for %.0f s: %s", RESTART_SECONDS, error)
            await asyncio.sleep(RESTART_SECONDS)


async def _has_ended(session: QueueSession, message: Message, task_id: str) -> bool:
    """Return whether a task has a result already, whose worker ended before it acknowledged, or was revoked."""
    if message.delivery_attempt > 1:
        await session.states.refresh()
    known = session.states.get(task_id)
    return known is not None and known.has_ended
