"""Ray Serve's asynchronous tasks on Heliograph: ``@task_consumer`` without Celery and Redis (docs/tasks.md).

TaskProcessorConfig(queue_name="embed", adapter="heliograph.serve:TaskProcessor", adapter_config=AdapterConfig())
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from ray.serve.schema import TaskProcessorAdapter, TaskProcessorConfig, TaskResult
from typing_extensions import override

from heliograph.base.errors import BadRequestError, HeliographError, InvalidConfigError
from heliograph.client.access import connect
from heliograph.client.options import build
from heliograph.client.sync.handle import threads
from heliograph.tasks.encoding import decode, encode
from heliograph.tasks.options import RETRIES_MAX, SUBSCRIPTION, Encoding, TaskOptions
from heliograph.tasks.records import ENCODING, ID, ID_CHARACTERS_MAX, NAME, NAMED, PRIORITY, JobState
from heliograph.tasks.session import QueueLoad, QueueSession
from heliograph.tasks.task import Task
from heliograph.tasks.worker import TaskWorker

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.message import Message
    from heliograph.client.sync.client import Client
    from heliograph.tasks.attempt import JobFailure
    from heliograph.tasks.records import JobRecord

ENDING_SECONDS = 10.0  # for the jobs in hand of a replica that ends
_OPTIONS = ("id", "key", "delay", "priority")

log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class AdapterConfig(BaseModel):
    """How a deployment reaches its queue; further fields are those of ``TaskOptions``, such as ``per_key``.

    Attributes:
        address: As ``heliograph.connect`` takes it; None: the cluster in this Ray.
        connect: Further arguments of ``heliograph.connect``, such as ``token``.
        encoding: How arguments and results are written; JSON lets other languages submit.
        options: Further options of the queue: ``backoff``, ``per_key``, ``timeout``, ``rate``, ``crashes``.
    """

    model_config = ConfigDict(extra="forbid")

    address: str | None = None
    connect: dict[str, Any] = Field(default_factory=dict)
    encoding: Encoding = "pickle"
    options: dict[str, Any] = Field(default_factory=dict)


class TaskProcessor(TaskProcessorAdapter):
    """Runs the handlers of a deployment as jobs of a durable queue, and submits and watches them.

    A replica that is killed gives its tasks to others at once; a task with a result is not run again.

    Args:
        config: Ray Serve's; ``queue_name`` is the topic of the jobs.

    Raises:
        InvalidConfigError, InvalidTopicNameError: A field of the configuration is unknown or out of range.
        ConnectionLostError, BadRequestError: As ``heliograph.connect`` raises them.
    """

    def __init__(self, config: TaskProcessorConfig) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        given = config.adapter_config if config.adapter_config is not None else {}
        try:
            own = given if isinstance(given, AdapterConfig) else AdapterConfig.model_validate(given)
        except ValueError as error:
            raise InvalidConfigError(f"adapter_config: {error}", field="adapter_config") from error
        self._adapter_config = own
        self._retries = RETRIES_MAX if config.max_retries is None else config.max_retries
        self._config = config
        self._options = self._options_of(config.queue_name, 1)
        self._handlers: dict[str, Callable[..., Any]] = {}
        with ThreadPoolExecutor(1) as thread:  # the replica's event loop may run in this one
            self._client: Client = thread.submit(connect, own.address, **own.connect).result()
        self._session: QueueSession | None = None
        self._consuming: _Consuming | None = None

    @override
    def initialize(self, consumer_concurrency: int = 1) -> None:
        """Take the number of tasks that a replica runs at a time; nothing is consumed yet."""
        self._options = self._options_of(self._config.queue_name, consumer_concurrency)

    @override
    def register_task_handle(self, func: Callable[..., Any], name: str | None = None) -> None:
        """Have tasks of a name run by a function, sync or async."""
        self._handlers[name or func.__name__] = func

    # -- submitting

    @override
    def enqueue_task_sync(
        self,
        task_name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskResult:
        """Submit a task; it is durable when this returns.

        Args:
            options: ``id``, ``key``, ``delay`` in seconds and ``priority``, as ``Task.submit`` has them.

        Raises:
            BadRequestError: An option is unknown or out of range, or the arguments cannot be written.
            MessageTooLargeError, RequestTimeoutError, ...: As ``AsyncProducer.send`` raises them.
        """
        return self._asked(self._submit(task_name, args, kwargs, options)).result()

    @override
    async def enqueue_task_async(
        self,
        task_name: str,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> TaskResult:
        """Submit a task, as ``enqueue_task_sync`` does."""
        return await asyncio.wrap_future(self._asked(self._submit(task_name, args, kwargs, options)))

    @override
    def get_task_status_sync(self, task_id: str) -> TaskResult:
        """Return state and result of a task; PENDING of one that is not known."""
        return self._asked(self._status(task_id)).result()

    @override
    async def get_task_status_async(self, task_id: str) -> TaskResult:
        """Return state and result of a task, as ``get_task_status_sync`` does."""
        return await asyncio.wrap_future(self._asked(self._status(task_id)))

    @override
    def cancel_task_sync(self, task_id: str) -> None:
        """Revoke a task that has not ended; a coroutine that runs it is cancelled."""
        self._asked(self._cancel(task_id)).result()

    @override
    async def cancel_task_async(self, task_id: str) -> None:
        """Revoke a task, as ``cancel_task_sync`` does."""
        await asyncio.wrap_future(self._asked(self._cancel(task_id)))

    @override
    def get_metrics_sync(self) -> dict[str, Any]:
        """Return ``queue``, ``backlog`` in tasks that wait or run, ``delayed`` and ``consumers``."""
        return self._asked(self._metrics()).result()

    @override
    async def get_metrics_async(self) -> dict[str, Any]:
        """Return the figures of ``get_metrics_sync``."""
        return await asyncio.wrap_future(self._asked(self._metrics()))

    @override
    def health_check_sync(self) -> list[dict[str, Any]]:
        """Return a map of each replica that consumes, in the shape of Celery's answers."""
        return self._asked(self._health()).result()

    @override
    async def health_check_async(self) -> list[dict[str, Any]]:
        """Return the answers of ``health_check_sync``."""
        return await asyncio.wrap_future(self._asked(self._health()))

    # -- consuming

    @override
    def start_consumer(self, **_: Any) -> None:
        """Begin to run tasks, and return at once. Coroutines of handlers run on the event loop of the caller."""
        if self._consuming is None:
            try:
                loop = asyncio.get_running_loop()
            except RuntimeError:
                loop = None
            self._consuming = _Consuming(self._client, self._tasks(loop), self._config)

    @override
    def stop_consumer(self, timeout: float = ENDING_SECONDS) -> None:
        """Take no further task, and wait for those in hand; other replicas get the tasks that are late. Idempotent."""
        consuming, self._consuming = getattr(self, "_consuming", None), None
        if consuming is not None:
            consuming.stop(timeout)

    def _tasks(self, loop: asyncio.AbstractEventLoop | None) -> list[Task[Any, Any]]:
        return [
            Task(_handler(function, loop), self._options, name, self._client)
            for name, function in self._handlers.items()
        ]

    def _options_of(self, queue: str, concurrency: int) -> TaskOptions:
        given = {"retries": self._retries, **self._adapter_config.options}
        return build(TaskOptions, queue=queue, concurrency=concurrency, encoding=self._adapter_config.encoding, **given)

    # -- on the loop thread of the client

    def _asked(self, call: Coroutine[Any, Any, _Result]) -> Future[_Result]:
        return threads.current().start(call)

    async def _opened(self) -> QueueSession:
        if self._session is None or self._session.failure is not None:
            self._session = QueueSession(self._client.aio(), self._options)
        await self._session.open()
        return self._session

    async def _submit(
        self, name: str, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]
    ) -> TaskResult:
        for option in options:
            if option not in _OPTIONS:
                raise BadRequestError(f"{option!r} is no option of a task", field=option, limit=", ".join(_OPTIONS))
        job_id, priority = options.get("id"), int(options.get("priority", 0))
        if job_id is not None and not 0 < len(job_id) <= ID_CHARACTERS_MAX:
            raise BadRequestError("the id of a task", field="id", limit=f"1 to {ID_CHARACTERS_MAX} characters")
        if not 0 <= priority < self._options.priorities:
            raise BadRequestError("priority", field="priority", limit=f"0 to {self._options.priorities - 1}")
        properties = {ID: job_id or uuid.uuid4().hex, NAME: name, ENCODING: self._options.encoding}
        if job_id is not None:
            properties[NAMED] = "yes"
        if priority:
            properties[PRIORITY] = str(priority)
        payload = encode([list(args or ()), dict(kwargs or {})], self._options.encoding, "arguments")
        session = await self._opened()
        await session.submit_once(
            properties[ID],
            payload,
            properties,
            key=options.get("key"),
            delay=options.get("delay", 0),
            priority=priority,
        )
        return TaskResult(id=properties[ID], status=JobState.PENDING.value, created_at=time.time(), result=None)

    async def _known(self, task_id: str) -> JobRecord | None:
        return await (await self._opened()).known(task_id)

    async def _status(self, task_id: str) -> TaskResult:
        record = await self._known(task_id)
        result: Any = None
        if record is not None and record.state is JobState.SUCCESS:
            data = await (await self._opened()).load_result(record)
            result = decode(data, self._options.encoding, "result")
        elif record is not None and record.state is JobState.FAILURE:
            result = record.note
        state = JobState.PENDING if record is None else record.state
        return TaskResult(id=task_id, status=state.value, result=result)

    async def _cancel(self, task_id: str) -> None:
        await (await self._opened()).revoke(task_id, "")  # its name is not known here

    async def _load(self) -> QueueLoad:
        return await QueueLoad.of(self._client.aio(), self._options.job_topics)

    async def _metrics(self) -> dict[str, Any]:
        load = await self._load()
        return {
            "queue": self._options.queue,
            "backlog": load.backlog,
            "delayed": load.delayed,
            "consumers": len(load.consumers),
        }

    async def _health(self) -> list[dict[str, Any]]:
        return [{name: {"ok": "pong"}} for name in (await self._load()).consumers]


class _Consuming:
    """A worker on a thread of its own."""

    def __init__(self, client: Client, tasks: Sequence[Task[Any, Any]], config: TaskProcessorConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._working: asyncio.Task[None] | None = None
        self._client, self._tasks, self._config = client, tasks, config
        self._thread = threading.Thread(target=self._run, name="heliograph-serve", daemon=True)
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """Take no further task, and wait for those in hand."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout)

    def _cancel(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._working = self._loop.create_task(self._work())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._working)
        self._loop.close()

    async def _work(self) -> None:
        from heliograph.client.aio.client import AsyncClient

        while True:
            client = AsyncClient(self._client.options)
            try:
                await _ServeWorker(client, self._tasks, self._config).run()
            except HeliographError as error:
                log.warning("the tasks of %s wait: %s", self._config.queue_name, error)
                await asyncio.sleep(2.0)
            finally:
                await asyncio.shield(client.close())


class _ServeWorker(TaskWorker):
    """A worker that also submits what failed for good to the queues that Ray Serve's configuration names."""

    def __init__(self, client: AsyncClient, tasks: Sequence[Task[Any, Any]], config: TaskProcessorConfig) -> None:
        super().__init__(client, tasks)
        self._queues = [
            None if name is None else QueueSession(client, TaskOptions(name, encoding=self.options.encoding))
            for name in (config.failed_task_queue_name, config.unprocessable_task_queue_name)
        ]

    @override
    async def _bury(self, message: Message, job_id: str | None, record: JobRecord | None, why: JobFailure) -> None:
        failed, unprocessable = self._queues
        name, text = message.properties.get(NAME, ""), why.traceback or why.text
        if record is not None and not why.is_unreadable and failed is not None:
            args, kwargs = decode(message.data, self.options.encoding, "arguments")
            await self._move(failed, name, job_id, [job_id, why.text, str(args), str(kwargs), text])
        elif (record is None or why.is_unreadable) and unprocessable is not None:
            await self._move(unprocessable, name, job_id, [name, job_id, repr(message.data), why.text, text])
        await super()._bury(message, job_id, record, why)

    async def _move(self, session: QueueSession, name: str, job_id: str | None, arguments: list[Any]) -> None:
        payload = encode([arguments, {}], self.options.encoding, "arguments")
        properties = {ID: job_id or uuid.uuid4().hex, NAME: name, ENCODING: self.options.encoding, NAMED: "yes"}
        await session.submit(payload, properties, key=None, delay=0, priority=0)

    @override
    async def _end(self, slots: Sequence[asyncio.Task[None]]) -> None:
        await super()._end(slots)
        await asyncio.gather(*(each.close() for each in self._queues if each is not None))


class BacklogAutoscalingPolicy:
    """Scales a deployment by the backlog of its queue, also from 0 replicas. For Serve's ``AutoscalingPolicy``.

    Args:
        queue: Topic of the queue, or any other topic.
        subscription: Subscription whose backlog counts.
        address: As ``heliograph.connect`` takes it; None: the cluster in this Ray.
        poll_interval_s: Seconds between two looks at the backlog.
        priorities: Number of priorities of the queue.
        connect: Further arguments of ``heliograph.connect``.
    """

    def __init__(
        self,
        queue: str,
        subscription: str = SUBSCRIPTION,
        address: str | None = None,
        poll_interval_s: float = 1.0,
        priorities: int = 1,
        **connect: Any,
    ) -> None:
        if poll_interval_s <= 0:
            raise InvalidConfigError("poll_interval_s must be above 0", field="poll_interval_s")
        self._queue, self._subscription, self._address, self._connect = queue, subscription, address, connect
        self._topics = TaskOptions(queue, priorities=priorities).job_topics
        self._seconds = poll_interval_s
        self._client: Client | None = None
        self._looking: Future[int] | None = None
        self._looked_at = -math.inf
        self._backlog = 0

    def __call__(self, ctx: AutoscalingContext) -> tuple[int | float, dict[str, Any]]:
        """Return the replicas that the backlog and the requests in hand need. It never waits for the cluster."""
        from heliograph.client.sync.handle import threads  # Serve pickles this class with what its methods refer to

        if self._looking is not None and self._looking.done():
            try:
                self._backlog = self._looking.result()
            except Exception as error:  # the replicas stay as the last known backlog needs them
                log.warning("the backlog of %s is not known: %s", self._queue, error)
            self._looking = None
        now = time.monotonic()
        if self._looking is None and now - self._looked_at >= self._seconds:
            self._looked_at = now
            self._looking = threads.current().start(self._look())
        target = max(1.0, float(ctx.config.get_target_ongoing_requests() if ctx.config else 1))
        return math.ceil((ctx.total_num_requests + self._backlog) / target), {"backlog": self._backlog}

    async def _look(self) -> int:
        if self._client is None:
            self._client = await asyncio.to_thread(functools.partial(connect, self._address, **self._connect))
        return (await QueueLoad.of(self._client.aio(), self._topics, self._subscription)).due


def _handler(function: Callable[..., Any], loop: asyncio.AbstractEventLoop | None) -> Callable[..., Any]:
    """Return a function that a worker calls: any arguments go, and a coroutine runs on the replica's event loop."""
    if not inspect.iscoroutinefunction(function):

        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        if loop is None:
            return await function(*args, **kwargs)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(function(*args, **kwargs), loop))

    return call_async
