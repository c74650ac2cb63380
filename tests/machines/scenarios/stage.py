"""What a scenario is played on: the cluster, the load, chance, and the way back to a healthy cluster."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from heliograph.base.errors import HeliographError
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.store import MetadataStore
from tests.cluster.support.bookie_metadata import all_ledgers
from tests.machines.cluster import MachineCluster
from tests.machines.load import Load, load
from tests.machines.network import wait_for

SETTLE_SECONDS = 300.0

T = TypeVar("T")


@dataclass
class Stage:
    """The cluster that a scenario is played on, and where chance comes from.

    Attributes:
        say: is told what happens.
        pauses: the longest time without a receipt of each load so far, in seconds.
    """

    cluster: MachineCluster
    chance: random.Random
    say: Callable[[str], None]
    pauses: list[float] = field(default_factory=list)

    @contextmanager
    def load(self) -> Iterator[Load]:
        """Have clients publish and acknowledge for the length of the block, then check what they were confirmed."""
        with load(self.cluster.service_url, self.chance.randrange(1 << 32)) as made:
            made.begin_fault()
            yield made
            made.wait_for_more()
            self.note_pause(made.unavailable_seconds(), "at most")

    def note_pause(self, seconds: float, when: str) -> None:
        """Say and keep for how long publishing stood still."""
        self.pauses.append(seconds)
        self.say(f"publishing stood still for {seconds:.1f} s {when}")

    def settle(self, *, without: int | None = None, also: str = "", seconds: float = SETTLE_SECONDS) -> None:
        """Wait until everything serves and each ledger has all of its copies again.

        Args:
            without: number of a machine that stays away.
            also: a bookie that serves besides those of the machines.
            seconds: longest wait.
        """
        begun = time.monotonic()
        found: list[str] = []

        def is_settled() -> bool:
            found[:] = self._troubles(without, also)
            return not found

        try:
            wait_for(is_settled, "everything serves and has all copies", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}: {found}") from None
        self.say(f"everything serves and every ledger has all copies, {time.monotonic() - begun:.0f} s after the end")

    def metadata(self, asked: Callable[[MetadataStore], Coroutine[Any, Any, T]]) -> T:
        """Ask the metadata store. Raises HeliographError if it does not answer."""
        return asyncio.run(_asked(self.cluster.metadata_url(), asked))

    def ledgers(self) -> list[LedgerMetadata]:
        """Return every ledger. Raises HeliographError if the metadata store does not answer."""
        return self.metadata(all_ledgers)

    def ledgers_elsewhere(self, bookies: set[str]) -> list[str]:
        """Return the ledgers that name another bookie than these, or one bookie twice."""
        return [
            f"ledger {ledger.ledger_id} is on {', '.join(part.bookies)}"
            for ledger in self.ledgers()
            for part in ledger.segments
            if (not set(part.bookies) <= bookies or len(set(part.bookies)) < ledger.write_quorum)
            and (not ledger.is_closed or part.first_entry_id <= ledger.last_entry_id)
        ]

    def _troubles(self, without: int | None, also: str) -> list[str]:
        try:
            status = self.cluster.status()
        except (json.JSONDecodeError, AssertionError) as error:
            return [f"no status: {error}"]
        if "error" in status:  # what runs nowhere now, as after the head's end, is no status of a cluster
            return [f"no status: {status['error']}"]
        expected = {f"bookie-{n + 1}" for n in range(len(self.cluster.machines)) if n != without} | {also} - {""}
        found = {*status["bookies_available"], *status["bookies_readonly"]}
        troubles = [f"{name} is away" for name in expected - set(status["bookies_available"])]
        troubles += [f"{name} is still there" for name in found - expected]
        if without is None and not status["healthy"]:
            troubles.append("not healthy: " + ", ".join(a["name"] for a in status["actors"] if a["state"] != "ALIVE"))
        if status["underreplicated_ledgers"]:
            troubles.append(f"{status['underreplicated_ledgers']} ledgers lack copies")
        if not troubles:
            with suppress(HeliographError, OSError):
                return self.ledgers_elsewhere(expected)
            return ["the metadata store does not answer"]
        return troubles


async def _asked(metadata_url: str, asked: Callable[[MetadataStore], Coroutine[Any, Any, T]]) -> T:
    store = await connect_store(metadata_url)
    try:
        return await asked(store)
    finally:
        await store.close()
