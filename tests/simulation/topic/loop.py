"""An event loop without a wall clock: the product's own coroutines run in simulated time, as events of one process.

A turn of the loop is one event of the world: a paused process gets its turns late, and the coroutines of a process that
crashed never go on. Tasks are hashed by a number, so that sets of them have the same order in every process.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any, cast

from heliograph.base.errors import HeliographError
from tests.simulation.world import Process, World

EXPECTED_ERRORS = (HeliographError, TimeoutError)  # errors that tasks of the product may end with


class SimulatedTask(asyncio.Task[Any]):
    """A task with a hash that is the same in every process."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], loop: SimulatedLoop, number: int) -> None:
        self.number = number
        super().__init__(coroutine, loop=cast(Any, loop), name=f"task-{number}")
        self._log_destroy_pending = False

    def __hash__(self) -> int:
        return self.number


class SimulatedLoop:
    """The event loop of one process: the part of ``asyncio.AbstractEventLoop`` that coroutines without I/O need."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._is_turn_due = False
        self._tasks: dict[SimulatedTask, Coroutine[Any, Any, Any]] = {}
        self._made = 0
        self._latest = 0.0  # when the last timer was due: a fraction of it may lie behind the millisecond
        self._failure: BaseException | None = None

    @property
    def wall_ahead_ms(self) -> int:
        """Return how far the wall clock of the process is ahead of the world's."""
        return self._process.clock_ahead_ms + getattr(self._process, "wall_off_ms", 0)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the code in the block on this loop."""
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(cast(Any, self))
        try:
            yield
        finally:
            asyncio._set_running_loop(before)

    def die(self) -> None:
        """Stop for good: the process crashed. Close all coroutines, so that none is left unfinished."""
        with self.running():
            while self._tasks:  # a coroutine that is closed may start others
                tasks, self._tasks = self._tasks, {}
                for coroutine in tasks.values():
                    own = [coroutine]
                    if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:  # it would await its arguments
                        own += filter(inspect.iscoroutine, inspect.getcoroutinelocals(coroutine).values())
                    for one in own:
                        with suppress(RuntimeError):  # it awaits something while it is being closed
                            one.close()
        self._ready.clear()

    # -- asyncio.AbstractEventLoop

    def time(self) -> float:
        """Return the seconds of the simulated clock."""
        return max(self._now / 1000, self._latest)

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, cast(Any, self), context)
        self._ready.append(handle)
        if not self._is_turn_due:
            self._is_turn_due = True
            self._world.after(0, self._turn, self._process)
        return handle

    call_soon_threadsafe = call_soon  # there are no threads

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, cast(Any, self), context)
        delay_ms = max(0, math.ceil(when * 1000 - 1e-6) - self._now)
        self._world.after(delay_ms, lambda: self._due(handle), self._process)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=cast(Any, self))

    def create_task(self, coro: Any, *, name: Any = None, context: Context | None = None) -> SimulatedTask:
        self._made += 1
        task = SimulatedTask(coro, self, self._made)
        self._tasks[task] = coro
        task.add_done_callback(self._ended)
        return task

    def run_in_executor(self, executor: None, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do at once what a thread does in production. The caller goes on in a later turn."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an error that a callback raised as a finding. A result that was never retrieved is none."""
        if "handle" in context:
            self._failure = context["exception"]

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: the event of the timer finds it cancelled."""

    # -- internals

    @property
    def _now(self) -> int:
        return self._world.now + self._process.clock_ahead_ms

    def _turn(self) -> None:
        self._is_turn_due = False
        before = asyncio._get_running_loop()
        asyncio._set_running_loop(cast(Any, self))
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle._cancelled:
                    handle._run()
        finally:
            asyncio._set_running_loop(before)
        if self._ready and not self._is_turn_due:
            self._is_turn_due = True
            self._world.after(0, self._turn, self._process)
        self._raise_failure()

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._latest = max(self._latest, handle.when())
            with self.running():
                handle._run()
            self._raise_failure()

    def _ended(self, task: asyncio.Task[Any]) -> None:
        assert isinstance(task, SimulatedTask), "this loop makes no others"
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, EXPECTED_ERRORS):
            self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
