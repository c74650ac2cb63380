"""A cluster in this process that finds and repairs what it loses, with an auditor as clusters on machines have it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph.actors.auditor import service
from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.service import AuditorService
from heliograph.base.clock import monotonic_ms
from heliograph.base.loop_thread import LoopThread
from heliograph.standalone.local import LocalCluster
from heliograph.standalone.parts import LocalParts
from tests.waits import until

AUDITOR = "auditor"
GRACE_MS = 600_000  # for the writer of a ledger to go on with other bookies


class Lossy:
    """A running cluster with four bookies, and the means to kill one. Nothing is repaired before ``repair``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self._parts = cluster._parts
        self.ahead_ms = 0  # of the clock by which repair waits for writers
        self.auditor = self._service("auditor", "audit")
        self.worker = self._service("replicator-1", "repair")

    def _service(self, identity: str, duties: str) -> AuditorService:
        config = AuditorConfig(
            identity=identity,
            duties=duties,
            cluster_secret=self._parts._secret,
            lost_bookie_delay_ms=6_000,
            open_ledger_grace_ms=GRACE_MS,
            audit_interval_ms=500,
            worker_poll_ms=100,
        )
        return AuditorService(config, self._parts._metadata_url, on_crash=threading.Event().set)

    @property
    def loop(self) -> LoopThread:
        assert self.cluster._thread is not None, "it runs"
        return self.cluster._thread

    def kill(self, bookie: str) -> None:
        """Have a bookie end, and not come back; its disk stays unread."""
        self.loop.run(self._parts._bookies[bookie].stop())

    def repair(self) -> None:
        """Begin to repair. Return when ledgers have their copies; those that may have a writer are waited for."""
        self.loop.run(self._repair())

    async def _repair(self) -> None:
        await self.worker.start()
        await until(lambda: self.worker.statistics()["worker"].get("ledgers_repaired", 0))

    def pass_grace(self) -> None:
        """Let the time pass that writers have."""
        self.ahead_ms = GRACE_MS

    async def stop(self) -> None:
        await self.worker.stop()
        await self.auditor.stop()


@contextlib.contextmanager
def lossy_cluster(directory: Path) -> Iterator[Lossy]:
    """Run one. Its gateway asks the auditor as the gateway of a cluster in Ray does, and nothing else is different."""
    answered = LocalParts.ask, LocalParts.names
    with pytest.MonkeyPatch.context() as patch, heliograph.local(directory, bookies=4) as cluster:
        found = Lossy(cluster)

        async def ask(self: LocalParts, part: str, method: str, arguments: list[Any]) -> Any:
            if part != AUDITOR:
                return await answered[0](self, part, method, arguments)
            if method == "pause":
                return await found.auditor.pause(repair=arguments[0])
            return await found.auditor.repair_status()

        async def names(self: LocalParts) -> list[str]:
            return [AUDITOR, *await answered[1](self)]

        patch.setattr(service, "monotonic_ms", lambda: monotonic_ms() + found.ahead_ms)
        patch.setattr(LocalParts, "ask", ask)
        patch.setattr(LocalParts, "names", names)
        found.loop.run(found.auditor.start())
        try:
            yield found
        finally:
            found.loop.run(found.stop())
