"""The wrapper of actor classes: a hosted actor starts itself under Ray.

Ray restarts a killed actor by running its constructor again; nothing calls ``start()`` then. A hosted actor calls
it itself, and holds other calls back until it has finished. An actor whose start fails ends its process, so that Ray's
restart begins from nothing: a half-started bookie would still hold its directory's lock. In a process that several
parts share, only the part begins again (``shared_process.py``).
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import platform
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray.cloudpickle
from ray.util.metrics import Gauge

from heliograph.base.clock import wall_ms
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, ResourceError, ServiceNotReadyError
from heliograph.base.guard.memory import alarm
from heliograph.base.guard.watchdog import watch_running_loop, watchdog_of_environment
from heliograph.base.home import PRIVATE_UMASK
from heliograph.base.peer import ListenAddress
from heliograph.base.settings import portable, restored
from heliograph.base.system import collector
from heliograph.base.version import heliograph_version, installed_here
from heliograph.client import discovery
from heliograph.cluster.logs.config import LogsConfig
from heliograph.cluster.logs.files import CHUNK_BYTES_MAX, LogChunk, LogPosition, read_log
from heliograph.cluster.logs.setup import shared_part, start_log
from heliograph.cluster.logs.start_history import StartHistory, Starts
from heliograph.cluster.versions.formats import spoken_formats
from heliograph.cluster.watch.config import WatchConfig
from heliograph.cluster.watch.door import MetricsDoor, closed
from heliograph.cluster.watch.part_metrics import open_door
from heliograph.metrics.table import METRICS
from heliograph.ray.process import logs_directory

START_METHOD = "start"
ENDED_METHOD = "ended"  # of a part that may end by itself: returns why when it has
# Function of a class whose parts others can stand in for, of the arguments of a part: called as soon as the last
# process of the part has ended, and before a start is delayed.
AFTER_END = "after_end"
READY_WAIT_SECONDS = 10.0  # longest wait of a call for the start
FAILED_START_PAUSE_SECONDS = 5.0  # between a failed start and the next; callers learn the reason in it
SHOWN_LOGS = "heliograph"  # directory among Ray's logs with one of each part of the node
SHOWN_FILES_MAX = 2  # of each part there, the current one counted  # I15
_BUILD = METRICS["heliograph_build_info"]
_UNGATED = frozenset({START_METHOD, "pid", "stop"})

log = logging.getLogger(__name__)


class _HostedPart:
    """The calls that a hosted actor answers besides those of its class."""

    _hosted_part: str
    _hosted_logs: LogsConfig | None
    _hosted_history: StartHistory | None
    _hosted_watch: tuple[WatchConfig, ListenAddress] | None  # where its metrics are served; None: nowhere
    _hosted_door: MetricsDoor | None
    _hosted_stop: Callable[[], Awaitable[None]]  # of its own class
    _hosted_start: asyncio.Task[Any]
    _hosted_opening: asyncio.Task[None]
    _hosted_end: asyncio.Task[None]

    async def start(self) -> Any:
        return await shielded(self._hosted_start)

    async def stop(self) -> None:
        await closed(self._hosted_door)
        self._hosted_door = None
        if self._hosted_history is not None:
            self._hosted_history.stopped()
        await self._hosted_stop()

    async def pid(self) -> int:
        return os.getpid()

    async def part_facts(self) -> dict[str, Any]:
        starts = Starts() if self._hosted_history is None else self._hosted_history.starts
        own = await asyncio.to_thread(own_facts)
        own["memory"] = alarm()
        start = self._hosted_start
        has_started = start.done() and not start.cancelled() and start.exception() is None
        own["address"] = str(start.result()) if has_started else ""
        own["metrics_address"] = self._hosted_door.url if self._hosted_door is not None else ""
        count = 0 if has_started and starts.has_lasted(wall_ms()) else len(starts.times_ms)
        return {**own, "starts": count, "failure": starts.failure}

    async def log_chunk(
        self, after: LogPosition | Mapping[str, int] | None, bytes_max: int = CHUNK_BYTES_MAX
    ) -> LogChunk:
        if self._hosted_logs is None:
            return LogChunk(b"", None)
        if isinstance(after, Mapping):  # from the gateway, which passes on no classes
            after = LogPosition(**after)
        size = min(bytes_max, CHUNK_BYTES_MAX)
        return await asyncio.to_thread(read_log, self._hosted_logs.directory, self._hosted_part, after, size)

    def _hosted_started(self, start: asyncio.Task[Any]) -> None:
        if not start.cancelled() and (error := start.exception()) is not None:
            self._hosted_failed(error)
        elif not start.cancelled():
            if self._hosted_history is not None:
                self._hosted_history.served()
            if self._hosted_watch is not None:
                self._hosted_opening = asyncio.get_running_loop().create_task(_open_door(self, *self._hosted_watch))
            if (ended := getattr(self, ENDED_METHOD, None)) is not None:
                self._hosted_end = asyncio.get_running_loop().create_task(_until_ended(self, ended()))
        _started(start)
        _export_build(self._hosted_part)

    def _hosted_failed(self, error: BaseException) -> None:
        if self._hosted_history is not None:
            self._hosted_history.failed(f"{type(error).__name__}: {error}")


def hosted(
    actor_class: type[Any],
    prepare: Callable[[Any], Any] = lambda argument: argument,
    *,
    part: str = "",
    logs: LogsConfig | None = None,
    watch: WatchConfig | None = None,
) -> type[Any]:
    """Return a subclass for ``ray.remote`` that starts itself and holds calls back until it has started.

    ``start`` may be called any number of times: each call returns or raises the outcome of the one real start. Another
    async method raises ServiceNotReadyError when the start takes longer than 10 s. ``log_chunk`` returns the end of the
    actor's log, or what was written after a place, as ``read_log`` does; ``part_facts`` returns ``own_facts``,
    and with them the ``starts`` in a row that did not last, and the ``failure`` of the latest. Methods that the class
    names in ``ungated`` are not held back. When ``ended`` of a class that has it returns, the process ends, and the
    reason that it returned is the ``failure``. Where the start is delayed, ``after_end`` of a class that has it is
    called first.

    Args:
        prepare: is given each argument of the constructor on the node that runs the actor, and returns what the actor
            gets instead.
        part: name of the actor.
        logs: where its log goes; None: the actor has none but Ray's.
        watch: where its metrics are served; None: nowhere.
    """

    # A process of another release loads this class from its pickle when it gets the handle of the actor. So all that
    # the class holds is in the release before this one, too; the rest is in bytes, which the actor's own process reads.
    kept = ray.cloudpickle.dumps((prepare, portable(logs), portable(watch)))  # type: ignore[no-untyped-call]

    class Hosted(_HostedPart, actor_class):  # type: ignore[misc]  # its base is known at run time
        def __init__(self, *arguments: Any, **options: Any) -> None:
            from heliograph.cluster.hosting import begin_hosting

            begin_hosting(self, super().__init__, part, kept, arguments, options)

    ungated = {*_UNGATED, ENDED_METHOD, *getattr(actor_class, "ungated", ())}
    for name, method in inspect.getmembers(actor_class, inspect.iscoroutinefunction):
        if not name.startswith("_") and name not in ungated:
            setattr(Hosted, name, _gated(actor_class, name, inspect.signature(method)))
    Hosted.__name__ = Hosted.__qualname__ = actor_class.__name__
    Hosted.__doc__ = actor_class.__doc__
    return Hosted


def begin_hosting(
    actor: Any,
    make: Callable[..., None],
    part: str,
    kept: bytes,
    arguments: Sequence[Any],
    options: Mapping[str, Any],
) -> None:
    """Make the actor of a hosted class, in its process, and start it.

    Args:
        make: the constructor of the actor's own class.
        kept: what ``hosted`` keeps for this.
        arguments, options: of the constructor.
    """
    is_alone = not shared_part.get()
    if is_alone:
        prepare_process()
    prepare, kept_logs, *kept_watch = ray.cloudpickle.loads(kept)  # the release before this one kept two
    logs: LogsConfig | None = restored(kept_logs)
    watch: WatchConfig | None = restored(kept_watch[0]) if kept_watch else None
    # Methods read these, not a closure: a process that gets the handle of another actor whose class has this name loads
    # that class, and from then on Ray calls that class's functions with this actor as ``self``.
    actor._hosted_part = part
    actor._hosted_logs = logs
    actor._hosted_watch = actor._hosted_door = None
    actor._hosted_history = None if logs is None else StartHistory(logs.directory, part)
    pause = 0.0 if actor._hosted_history is None else actor._hosted_history.begin(wall_ms())
    if logs is not None:
        start_log(part, logs)
        if shown := logs_directory():  # Ray's pages list it beside its own
            in_ray = Path(shown) / SHOWN_LOGS
            start_log(part, replace(logs, directory=in_ray, files_max=min(logs.files_max, SHOWN_FILES_MAX)))
        log.info("process %d starts, version %s", os.getpid(), heliograph_version())
    try:
        prepared = list(map(prepare, arguments))
        if watch is not None and watch.port:
            actor._hosted_watch = watch, prepare(portable(ListenAddress(watch.host, watch.port, watch.port)))
    except HeliographError as error:
        actor._hosted_failed(error)
        if is_alone:
            time.sleep(pause)  # the actor has no loop yet
        raise
    make(*prepared, **options)
    if is_alone:
        watch_loop()
    # Ray runs the constructor of an async actor on the actor's own loop. A call to itself through its handle would work
    # for the first start only: Ray drops such a call when it restarts the actor.
    own: Any = super(_HostedPart, actor)  # of the actor's class: the mixin's methods have the same names
    actor._hosted_stop = own.stop
    after_end = getattr(actor, AFTER_END, None)
    start = _after(pause, own.start, None if after_end is None else partial(after_end, *prepared))
    actor._hosted_start = asyncio.get_running_loop().create_task(start)
    actor._hosted_start.add_done_callback(actor._hosted_started)


def prepare_process() -> None:
    os.umask(PRIVATE_UMASK)  # messages, metadata and logs are for the user of the cluster alone
    assert __debug__, "invariants are checked by assert: do not run with python -O"


def watch_loop() -> None:
    """End this process when the running loop does not turn any more: Ray starts it again. Find its long steps."""
    watch_running_loop()
    if (watchdog := watchdog_of_environment()) is not None:
        watchdog.start()


def own_facts() -> dict[str, Any]:
    """Return id, versions, host, address in Ray, open files at most and wall clock in ms of this process.

    ``installed`` is the version of the code on this node now, which may be newer than the process's.
    """
    return {
        "pid": os.getpid(),
        "version": heliograph_version(),
        "installed": installed_here(),
        "formats": spoken_formats(),
        "python": platform.python_version(),
        "node": socket.gethostname(),
        "node_address": discovery.own_address() if discovery.is_attached() else "",
        "open_files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "wall_ms": wall_ms(),
    }


def _export_build(part: str) -> None:
    """Export the version of this process as a label, as Prometheus programs do."""
    Gauge(_BUILD.name, _BUILD.meaning, _BUILD.labels).set(1, {"part": part, "version": heliograph_version()})


def _gated(actor_class: type[Any], name: str, signature: inspect.Signature) -> Callable[..., Awaitable[Any]]:
    """Return the method of that name, which waits for the start first. It is found when it is called."""

    async def when_started(self: Any, *arguments: Any, **options: Any) -> Any:
        if not self._hosted_start.done():
            try:
                await asyncio.wait_for(self.start(), READY_WAIT_SECONDS)
            except TimeoutError:
                raise ServiceNotReadyError(f"{self!r} is still starting: try again") from None
        return await getattr(actor_class, name)(self, *arguments, **options)

    when_started.__name__ = when_started.__qualname__ = name
    when_started.__signature__ = signature  # type: ignore[attr-defined]  # by which callers' arguments are checked
    return when_started


async def _open_door(actor: _HostedPart, watch: WatchConfig, at: ListenAddress) -> None:
    actor._hosted_door = await open_door(actor._hosted_part, actor, watch, at)


async def _until_ended(actor: _HostedPart, ended: Awaitable[str]) -> None:
    """End this process when the part has ended by itself, so that Ray starts both again."""
    why = await ended
    log.error("the part has ended: %s", why)
    if actor._hosted_history is not None:
        actor._hosted_history.failed(why)
    os._exit(1)


async def _after(
    pause: float, start: Callable[[], Awaitable[Any]], stand_in: Callable[[], Awaitable[None]] | None = None
) -> Any:
    if pause:
        log.warning("starting in %.0f s: the process ended again and again", pause)
        if stand_in is not None:
            try:
                await stand_in()
            except HeliographError as error:
                log.warning("others may not stand in for this part during the pause: %s", error)
        await asyncio.sleep(pause)
    try:
        return await start()
    except ResourceError as error:  # a port or a directory of this node: the reader may be on another
        where = (
            f"{socket.gethostname()} ({discovery.own_address()})" if discovery.is_attached() else socket.gethostname()
        )
        raise ResourceError(f"on node {where}: {error}", field=error.field, limit=error.limit) from error


def _started(start: asyncio.Task[Any]) -> None:
    if start.cancelled():
        return
    if (error := start.exception()) is not None:
        log.error("the start failed: %s", error, exc_info=error)
        if not shared_part.get():
            asyncio.get_running_loop().call_later(FAILED_START_PAUSE_SECONDS, os._exit, 1)
        return
    log.info("serves as %s", start.result())
    collector.take_over()
