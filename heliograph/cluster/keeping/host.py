"""The program of a part's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import threading
from functools import partial
from typing import Any, NoReturn

import ray
import ray.cloudpickle
import ray.exceptions
import uvloop

from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.base.settings import restored
from heliograph.base.system.processes import take_score_of, wait_for_end
from heliograph.cluster.hosting import AFTER_END, FAILED_START_PAUSE_SECONDS
from heliograph.cluster.keeping.channel import (
    CALL,
    CANCEL,
    END,
    HELLO,
    VERSION,
    WELCOME,
    PartChannel,
    answered,
    is_own_user,
)
from heliograph.cluster.keeping.keeper import LISTENS, START_SECONDS, ProcessPlan
from heliograph.ray.gcs import actor_id
from heliograph.ray.process import join_ray

FIRST_LOOK_SECONDS = 0.2  # after the actor has gone, for Ray to know why
LOOK_SECONDS = 2.0  # between two looks for an actor that is away
ASK_SECONDS = 5.0  # for the actor to say which node it is on
STOP_SECONDS = 20.0  # for an orderly stop of a part whose actor is on another node
CONNECTIONS_WAITING = 8  # I15

log = logging.getLogger(__name__)


def run(told: socket.socket) -> None:
    """Be the process of the part whose plan comes from a socket. Does not return."""
    python_path, plan = _plan(told)
    if python_path is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = python_path
    signal.setitimer(signal.ITIMER_REAL, START_SECONDS)  # ends this process if Ray does not answer
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(plan.socket_name)
    except OSError:
        os._exit(0)  # there is such a process: the actor finds it
    telling = threading.Thread(target=_report_end, args=(plan,), name="predecessor", daemon=True)
    telling.start()
    take_score_of(plan.raylet_pid)
    threading.Thread(target=_end_with, args=(plan.raylet_pid,), name="raylet", daemon=True).start()
    runtime_env = plan.runtime_env or None
    join_ray(plan.ray_address, plan.node_address, namespace=plan.namespace, runtime_env=runtime_env)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(1))  # as when the machine ends: nothing depends on an orderly end
    listener.listen(CONNECTIONS_WAITING)
    listener.setblocking(False)
    signal.setitimer(signal.ITIMER_REAL, 0)
    told.sendall(LISTENS)
    told.close()
    loop = uvloop.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_serve(plan, listener, telling))


async def _serve(plan: ProcessPlan, listener: socket.socket, telling: threading.Thread) -> None:
    await PartHost(plan, telling).serve(listener)


def _plan(told: socket.socket) -> tuple[str | None, ProcessPlan]:
    with told.makefile("rb") as file:
        found: tuple[str | None, ProcessPlan] = pickle.load(file)
    return found


def _end_with(pid: int) -> None:
    """End this process as soon as another one has ended."""
    with contextlib.suppress(OSError):
        wait_for_end(pid)
    os._exit(1)


def _report_end(plan: ProcessPlan) -> None:
    """Tell the part's class that the previous process has ended.

    Joining Ray and making the part take far longer, and others wait for what that process held.
    """
    try:
        kind, arguments = ray.cloudpickle.loads(plan.made_of)
        if (after_end := getattr(kind, AFTER_END, None)) is not None:
            asyncio.run(after_end(*map(restored, arguments)))
    except Exception as error:  # the start of the part reports what lasts, and does the same
        log.warning("%s: what its last process held is not released yet: %r", plan.part, error)


def _forget(calls: dict[int, asyncio.Task[None]], number: int, _: asyncio.Task[None]) -> None:
    calls.pop(number, None)


class PartHost:
    """The part, and the connections of its actor.

    Args:
        telling: the thread of ``_report_end``. The part is made after it: one that comes late would take what the part
            holds by then for what the process before held, and end the part's own session.
    """

    def __init__(self, plan: ProcessPlan, telling: threading.Thread) -> None:
        self._plan = plan
        self._telling = telling
        self._actor: PartChannel | None = None  # the connection of the actor that is there
        self._looking: asyncio.Task[None] | None = None  # for an actor that is not
        self._part: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Make the part, and answer until this process is ended."""
        loop = asyncio.get_running_loop()
        self._look_soon()
        self._start(self._make())
        while True:
            unix, _ = await loop.sock_accept(listener)
            self._start(self._connected(unix))

    async def _make(self) -> None:
        await asyncio.to_thread(self._telling.join)
        try:
            kind, arguments = ray.cloudpickle.loads(self._plan.made_of)
            self._part.set_result(kind(*arguments))
        except Exception as error:
            log.exception("%s cannot be made", self._plan.part)
            self._part.set_exception(error if isinstance(error, HeliographError) else ServiceNotReadyError(repr(error)))
            self._part.exception()
            await asyncio.sleep(FAILED_START_PAUSE_SECONDS)  # callers learn the reason in it
            os._exit(1)

    async def _connected(self, unix: socket.socket) -> None:
        if not is_own_user(unix):
            unix.close()
            return
        channel = await PartChannel.over(unix)
        match await channel.receive():
            case (kind, version, proof) if (kind, proof) == (HELLO, self._plan.proof):
                if version != VERSION:
                    await self._leave("its actor is of another release, which starts it again")
            case _:
                channel.close()
                self._look_soon()  # the part may have been removed and made again
                return
        if self._actor is not None:
            self._actor.close()
        self._actor = channel
        await channel.send(WELCOME, VERSION)
        await self._answer(channel)
        channel.close()
        if self._actor is channel:
            self._actor = None
            self._look_soon()

    async def _answer(self, channel: PartChannel) -> None:
        calls: dict[int, asyncio.Task[None]] = {}
        while (frame := await channel.receive()) is not None:
            if frame[0] == END:
                os._exit(0)
            if frame[0] == CANCEL and (task := calls.get(frame[1])) is not None:
                task.cancel()
            if frame[0] == CALL:
                await channel.drained()  # so that no answers pile up that the actor does not take  # I15
                _, number, method, arguments, options = frame
                task = self._start(answered(channel, number, self._call(method, arguments, options)))
                calls[number] = task
                task.add_done_callback(partial(_forget, calls, number))

    async def _call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        part = await asyncio.shield(self._part)
        return await getattr(part, method)(*arguments, **options)

    def _look_soon(self) -> None:
        if self._looking is None or self._looking.done():
            self._looking = self._start(self._look())

    async def _look(self) -> None:
        """While the actor is away, see whether it comes again."""
        await asyncio.sleep(FIRST_LOOK_SECONDS)
        while self._actor is None:
            with contextlib.suppress(ray.exceptions.RayError, ConnectionError, RuntimeError, TimeoutError):
                await self._look_once()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look_once(self) -> None:
        plan = self._plan
        try:
            handle = await asyncio.to_thread(ray.get_actor, plan.part, plan.namespace)
        except ValueError:
            os._exit(0)  # it was removed
        if actor_id(handle) != plan.actor_id:
            os._exit(0)  # it was removed, and made again
        async with asyncio.timeout(ASK_SECONDS):
            node_id = await handle.keeper_node.remote()
        if node_id != plan.node_id:
            await self._leave("its actor is on another node now, which starts it there")

    async def _leave(self, why: str) -> NoReturn:
        """Stop the part in good order and end this process."""
        log.warning("%s ends here: %s", self._plan.part, why)
        with contextlib.suppress(Exception):
            async with asyncio.timeout(STOP_SECONDS):
                await self._call("stop", (), {})
        os._exit(0)

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
