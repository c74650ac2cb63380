"""What a scenario is played on: the cluster, the load, chance, and the way back to a healthy cluster."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from heliograph.actors.auditor.ledger_scan import scan_ledgers
from heliograph.base.errors import HeliographError
from heliograph.metadata.connect import connect_store
from tests.machines.cluster import MachineCluster
from tests.machines.load import Load, load
from tests.machines.network import wait_for

SETTLE_SECONDS = 300.0
SCANS_AT_ONCE = 16


@dataclass
class Stage:
    """The cluster that a scenario is played on, and where chance comes from.

    Attributes:
        say: is told what happens.
        has_disks: whether each bookie has a small disk of its own.
    """

    cluster: MachineCluster
    chance: random.Random
    say: Callable[[str], None]
    has_disks: bool = False

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Have clients publish and acknowledge for the length of the block, then check what they were confirmed."""
        with load(self.cluster.service_url, self.chance.randrange(1 << 32)) as made:
            made.begin_fault()
            yield made
            made.wait_for_more()
            self.say(f"publishing stood still for {made.unavailable_seconds():.1f} s at most")

    def settle(self, *, without: int | None = None) -> None:
        """Wait until everything serves and each ledger has all of its copies again.

        Args:
            without: number of a machine that stays away.
        """
        begun = time.monotonic()
        found: list[str] = []

        def is_settled() -> bool:
            found[:] = self._troubles(without)
            return not found

        try:
            wait_for(is_settled, "everything serves and has all copies", SETTLE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from None
        self.say(f"everything serves and every ledger has all copies, {time.monotonic() - begun:.0f} s after the end")

    def _troubles(self, without: int | None) -> list[str]:
        try:
            status = self.cluster.status()
        except (json.JSONDecodeError, AssertionError) as error:
            return [f"no status: {error}"]
        expected = {f"bookie-{n + 1}" for n in range(len(self.cluster.machines)) if n != without}
        troubles = [f"{name} is away" for name in expected - set(status["bookies_available"])]
        if without is None and not status["healthy"]:
            troubles.append("not healthy: " + ", ".join(a["name"] for a in status["actors"] if a["state"] != "ALIVE"))
        if status["underreplicated_ledgers"]:
            troubles.append(f"{status['underreplicated_ledgers']} ledgers lack copies")
        if not troubles:
            with suppress(HeliographError, OSError):
                return asyncio.run(_ledgers_elsewhere(self.cluster.metadata_url(), expected))
            return ["the metadata store does not answer"]
        return troubles


async def _ledgers_elsewhere(metadata_url: str, bookies: set[str]) -> list[str]:
    """Return the ledgers that name a bookie that is not there, or one bookie twice."""
    store = await connect_store(metadata_url)
    try:
        ledgers = await scan_ledgers(store, SCANS_AT_ONCE)
    finally:
        await store.close()
    return [
        f"ledger {ledger.ledger_id} is on {', '.join(part.bookies)}"
        for ledger in ledgers
        for part in ledger.segments
        if (not set(part.bookies) <= bookies or len(set(part.bookies)) < ledger.write_quorum)
        and (not ledger.is_closed or part.first_entry_id <= ledger.last_entry_id)
    ]
