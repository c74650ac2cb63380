"""The run's own cluster: real actors on a Ray of its own, with what they used of processor and disk."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from heliograph import discovery
from tests.bench.process import CpuTime, cpu_time, memory_bytes
from tests.cluster.live_cluster import LiveCluster, start


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over all actors since their start."""

    cpu: CpuTime
    journal_bytes: int

    def since(self, earlier: Usage) -> Usage:
        """What was used between two looks."""
        return Usage(self.cpu - earlier.cpu, self.journal_bytes - earlier.journal_bytes)


class PrivateCluster:
    """Metadata, bookies and brokers; no auditor and no gateway, which do nothing for a publish.

    Three copies of each entry, two of them fsynced before an acknowledgement, which are the defaults.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self._live: LiveCluster | None = None
        self._bookies = self._brokers = 0

    @property
    def live(self) -> LiveCluster:
        """The means to call and to hurt its actors."""
        assert self._live is not None, "the cluster was started"
        return self._live

    @property
    def service_url(self) -> str:
        """Of all brokers, as clients take it."""
        return self.live.state.service_url

    @property
    def namespace(self) -> str:
        """Ray namespace of the actors."""
        return self._namespace

    def grow(self, *, bookies: int, brokers: int) -> None:
        """Start the cluster, or the actors that it lacks."""
        if bookies <= self._bookies and brokers <= self._brokers:
            return
        self._bookies, self._brokers = max(bookies, self._bookies), max(brokers, self._brokers)
        self._live = start(
            self._home,
            self._namespace,
            bookies=self._bookies,
            brokers=self._brokers,
            auditor=False,
            gateway=False,
        )

    def usage(self) -> Usage:
        """What all actors have used up to now. Ray's own processes are not counted."""
        pids = [self.live.pid(name) for name in self._names()]
        journals = [
            int(self.live.call(name, "statistics")["journal_bytes_fsynced"])
            for name in self._names()
            if name.startswith(discovery.BOOKIE_PREFIX)
        ]
        return Usage(cpu_time(*pids), sum(journals))

    def memory_bytes(self) -> dict[str, int]:
        """What each kind of actor holds: ``metadata``, ``bookie``, ``broker``."""
        found: dict[str, int] = {}
        for name in self._names():
            kind = name.partition("-")[0]
            found[kind] = found.get(kind, 0) + memory_bytes(self.live.pid(name))
        return found

    def stop(self) -> None:
        """End everything and delete its data."""
        if self._live is not None:
            self._live.stop()
            discovery.detach()

    def _names(self) -> list[str]:
        return [
            discovery.METADATA,
            *(f"{discovery.BOOKIE_PREFIX}{number}" for number in range(1, self._bookies + 1)),
            *(f"{discovery.BROKER_PREFIX}{number}" for number in range(1, self._brokers + 1)),
        ]
