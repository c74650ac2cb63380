"""The cluster of the run: real actors on their own Ray, with their use of processor and disk."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path

from heliograph.client import discovery
from tests.bench.process import CpuTime, cpu_time, memory_bytes, precise_cpu_seconds, wait_until_idle
from tests.cluster.support.live_cluster import LiveCluster, start


@dataclass(frozen=True, slots=True)
class Usage:
    """The sums over all actors since their start."""

    cpu: CpuTime
    journal_bytes: int

    def since(self, earlier: Usage) -> Usage:
        """Return the use between two measurements."""
        return Usage(self.cpu - earlier.cpu, self.journal_bytes - earlier.journal_bytes)


class PrivateCluster:
    """A cluster of metadata, bookies and brokers, without a gateway and, unless a section needs it, an auditor.

    Three copies of each entry, two of them fsynced before an acknowledgement, which are the defaults.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._namespace = f"bench-{uuid.uuid4().hex[:8]}"
        self._live: LiveCluster | None = None
        self._bookies = self._brokers = 0
        self._has_auditor = False

    @property
    def live(self) -> LiveCluster:
        """The access to the cluster's actors, also to kill them."""
        assert self._live is not None, "the cluster was started"
        return self._live

    @property
    def service_url(self) -> str:
        """Return the service URL of all brokers."""
        return self.live.state.service_url

    @property
    def namespace(self) -> str:
        """Return the Ray namespace of the actors."""
        return self._namespace

    def grow(self, *, bookies: int, brokers: int, auditor: bool = False) -> None:
        """Start the cluster, or its missing actors."""
        if bookies <= self._bookies and brokers <= self._brokers and auditor <= self._has_auditor:
            return
        self._has_auditor = auditor or self._has_auditor
        self._bookies, self._brokers = max(bookies, self._bookies), max(brokers, self._brokers)
        self._live = start(
            self._home,
            self._namespace,
            bookies=self._bookies,
            brokers=self._brokers,
            auditor=self._has_auditor,
            gateway=False,
        )
        wait_until_idle()

    def usage(self) -> Usage:
        """Return what all actors have used so far. Ray's own processes are not counted."""
        pids = [self.live.pid(name) for name in self._names()]
        journals = [
            int(self.live.call(name, "statistics")["journal_bytes_fsynced"])
            for name in self._names()
            if name.startswith(discovery.BOOKIE_PREFIX)
        ]
        return Usage(cpu_time(*pids), sum(journals))

    def cpu_seconds(self) -> float:
        """Return the processor time of all actors so far, as ``precise_cpu_seconds`` counts it."""
        return precise_cpu_seconds(*[self.live.pid(name) for name in self._names()])

    def memory_bytes(self) -> dict[str, int]:
        """Return the memory of each kind of actor: ``metadata``, ``bookie``, ``broker``."""
        found: dict[str, int] = {}
        for name in self._names():
            kind = name.partition("-")[0]
            found[kind] = found.get(kind, 0) + memory_bytes(self.live.pid(name))
        return found

    def stop(self) -> None:
        """Stop the cluster and delete its data. Idempotent."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            discovery.detach()

    def _names(self) -> list[str]:
        return [
            discovery.METADATA,
            *(f"{discovery.BOOKIE_PREFIX}{number}" for number in range(1, self._bookies + 1)),
            *(f"{discovery.BROKER_PREFIX}{number}" for number in range(1, self._brokers + 1)),
        ]
