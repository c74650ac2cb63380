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
from heliograph.client.discovery import OPERATOR, own_address
from heliograph.cluster.operator.operator import Operator, OperatorSettings
from heliograph.cluster.operator.ray_port import Create, RayPort
from heliograph.metadata.connect import connect_store
from heliograph.metadata.operator_records import Wish
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)

RESTART_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class OperatorArguments:
    """What an operator is started with. ``metadata_url`` includes the password; ``create`` creates actors of parts."""

    namespace: str
    metadata_url: str
    session_timeout_ms: int
    settings: OperatorSettings
    create: Create


class PackedCall:
    """What an operator makes parts by that release 0.1.0 created. The parts of this release need more than it has."""

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

    async def start(self) -> str:
        """Open the first session and take part in the election. Return the operator's name. Idempotent.

        Raises:
            MetadataError: the store cannot be reached.
        """
        if self._task is None:
            store = await self._open()
            self._task = asyncio.create_task(self._run(store), name="operator")
            self._task.add_done_callback(partial(_ended, self))
        return OPERATOR

    async def stop(self) -> None:
        """Stop the work, as it is, and end the session, so that another operator leads at once. Idempotent."""
        await end_task(self._task)
        self._task = None

    async def pid(self) -> int:
        return os.getpid()

    async def store_wish(self, wish: Wish) -> Wish:
        return await self._in_session().store_wish(wish)

    async def load_wish(self, subject: str) -> Wish | None:
        return await self._in_session().load_wish(subject)

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
                self._operator = Operator(store, RayPort(given.namespace, given.create), settings, given.metadata_url)
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
