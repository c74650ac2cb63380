"""Ray's dashboard with modules that run while they are asked.

Ray's dashboard has a server process for each of its modules, whether anyone looks at a page or not; at rest, these and
the look at each of them once a second are a third of what the whole cluster takes of a processor. Here, those that
only answer start with their first request, which takes half a second more, and end when none came for a while.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from typing_extensions import override

from heliograph.base.completion import run_to_completion

_head: Any = import_module("ray.dashboard.head")  # Ray has few types
_handle: Any = import_module("ray.dashboard.subprocesses.handle")
log = logging.getLogger("ray.dashboard")

# Modules that do nothing before they are asked. All others run as long as the dashboard: the one that follows nodes and
# actors, the one that writes the addresses of metrics for Prometheus, the one that `helio status` asks, and those that
# are not known here.
RESTING = frozenset(("DataHead", "EventHead", "JobHead", "MetricsHead", "ServeHead", "TrainHead"))
IDLE_SECONDS = 120.0  # without a request until a module ends
CHECK_SECONDS = 10.0  # between two looks at a module that runs; Ray's: 1. A request meets a dead one earlier
ASKING = ("GET", "HEAD", "OPTIONS")


class RestingModule(_handle.SubprocessModuleHandle):  # type: ignore[misc]  # see above
    """A module of the dashboard. It takes the place of Ray's handle, which runs a module as long as the dashboard."""

    def __init__(self, loop: asyncio.AbstractEventLoop, module_cls: type, config: Any) -> None:
        super().__init__(loop, module_cls, config)
        self.name = module_cls.__name__
        self._changing = asyncio.Lock()  # of the process
        self._requests = 0
        self._asked_at = 0.0  # clock of the loop
        self._was_told = False  # more than questions: it may hold what it was told
        self.rests = self.name in RESTING

    @override
    def start_module(self) -> None:
        """Start a module with the dashboard."""
        if not self.rests:
            super().start_module()
        elif self.name == "MetricsHead":
            _write_examples(self)

    @override
    def wait_for_module_ready(self) -> None:
        """Wait for a module that starts with the dashboard."""
        if self.process is not None:
            super().wait_for_module_ready()

    @override
    async def proxy_request(self, request: Any, *arguments: Any, **options: Any) -> Any:
        """Have the module answer a request, after it has started."""
        self._requests += 1
        self._was_told |= request.method not in ASKING
        try:
            await run_to_completion(self.run())  # the caller may hang up meanwhile
            return await super().proxy_request(request, *arguments, **options)
        finally:
            self._requests -= 1
            self._asked_at = self.loop.time()

    async def run(self) -> None:
        """Start the module unless it runs.

        Raises:
            RuntimeError: it does not start.
        """
        self._asked_at = self.loop.time()
        async with self._changing:
            if self.process is not None and self.process.exitcode is not None:
                await self.destroy_module()
            if self.process is None:
                await self._start()

    async def _start(self) -> None:
        try:
            await asyncio.to_thread(super().start_module)
            await asyncio.to_thread(self.parent_conn.poll, _head.dashboard_consts.SUBPROCESS_MODULE_WAIT_READY_TIMEOUT)
            super().wait_for_module_ready()
        except BaseException:
            await self.destroy_module()
            raise

    @override
    async def _do_periodic_health_check(self) -> None:
        """Look at the module from time to time. One that is not asked any more ends; one that fails starts again."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            async with self._changing:
                if self._is_idle():
                    self.process.terminate()
                    await asyncio.to_thread(self.process.join, CHECK_SECONDS)
                    await self.destroy_module()
                    return
                try:
                    await self._do_once_health_check()
                except Exception:
                    log.exception("module %s is unhealthy, see its log", self.name)
                    await self.destroy_module()
                    if not self.rests:
                        await self._start()
                    return

    def _is_idle(self) -> bool:
        is_recent = self.loop.time() - self._asked_at < IDLE_SECONDS
        return self.rests and not self._was_told and not self._requests and not is_recent


class _Running(list[RestingModule]):
    """Modules, of which those that do not run are left out."""

    @override
    def __iter__(self) -> Iterator[RestingModule]:
        return (module for module in super().__iter__() if module.process is not None)


def _write_examples(module: RestingModule) -> None:
    """Write the configurations for Grafana and Prometheus that a session has from the start."""
    try:
        writer = module.module_cls(module.config)
        writer._create_default_grafana_configs()
        writer._create_default_prometheus_configs()
    except Exception:  # another release of Ray: they are written when the module is asked
        log.exception("configurations of Grafana and Prometheus are not written")


def let_modules_rest() -> None:
    """Have the dashboard of this process run its modules while they are asked.

    Raises:
        AttributeError: this release of Ray has another dashboard.
    """
    record = _head.DashboardHead._record_dashboard_metrics
    vars(_handle)["SubprocessModuleHandle"] = RestingModule
    _head.DashboardHead._record_dashboard_metrics = lambda self, modules: record(self, _Running(modules))
