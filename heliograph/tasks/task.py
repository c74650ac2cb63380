"""``heliograph.task``: a function whose calls become durable jobs."""

from __future__ import annotations

import asyncio
import functools
import importlib
import inspect
import os
import sys
import threading
import uuid
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from heliograph.base.clock import Duration, seconds_of, wall_ms
from heliograph.base.errors import BadRequestError, InvalidConfigError
from heliograph.client.aio.producer.arguments import encodable
from heliograph.client.options import build
from heliograph.client.sync.handle import threads
from heliograph.tasks.current import current_job
from heliograph.tasks.encoding import checked, encode
from heliograph.tasks.job import BlockingJob, Job, waited
from heliograph.tasks.options import TaskOptions
from heliograph.tasks.records import ENCODING, ID, ID_CHARACTERS_MAX, NAME, NAMED, PARENT, PRIORITY
from heliograph.tasks.session import QueueSession

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client
    from heliograph.tasks.schedule import Schedule
    from heliograph.tasks.scheduler import Schedules

P = ParamSpec("P")
R = TypeVar("R")
_Result = TypeVar("_Result")
_OPTIONS = ("key", "id", "delay", "priority")  # of submit

_making = threading.Lock()
_sessions: WeakKeyDictionary[Client, dict[tuple[int, TaskOptions], QueueSession]] = WeakKeyDictionary()


class Task(Generic[P, R]):
    """A function with a queue. Calling it runs it here and now; ``submit`` has a worker run it.

    Args:
        function: The function that runs a job, sync or async. It may be called several times for a job,
            because workers may be killed.
        options: How jobs are run.
        name: Name of the task in its queue.
        client: The client that submits; None: that of ``heliograph.connect()``, made at the first use.

    Raises:
        BadRequestError: The function has a parameter with the name of an option of ``submit``, or is no function.
    """

    def __init__(self, function: Callable[P, Any], options: TaskOptions, name: str, client: Client | None) -> None:
        if not inspect.isroutine(function):
            raise BadRequestError(f"{function!r} is no function", field="function")
        taken = [each for each in _OPTIONS if each in inspect.signature(function).parameters]
        if taken:
            raise BadRequestError(
                f"{name} has a parameter {taken[0]!r}, which is an option of submit: rename it", field=taken[0]
            )
        functools.update_wrapper(self, function)
        self.function = function
        self.options = options
        self.name = name
        self.client = client

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(*args, **kwargs)

    def using(self, client: Client) -> Task[P, R]:
        """Return the same task, whose jobs are submitted and watched by a client."""
        return Task(self.function, self.options, self.name, client)

    @property
    def blocking(self) -> BlockingTask[R]:
        """Return the form of this task for programs without an event loop."""
        return BlockingTask(self)

    async def submit(
        self,
        *args: Any,
        key: str | None = None,
        id: str | None = None,
        delay: Duration = 0,
        priority: int = 0,
        **kwargs: Any,
    ) -> Job[R]:
        """Submit a call of the function. When this returns, the job is durable and will be run.

        Within a job, the new one is its child: without an ``id`` it gets one made of its parent's and a number, so
        that a parent that is run again submits no child twice.

        Args:
            args, kwargs: The arguments of the function.
            key: Jobs with the same key run ``per_key`` at a time.
            id: The same id again is the same job: it is returned and not submitted again, until its state expires.
            delay: Seconds, or a timedelta, before it may begin.
            priority: From 0, which is begun first, to ``priorities`` - 1.

        Raises:
            BadRequestError: The arguments do not fit the function or cannot be written, or an option is out of range.
            ConflictError: A job of another task has the id.
            MessageTooLargeError, RequestTimeoutError, ...: As ``AsyncProducer.send`` raises them; after
                RequestTimeoutError the job may be submitted nevertheless.
        """
        payload = self._payload(args, kwargs, priority)
        if id is not None and not (isinstance(id, str) and 0 < len(encodable("id", id)) <= ID_CHARACTERS_MAX):
            raise BadRequestError(
                f"the id of a job is {id!r:.80}", field="id", limit=f"text of 1 to {ID_CHARACTERS_MAX} characters"
            )
        most = seconds_of(self.options.results_for, "results_for")
        if not 0 <= seconds_of(delay, "delay") <= most:  # a state that expires first would forget that it is revoked
            raise BadRequestError(f"delay is {delay!r}", field="delay", limit=f"0 to results_for, {most} s")
        parent = current_job()
        if parent is not None and id is None:
            id = parent.next_child_id()
        job: Job[R] = Job(self, id or uuid.uuid4().hex)
        properties = {ID: job.id, NAME: self.name, ENCODING: self.options.encoding}
        if parent is not None:
            properties[PARENT] = parent.id
        if priority:
            properties[PRIORITY] = str(priority)
        if id is not None:
            properties[NAMED] = "yes"
        await self.on_session(
            lambda session: session.submit_once(job.id, payload, properties, key=key, delay=delay, priority=priority)
        )
        return job

    def job(self, id: str) -> Job[R]:
        """Return the handle of a job that was submitted before; nothing is looked up yet."""
        return Job(self, id)

    async def schedule(
        self,
        name: str,
        cron: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        zone: str = "UTC",
        key: str | None = None,
        priority: int = 0,
    ) -> None:
        """Have a call of the function submitted at the times of a cron expression, until ``unschedule``.

        The workers of the queue submit the jobs, each once, with the id ``<name>@<time in UTC>``. Of the times at which
        no worker ran only the last is submitted, when one runs again. A schedule of the same name is replaced, and
        its missed times are forgotten.

        Args:
            name: Name of the schedule in its queue, without ``@``.
            cron: Minute, hour, day of the month, month and day of the week; with six fields, the first is seconds.
            args, kwargs: The arguments of each call.
            zone: Name of the time zone in which the times hold.
            key: Key of the jobs.
            priority: Their priority.

        Raises:
            BadRequestError: The expression names no time, or the zone, the name or an argument is bad.
            RequestTimeoutError, ...: As ``AsyncProducer.send`` raises them; the schedule may be stored nevertheless.
        """
        from heliograph.tasks.schedule import Schedule

        payload = self._payload(args, kwargs or {}, priority)
        made = Schedule(self.name, cron, zone, wall_ms(), payload, self.options.encoding, key, priority)
        await self._on_schedules(lambda schedules: schedules.set(name, made))

    async def unschedule(self, name: str) -> None:
        """Delete a schedule; jobs that it has submitted stay.

        Raises:
            NotFoundError: The queue has no schedule of this name.
        """
        await self._on_schedules(lambda schedules: schedules.delete(name))

    async def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of the queue by name, also of other tasks."""

        async def read(schedules: Schedules) -> dict[str, Schedule]:
            await schedules.refresh()
            return schedules.all()

        return await self._on_schedules(read)

    async def work(self, *others: Task[Any, Any], name: str | None = None) -> None:
        """Run jobs of the queue in this process until this is cancelled; then let the jobs in hand end.

        Args:
            others: Further tasks of the same queue.
            name: Name of the worker, shown with its jobs.

        Raises:
            InvalidConfigError: Another task has another queue, or other options of the queue.
            NotPermittedError: The role may not consume from the queue, or the task has a rate and the role may not set
                it.
        """
        from heliograph.tasks.worker import serve  # submitting needs no worker

        await serve(await self.connected(), (self, *others), name)

    def run(self, replicas: tuple[int, int] = (1, 1), **ray_options: Any) -> Any:
        """Have Ray actors work on the queue, from a supervisor that outlives this program.

        Args:
            replicas: The least and the most workers. Their number follows the backlog, also from 0.
            ray_options: Options of each worker's actor, such as ``num_gpus``.

        Returns:
            A ``heliograph.tasks.pool.Workers``.

        Raises:
            InvalidConfigError: ``replicas`` is out of range.
            ResourceError: Ray is not installed.
            ConflictError: The queue has workers with other options.
        """
        from heliograph.tasks.pool import start

        return start(self, replicas, ray_options)

    def checked_function(self) -> Callable[..., Any]:
        """Return the callable that a worker gives the arguments of a job."""
        return checked(self.function) if self.options.encoding == "json" else self.function

    async def on_session(self, call: Callable[[QueueSession], Coroutine[Any, Any, _Result]]) -> _Result:
        """Run a call with the session of this process, which lives on the thread of the sync handles."""
        session = self._session(await self.connected())
        future = threads.current().start(call(session))
        try:
            return await asyncio.wrap_future(future)
        finally:
            future.cancel()

    def _session(self, client: Client) -> QueueSession:
        with _making:
            own = _sessions.setdefault(client, {})
            place = (os.getpid(), self.options)
            if place not in own or own[place].failure is not None:
                own[place] = QueueSession(client.aio(), self.options)
            return own[place]

    async def connected(self) -> Client:
        """Return the client that submits; the errors are those of ``heliograph.connect``."""
        if self.client is not None:
            return self.client
        from heliograph.client.access import own_client

        return await asyncio.to_thread(own_client)

    def _payload(self, args: Sequence[Any], kwargs: Mapping[str, Any], priority: int) -> bytes:
        """Return the encoded arguments of a call that the function and the queue take."""
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise BadRequestError(f"{self.name} cannot be called so: {error}", field="arguments") from error
        if type(priority) is not int or not 0 <= priority < self.options.priorities:
            limit = f"0 to {self.options.priorities - 1}, as the option priorities of the task allows"
            raise BadRequestError(f"priority is {priority!r}", field="priority", limit=limit)
        return encode([args, kwargs], self.options.encoding, "arguments")

    async def _on_schedules(self, call: Callable[[Schedules], Coroutine[Any, Any, _Result]]) -> _Result:
        from heliograph.tasks.scheduler import Schedules

        async def run(session: QueueSession) -> _Result:
            async with Schedules(session.client, session.options) as schedules:
                return await call(schedules)

        return await self.on_session(run)

    def __reduce__(self) -> tuple[Any, ...]:
        home = sys.modules.get(self.function.__module__)
        if self.function.__module__ != "__main__" and getattr(home, self.function.__qualname__, None) is not None:
            return _named, (self.function.__module__, self.function.__qualname__, self.client)
        return Task, (self.function, self.options, self.name, self.client)

    def __repr__(self) -> str:
        return f"Task({self.name}, queue={self.options.queue!r})"


class BlockingTask(Generic[R]):
    """A task for programs without an event loop; its calls wait for their answers.

    Errors are those of ``Task``; where an event loop runs in the thread, every call raises RunningLoopError.
    """

    def __init__(self, task: Task[Any, R]) -> None:
        self._task = task

    def submit(self, *args: Any, **options: Any) -> BlockingJob[R]:
        """Submit a call of the function; arguments and errors are those of ``Task.submit``."""
        return BlockingJob.of(self._task.submit(*args, **options))

    def job(self, id: str) -> BlockingJob[R]:
        """Return the handle of a job that was submitted before."""
        return BlockingJob(self._task.job(id))

    def schedule(self, name: str, cron: str, *args: Any, **options: Any) -> None:
        """Store a schedule; arguments and errors are those of ``Task.schedule``."""
        waited(self._task.schedule(name, cron, *args, **options))

    def unschedule(self, name: str) -> None:
        """Delete a schedule, as ``Task.unschedule`` does."""
        waited(self._task.unschedule(name))

    def schedules(self) -> dict[str, Schedule]:
        """Return the schedules of the queue, as ``Task.schedules`` does."""
        return waited(self._task.schedules())


def task(
    *, queue: str, name: str | None = None, client: Client | None = None, **options: Any
) -> Callable[[Callable[P, R | Coroutine[Any, Any, R]]], Task[P, R]]:
    """Return a decorator that makes a function a task: its calls become durable jobs of a queue.

    Args:
        queue: Name of the topic that holds the jobs.
        name: Name of the task in the queue; None: the function's name.
        client: The client that submits; None: that of ``heliograph.connect()``, made at the first use.
        options: Further fields of ``heliograph.tasks.options.TaskOptions``, such as ``concurrency`` (8), ``per_key``,
            ``retries`` (5), ``backoff`` ((1, 60) seconds), ``timeout``, ``rate`` and ``crashes`` (3).

    Raises:
        InvalidConfigError, InvalidTopicNameError: An option is unknown or out of range.
    """
    built = build(TaskOptions, queue=queue, **options)
    if name is not None and not name:
        raise InvalidConfigError("the name of a task is empty", field="name")

    def decorate(function: Callable[P, Any]) -> Task[P, R]:
        return Task(function, built, name or function.__name__, client)

    return decorate


def _named(module: str, name: str, client: Client | None) -> Task[Any, Any]:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    assert isinstance(found, Task), f"{module}.{name} was a task when it was pickled"
    return found if client is None else found.using(client)
