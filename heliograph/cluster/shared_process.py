"""The process that the parts of one node share: one actor that hosts them all on its event loop.

An empty worker of Ray holds as much memory as the parts of a small cluster, so a cluster of one node at rest is mostly
workers. Each part here is an instance of the class that would be its actor (``hosting.py``), made of the same
arguments, which are described in Ray's GCS (``heliograph/base/addressing``). A part that fails is stopped and made
again alone; the process ends if it cannot be stopped, if a promise of our own code is broken, or if its event loop is
stuck. Then Ray starts this actor again, and it makes all parts that are described then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any

import ray.cloudpickle

from heliograph.base.addressing import part_handle
from heliograph.base.addressing.part_handle import SHARED_PROCESS
from heliograph.base.completion import shielded
from heliograph.base.errors import ServiceNotReadyError
from heliograph.base.processes import own_end
from heliograph.base.settings import restored
from heliograph.base.version import heliograph_version
from heliograph.cluster.hosting import (
    FAILED_START_PAUSE_SECONDS,
    READY_WAIT_SECONDS,
    START_METHOD,
    prepare_process,
    watch_loop,
)
from heliograph.cluster.logs.setup import shared_part, start_log, stop_log
from heliograph.cluster.naming import START_GROUPS, START_ORDER, kind_of

STOP_SECONDS = 20.0  # for an orderly stop of one part
GROUP_SECONDS = 30.0  # longest wait for the parts that others need, when all start

log = logging.getLogger(__name__)


@dataclass
class _Part:
    """One part. ``instance`` is of its class, or why it cannot be made; ``tried`` ends with the first start."""

    name: str
    made_of: bytes
    context: Context
    instance: asyncio.Future[Any]
    tried: asyncio.Event = field(default_factory=asyncio.Event)
    keeping: asyncio.Task[None] | None = None
    replacing: asyncio.Task[None] | None = None  # once it has failed


class SharedProcess:
    """The actor that hosts several parts. Every method may be called again.

    Processes of the releases before and after load this class by the names of its methods when they get its handle, so
    it has no others than those that are called.
    """

    def __init__(self, namespace: str, logs: Any) -> None:
        """
        Args:
            namespace: of the cluster.
            logs: settings of the logs, as ``portable`` returned them.
        """
        prepare_process()
        start_log(SHARED_PROCESS, restored(logs))
        log.info("process %d starts, version %s", os.getpid(), heliograph_version())
        watch_loop()
        self.parts = SharedParts(namespace)

    async def call(self, part: str, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        return await self.parts.call(part, method, arguments, options)

    async def begin(self, name: str) -> None:
        await self.parts.begin(name)

    async def end(self, name: str) -> None:
        """Stop a part in good order and forget it."""
        await self.parts.end(name)

    async def restart(self) -> None:
        """Have Ray start this process again, as ``SharedParts.leave`` does; returns at once."""
        self.parts.leave()

    async def stop(self) -> None:
        """Stop all parts in good order."""
        await self.parts.stop()

    async def pid(self) -> int:
        return os.getpid()


class SharedParts:
    """The parts of this process, on the running event loop. Described parts begin at once."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._parts: dict[str, _Part] = {}
        self._changing = asyncio.Lock()
        self._leaving: asyncio.Task[None] | None = None
        self._loading = asyncio.get_running_loop().create_task(self._begin_all())

    async def call(self, part: str, method: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Call a method of a part, as its own actor would run it.

        Raises:
            ServiceNotReadyError: the part does not run here, or not yet.
            AttributeError: it has no such method.
            Exception: what the method raises, or why the part cannot be made.
        """
        wait = None if method == START_METHOD else READY_WAIT_SECONDS
        try:
            async with asyncio.timeout(wait):
                found = await self._found(part)
                instance = await shielded(found.instance)
        except TimeoutError:
            raise ServiceNotReadyError(f"{part} is still starting: try again") from None
        work = getattr(instance, method)(*arguments, **options)
        return await asyncio.get_running_loop().create_task(work, context=found.context.copy())

    async def begin(self, name: str) -> None:
        """Make a part by its description; a part that was made by another description is ended first."""
        made_of = await asyncio.to_thread(part_handle.description, name, self._namespace)
        async with self._changing:
            known = self._parts.get(name)
            if self._leaving is not None or made_of is None or (known is not None and known.made_of == made_of):
                return
            await self._end(name)
            self._begin(name, made_of)

    async def end(self, name: str) -> None:
        """Stop a part in good order and forget it."""
        async with self._changing:
            await self._end(name)

    def leave(self) -> None:
        """End this process when all parts have stopped in good order; Ray starts it again with the installed code."""
        if self._leaving is None:
            self._leaving = asyncio.get_running_loop().create_task(self._leave(), context=Context())

    async def stop(self) -> None:
        """Stop all parts in good order, in the reverse order of their start."""
        async with self._changing:
            for kind in reversed(START_ORDER):
                await asyncio.gather(*(self._end(name) for name in list(self._parts) if kind_of(name) == kind))

    async def _leave(self) -> None:
        await self.stop()
        os._exit(1)

    async def _begin_all(self) -> None:
        names = await asyncio.to_thread(part_handle.described, self._namespace)
        for kinds in START_GROUPS:
            group = [name for name in sorted(names) if kind_of(name) in kinds]
            await asyncio.gather(*map(self.begin, group))
            tries = [self._parts[name].tried.wait() for name in group if name in self._parts]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.gather(*tries), GROUP_SECONDS)

    async def _found(self, name: str) -> _Part:
        if name not in self._parts:
            await shielded(self._loading)
        if name not in self._parts:
            await self.begin(name)  # the call may be here before that of ``begin``
        if name not in self._parts:
            raise ServiceNotReadyError(f"{name} does not run in the shared process")
        return self._parts[name]

    def _begin(self, name: str, made_of: bytes) -> None:
        loop = asyncio.get_running_loop()
        context = copy_context()
        context.run(shared_part.set, name)
        part = self._parts[name] = _Part(name, made_of, context, loop.create_future())
        context.run(own_end.set, lambda: self._failed(part))
        part.keeping = loop.create_task(self._keep(part), name=f"start {name}", context=context)

    def _failed(self, part: _Part) -> None:
        if part.replacing is None:
            work = self._replace(part)
            part.replacing = asyncio.get_running_loop().create_task(
                work, name=f"replace {part.name}", context=Context()
            )

    async def _replace(self, part: _Part) -> None:
        """Make a part that has failed again. The process ends if the part cannot be stopped: it may hold its disk."""
        async with self._changing:
            if self._parts.get(part.name) is not part:
                return  # it was ended or made again meanwhile
            log.error("%s has failed: it is made again, and the other parts go on", part.name)
            # Not by its orderly stop, after which no start would be delayed.
            if not await self._end(part.name, "_hosted_stop"):
                log.critical("%s cannot be stopped: the process ends", part.name)
                os._exit(1)
            self._begin(part.name, part.made_of)

    async def _keep(self, part: _Part) -> None:
        """Make a part and wait until it serves; after a start that fails, make it again."""
        while True:
            try:
                # A thread loads the code, so that the parts that serve already go on.
                kind, arguments = await asyncio.to_thread(ray.cloudpickle.loads, part.made_of)
                instance = kind(*arguments)
                part.instance.set_result(instance)
                await instance.start()
                return
            except Exception as error:
                log.error("%s does not start: %s: %s", part.name, type(error).__name__, error)
                failure = error
            finally:
                part.tried.set()
            if not part.instance.done():
                part.instance.set_exception(failure)
            await asyncio.sleep(FAILED_START_PAUSE_SECONDS)
            await _stopped(part, "_hosted_stop")  # its own: this is no orderly end, after which no start is delayed
            part.instance = asyncio.get_running_loop().create_future()

    async def _end(self, name: str, method: str = "stop") -> bool:
        """Stop a part by one of its methods and forget it. Return whether it stopped in good order."""
        part = self._parts.pop(name, None)
        if part is None or part.keeping is None:
            return True
        part.keeping.cancel()
        await asyncio.wait([part.keeping])
        stopping = asyncio.get_running_loop().create_task(_stopped(part, method), context=part.context.copy())
        done, _ = await asyncio.wait([stopping], timeout=STOP_SECONDS)
        if not part.instance.done():
            part.instance.set_exception(ServiceNotReadyError(f"{name} has ended"))
            part.instance.exception()
        stop_log(name)
        return bool(done) and stopping.result()


async def _stopped(part: _Part, method: str) -> bool:
    """Stop a part, if it was made. Return whether it stopped without an error."""
    if not part.instance.done() or part.instance.exception() is not None:
        return True
    try:
        await getattr(part.instance.result(), method)()
    except Exception as error:
        log.warning("%s does not stop in good order: %s: %s", part.name, type(error).__name__, error)
        return False
    return True
