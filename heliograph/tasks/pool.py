"""Workers as Ray actors, and their supervisor, which follows the backlog of the queue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import re
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heliograph.base.completion import end_task
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    HeliographError,
    InvalidConfigError,
    ResourceError,
)
from heliograph.base.home import DEFAULT_NAMESPACE
from heliograph.base.processes import EXIT_BROKEN
from heliograph.client.aio.client import AsyncClient
from heliograph.tasks.session import QueueLoad

if TYPE_CHECKING:
    from heliograph.tasks.task import Task

REPLICAS_MAX = 1_000
LOOK_SECONDS = 0.25  # between two looks at the backlog
IDLE_SECONDS = 10.0  # without a backlog, after which a worker above the least is stopped
STOP_SECONDS = 60.0  # for the jobs in hand when all workers are stopped
AGAIN_SECONDS = 2.0  # before a worker that failed tries again

log = logging.getLogger(__name__)


class Workers:
    """The workers of a queue in Ray: a handle of their supervisor, which outlives the program that started it."""

    def __init__(self, queue: str, supervisor: Any) -> None:
        self.queue = queue
        self._supervisor = supervisor

    def status(self) -> dict[str, Any]:
        """Return ``workers``, how many there are, ``backlog`` in messages, and the last ``error`` or None."""
        return dict(_answer_of(self._supervisor.status.remote()))

    def stop(self) -> None:
        """Stop all workers after the jobs that they have in hand, 60 s at most, and the supervisor."""
        import ray

        _answer_of(self._supervisor.stop.remote())
        ray.kill(self._supervisor)

    def __repr__(self) -> str:
        return f"Workers({self.queue})"


class WorkerActor:
    """A worker in the process of an actor, which ends with it, and Ray starts another one.

    A failure to reach the cluster is tried again for ever.
    """

    def __init__(self, task: Task[Any, Any], name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._task = task
        self._name = name
        self._working: asyncio.Task[None] | None = None
        self._is_retired = False
        self._thread = threading.Thread(target=self._run, name="heliograph-worker", daemon=True)
        self._thread.start()

    def retire(self) -> None:
        """Take no job any more, and return once those in hand have ended."""
        self._is_retired = True
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join()

    def _cancel(self) -> None:
        if self._working is not None:
            self._working.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._working = self._loop.create_task(self._work())
        try:
            self._loop.run_until_complete(self._working)
        except BaseException as error:
            if not self._is_retired:
                log.critical("worker %s ends its process: %r", self._name, error)
                os._exit(EXIT_BROKEN)

    async def _work(self) -> None:
        while True:
            try:
                await self._task.work(name=self._name)
            except HeliographError as error:
                log.warning("worker %s begins again in %.0f s: %s", self._name, AGAIN_SECONDS, error)
                await asyncio.sleep(AGAIN_SECONDS)


class Supervisor:
    """Has as many workers as the backlog needs. It finds its workers again after it was restarted."""

    def __init__(
        self, task: Task[Any, Any], replicas: tuple[int, int], ray_options: Mapping[str, Any], namespace: str
    ) -> None:
        import ray

        self._task = task
        self._namespace = namespace
        self._least, self._most = replicas
        self._ray_options = dict(ray_options)
        self._workers: dict[int, Any] = {}
        self._retiring: dict[int, asyncio.Task[None]] = {}  # the jobs in hand of these workers end
        self._backlog = 0
        self._error: str | None = None
        self._idle_since: float | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._client: AsyncClient | None = None
        ray.get_runtime_context().current_actor.start.remote()  # after a restart, too

    async def start(self) -> None:
        """Find the workers that there are, and begin to follow the backlog; a second call does nothing."""
        import ray

        if self._watching is not None or self._is_stopping:
            return
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        for place in range(self._most):
            with contextlib.suppress(ValueError):
                self._workers.setdefault(place, ray.get_actor(self._name_of(place), namespace=self._namespace))

    async def describe(self) -> tuple[str, tuple[int, int], dict[str, Any]]:
        """Return the options of the task, the least and the most workers, and their options in Ray."""
        return repr(self._task.options), (self._least, self._most), self._ray_options

    async def status(self) -> dict[str, Any]:
        """Return the number of workers, the backlog in messages, and the last failure."""
        await self.start()
        return {"workers": len(self._workers), "backlog": self._backlog, "error": self._error}

    async def stop(self) -> None:
        """Have all workers end after their jobs in hand; the others get what these do not end in time."""
        await self.start()
        self._is_stopping = True
        await end_task(self._watching)
        for place in list(self._workers):
            self._retire(place)
        if self._retiring:
            _, late = await asyncio.wait(list(self._retiring.values()), timeout=STOP_SECONDS)
            for task in late:
                task.cancel()
            await asyncio.gather(*self._retiring.values(), return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                self._backlog = await self._asked_backlog()
                self._follow(asyncio.get_running_loop().time())
                self._error = None
            except Exception as error:  # whatever Ray or the cluster lacks now may be there at the next look
                if str(error) != self._error:
                    log.warning("the workers of %s stay as they are: %s", self._task.options.queue, error)
                self._error = str(error)
            await asyncio.sleep(LOOK_SECONDS)

    def _follow(self, now: float) -> None:
        wanted = math.ceil(self._backlog / self._task.options.concurrency)
        wanted = min(max(wanted, self._least), self._most)
        if wanted >= len(self._workers):
            self._idle_since = None
            free = (place for place in range(self._most) if place not in self._workers and place not in self._retiring)
            for place in itertools.islice(free, wanted - len(self._workers)):
                self._workers[place] = self._made(place)
        elif self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= IDLE_SECONDS:
            self._idle_since = now
            self._retire(max(self._workers))

    async def _asked_backlog(self) -> int:
        if self._client is None:
            self._client = AsyncClient((await self._task.connected()).options)
        return (await QueueLoad.of(self._client, self._task.options.job_topics)).due

    def _made(self, place: int) -> Any:
        name = self._name_of(place)
        return _worker_class(name, self._namespace, self._ray_options).remote(self._task, name)

    def _retire(self, place: int) -> None:
        worker = self._workers.pop(place)
        retiring = asyncio.get_running_loop().create_task(_retired(worker))
        self._retiring[place] = retiring
        retiring.add_done_callback(lambda _: self._retiring.pop(place, None))

    def _name_of(self, place: int) -> str:
        return f"{supervisor_name(self._task.options.queue)}-{place}"


async def _retired(worker: Any) -> None:
    """Let the jobs in hand of a worker end, however long they take, and end it."""
    import ray

    try:
        await worker.retire.remote()
    except Exception as error:
        log.info("a worker that was to end had died: %s", error)
    finally:
        ray.kill(worker)


def _worker_class(name: str, namespace: str, ray_options: Mapping[str, Any]) -> Any:
    """Return the class of a worker with its options in Ray, which raises what is wrong with these."""
    import ray

    options = {"num_cpus": 1, "max_restarts": -1, **ray_options}
    return ray.remote(WorkerActor).options(
        name=name, namespace=namespace, lifetime="detached", max_concurrency=4, **options
    )


def reason_of(error: Exception) -> str:
    """Return the line that says why Ray refuses something: of a traceback its end, else the cause."""
    text = str(error.__cause__ if isinstance(error, TypeError) and error.__cause__ is not None else error)
    *_, reason = text.strip().splitlines() or [repr(error)]
    return reason


def supervisor_name(queue: str) -> str:
    return "heliograph-tasks-" + re.sub(r"[^A-Za-z0-9_.-]+", "-", queue)


def start(task: Task[Any, Any], replicas: tuple[int, int], ray_options: Mapping[str, Any]) -> Workers:
    """Start the supervisor of a queue, or find it; errors are those of ``Task.run``."""
    least, most = replicas if isinstance(replicas, tuple | list) and len(replicas) == 2 else (-1, -1)
    if not 0 <= least <= most <= REPLICAS_MAX or most < 1:
        raise InvalidConfigError(
            f"replicas is {replicas!r}", field="replicas", limit=f"the least and the most, 0 to {REPLICAS_MAX}"
        )
    try:
        import ray
    except ImportError as error:
        raise ResourceError("workers in Ray need Ray: pip install 'heliograph-ray[cluster]'", field="ray") from error
    from ray.exceptions import RayError

    if not ray.is_initialized():
        ray.init()
    namespace = (task.client.options.discovery_namespace if task.client else None) or DEFAULT_NAMESPACE
    supervisor = ray.remote(Supervisor).options(
        name=supervisor_name(task.options.queue),
        namespace=namespace,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        runtime_env={},
    )
    wanted = repr(task.options), (least, most), dict(ray_options)
    try:
        _worker_class(task.name, namespace, ray_options)
    except (TypeError, ValueError) as error:
        text = f"Ray refuses the options of the workers of {task.name}: {reason_of(error)}"
        raise BadRequestError(text, field="ray_options") from error
    try:
        actor: Any = supervisor.remote(task, replicas, ray_options, namespace)
        _answer_of(actor.start.remote())
        found = _answer_of(actor.describe.remote())
    except (RayError, TypeError) as error:
        text = f"{task.name} cannot run where its workers are: {reason_of(error)}"
        raise BadRequestError(text, field="task") from error
    if tuple(found) != wanted:
        raise ConflictError(f"the queue {task.options.queue} has workers with other options; stop them first")
    return Workers(task.options.queue, actor)


def _answer_of(reference: Any) -> Any:
    import ray

    return ray.get(reference)
