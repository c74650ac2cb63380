"""The operator's actor. This is a plain class; ``heliograph/cluster/deployment.py`` makes a Ray actor of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from heliograph.base.completion import end_task
from heliograph.base.errors import ConflictError, HeliographError, ServiceNotReadyError
from heliograph.base.processes import end_of_part
from heliograph.base.version import methods_removed
from heliograph.client.discovery import GATEWAY, OPERATOR, own_address
from heliograph.cluster.operator.operator import Operator, OperatorSettings
from heliograph.cluster.operator.ray_port import Create, RayPort
from heliograph.metadata.connect import connect_store
from heliograph.metadata.operator_records import ClusterReport, Wish
from heliograph.metadata.store import MetadataStore
from heliograph.metrics.coordination import OPERATOR_METRICS
from heliograph.metrics.history import History, keep_history
from heliograph.report.findings import findings, verdict

log = logging.getLogger(__name__)

RESTART_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class OperatorArguments:
    """Arguments of an operator's start. ``metadata_url`` includes the password; ``create`` creates actors of parts."""

    namespace: str
    metadata_url: str
    session_timeout_ms: int
    settings: OperatorSettings
    create: Create


class PackedCall:
    """The call by which an operator of release 0.1.0 creates parts. It lacks fields that parts of this release need."""

    def __call__(self, name: str, *_: Any) -> None:
        raise ConflictError(
            f"the operator was started by an older release and cannot make {name}: helio restart --rolling gives the "
            "cluster a new one"
        )


@methods_removed("scale", "restart", "hold", "forget", "leave")
class OperatorActor:
    """The actor that gives nodes their parts and keeps them there. All calls may be repeated."""

    def __init__(self, arguments: OperatorArguments) -> None:
        self._arguments = arguments
        self._operator: Operator | None = None
        self._task: asyncio.Task[None] | None = None
        self._end = end_of_part()
        self._verdict = ""
        self._gateway = ""  # its address, as the cluster's card has it
        self._showing: asyncio.Task[None] | None = None
        self._history = History()
        self._keeping: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Open the first session and take part in the election. Return the operator's name. Idempotent.

        Raises:
            MetadataError: the store cannot be reached.
        """
        if self._task is None:
            store = await self._open()
            keeping = keep_history(self._history, OPERATOR_METRICS, self._statistics)
            self._keeping = asyncio.create_task(keeping, name="history")
            self._task = asyncio.create_task(self._run(store), name="operator")
            self._task.add_done_callback(partial(_ended, self))
        return OPERATOR

    async def stop(self) -> None:
        """Stop the work, as it is, and end the session, so that another operator leads at once. Idempotent."""
        await end_task(self._task)
        await end_task(self._keeping)
        self._task = None

    async def store_wish(self, wish: Wish) -> Wish:
        return await self._in_session().store_wish(wish)

    async def load_wish(self, subject: str) -> Wish | None:
        return await self._in_session().load_wish(subject)

    async def verdict(self) -> str:
        """Return how the cluster is, in a sentence; empty before the first report. Ray's page of this actor lists a
        call of this for each change, named by that sentence."""
        return self._verdict

    def _on_report(self, ray_port: RayPort, report: ClusterReport) -> None:
        if self._showing is None or self._showing.done():
            self._showing = asyncio.create_task(self._show(ray_port, report), name="verdict")

    async def _show(self, ray_port: RayPort, report: ClusterReport) -> None:
        """Tell Ray what changed: the verdict, and the address of the gateway."""
        found = verdict(report, findings(report, None))
        if found != self._verdict:
            self._verdict = found
            await ray_port.show(found)
        gateway = next((part.address for part in report.parts if part.name == GATEWAY), "")
        if gateway and gateway != self._gateway:
            with contextlib.suppress(ServiceNotReadyError):  # the next report tries again
                await ray_port.note_gateway(gateway)
                self._gateway = gateway

    async def statistics(self) -> dict[str, Any]:
        """Return the operator's counters; without a session they say only that it does not lead."""
        return self._statistics()

    async def history(self) -> dict[str, Any]:
        return self._history.told()

    def _statistics(self) -> dict[str, Any]:
        return {"is_leader": 0} if self._operator is None else self._operator.statistics()

    async def progress(self) -> dict[str, Any]:
        return await self._in_session().progress()

    def _in_session(self) -> Operator:
        if self._operator is None:
            raise ServiceNotReadyError("the operator is opening a new session: try again")
        return self._operator

    async def _open(self) -> MetadataStore:
        return await connect_store(self._arguments.metadata_url, session_timeout_ms=self._arguments.session_timeout_ms)

    async def _run(self, store: MetadataStore | None) -> None:
        given = self._arguments
        settings = replace(given.settings, identity=f"{given.settings.identity} on {own_address()}, pid {os.getpid()}")
        while True:
            try:
                store = store or await self._open()
                port = RayPort(given.namespace, given.create)
                self._operator = Operator(store, port, settings, given.metadata_url)
                self._operator.reporter.on_report = partial(self._on_report, port)
                await self._operator.run()
            except HeliographError as error:
                log.warning("operator: %s: %s; starting over", type(error).__name__, error)
            finally:
                self._operator = None
                with contextlib.suppress(HeliographError):
                    if store is not None:
                        await store.close()
            store = None
            await asyncio.sleep(RESTART_PAUSE_SECONDS)

    def __repr__(self) -> str:
        return "Operator()"


def _ended(actor: OperatorActor, task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        log.critical("the operator crashed", exc_info=task.exception())
        actor._task = None
        actor._end()
