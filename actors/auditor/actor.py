"""The auditor as an actor. A plain class: ``heliograph/cluster/deployment.py`` makes the actor of it."""

from __future__ import annotations

import os
from typing import Any

from actors.auditor.config import AuditorConfig
from actors.auditor.service import AuditorService


class AuditorActor:
    """Finds lost copies and brings them back.

    A failed or lost call has changed nothing but, at most, marks that any audit would make.
    """

    def __init__(self, config: AuditorConfig, metadata_url: str) -> None:
        self._config = config
        self._service = AuditorService(config, metadata_url, on_crash=lambda: os._exit(1))  # Ray starts it anew

    async def start(self) -> str:
        """Begin to work; idempotent. Returns the auditor's name: it has no address.

        Raises:
            MetadataError: the store cannot be reached.
        """
        await self._service.start()
        return self._config.identity

    async def stop(self) -> None:
        """End the work and the metadata session. Idempotent."""
        await self._service.stop()

    async def trigger_audit(self, everything: bool = False) -> dict[str, Any]:
        """Audit now and return what was found, before it is repaired.

        Args:
            everything: compare the replicas of all closed ledgers entry by entry again, which takes long.

        Returns:
            ``lost_bookies``, ``absent_bookies``, ``ledgers``, ``marked`` (tasks made or extended), ``outstanding``.

        Raises:
            MetadataError: the store failed; what was marked stays marked.
            ServiceNotReadyError: between two metadata sessions; try again.
        """
        return await self._service.audit(everything=everything)

    async def decommission(self, bookie_id: str) -> dict[str, Any]:
        """Have a bookie emptied, to be taken out of the cluster: ``Decommission.begin``."""
        return await self._service.decommission.begin(bookie_id)

    async def decommission_progress(self, bookie_id: str) -> dict[str, Any]:
        """How far that is: ``Decommission.progress``."""
        return await self._service.decommission.progress(bookie_id)

    async def cancel_decommission(self, bookie_id: str) -> None:
        """Let the bookie stay: ``Decommission.cancel``."""
        await self._service.decommission.cancel(bookie_id)

    async def finish_decommission(self, bookie_id: str) -> None:
        """Forget the bookie, which is empty and stopped: ``Decommission.finish``."""
        await self._service.decommission.finish(bookie_id)

    async def statistics(self) -> dict[str, Any]:
        """Counts of the auditor and of its worker since the session began."""
        return self._service.statistics()

    async def pid(self) -> int:
        """Id of the process, on its node."""
        return os.getpid()

    def __repr__(self) -> str:
        return f"Auditor({self._config.identity})"
