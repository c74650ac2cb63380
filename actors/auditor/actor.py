"""The auditor's actor. This is a plain class; ``heliograph/cluster/deployment.py`` makes a Ray actor of it."""

from __future__ import annotations

import asyncio
from typing import Any

from ray.util.metrics import Gauge

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.service import AuditorService
from heliograph.base.completion import end_task
from heliograph.base.interval import until_tick
from heliograph.base.processes import end_of_part
from heliograph.base.version import methods_removed
from heliograph.metrics.auditor import AUDITOR_METRICS

METRICS_SECONDS = 10.0  # Ray exports them as often


@methods_removed("decommission_progress", "may_stop_bookie")
class AuditorActor:
    """The actor that finds missing copies, repairs ledgers, or does both, as its configuration says.

    A failed or lost call may have marked tasks that any audit would mark; it has changed nothing else.
    """

    def __init__(self, config: AuditorConfig, metadata_url: str) -> None:
        self._config = config
        self._metrics_task: asyncio.Task[None] | None = None
        self._service = AuditorService(config, metadata_url, on_crash=end_of_part())

    async def start(self) -> str:
        """Start the work and return the auditor's name, since it has no address. Idempotent.

        Raises:
            MetadataError: the store cannot be reached.
        """
        await self._service.start()
        if self._metrics_task is None:
            self._metrics_task = asyncio.create_task(self._export_metrics(), name="metrics")
        return self._config.identity

    async def stop(self) -> None:
        """Stop the work and end the metadata session. Idempotent."""
        await end_task(self._metrics_task)
        self._metrics_task = None
        await self._service.stop()

    async def trigger_audit(self, everything: bool = False) -> dict[str, Any]:
        """Audit now and return the findings, before they are repaired.

        Args:
            everything: compare the replicas of all closed ledgers entry by entry again. This takes long.

        Returns:
            ``lost_bookies``, ``absent_bookies``, ``ledgers``, ``marked`` (tasks created or extended) and
            ``outstanding`` (tasks that exist).

        Raises:
            MetadataError: the store failed; marked ledgers stay marked.
            ServiceNotReadyError: between two metadata sessions; try again.
        """
        return await self._service.audit(everything=everything)

    async def decommission(self, bookie_id: str) -> dict[str, Any]:
        return await self._service.decommission.begin(bookie_id)

    async def cancel_decommission(self, bookie_id: str) -> None:
        await self._service.decommission.cancel(bookie_id)

    async def finish_decommission(self, bookie_id: str) -> None:
        await self._service.decommission.finish(bookie_id)

    async def permit_empty_disk(self, bookie_id: str, accept_loss: bool = False) -> dict[str, Any]:
        return await self._service.replacement.permit(bookie_id, accept_loss=accept_loss)

    async def recover_bookie(self, bookie_id: str, is_replaced: bool = False) -> dict[str, Any]:
        return await self._service.replacement.recover(bookie_id, is_replaced=is_replaced)

    async def recovery_progress(self, bookie_id: str) -> dict[str, Any]:
        return await self._service.replacement.progress(bookie_id)

    async def describe_ledger(self, ledger_id: int) -> dict[str, Any]:
        return await self._service.describe(ledger_id)

    async def repair_tasks(self) -> dict[str, Any]:
        return await self._service.repair_tasks()

    async def repair_status(self) -> dict[str, Any]:
        return await self._service.repair_status()

    async def pause(self, repair: bool | None = None, scrubs: bool | None = None) -> None:
        await self._service.pause(repair=repair, scrubs=scrubs)

    async def statistics(self) -> dict[str, Any]:
        """Return counts of the auditor and of its worker since the session began."""
        return self._service.statistics()

    async def history(self) -> dict[str, Any]:
        return self._service.history.told()

    async def _export_metrics(self) -> None:
        tags = {"worker": self._config.identity}
        gauges = [(m.key, Gauge(m.name, tag_keys=("worker",))) for m in AUDITOR_METRICS if m.is_rays]
        while True:
            statistics = self._service.statistics()
            found = {**statistics["auditor"], **statistics["worker"]}
            for key, gauge in gauges:
                gauge.set(float(found.get(key, 0)), tags)  # empty between two sessions
            await asyncio.sleep(until_tick(METRICS_SECONDS))

    def __repr__(self) -> str:
        return f"{'Replicator' if self._config.duties == 'repair' else 'Auditor'}({self._config.identity})"
