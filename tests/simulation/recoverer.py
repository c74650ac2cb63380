"""Recoveries: of a broker that takes a topic over, and of bystanders that nobody asked."""

from __future__ import annotations

from collections.abc import Callable

from actors.ledger.chooser import BookieChooser
from actors.ledger.effects import Effect, Failed, RecoveryFinished
from actors.ledger.limits import MetadataLimits, RecoveryLimits
from actors.ledger.placement import RandomPlacement
from actors.ledger.recovery import RecoveryCore
from metadata.model import LedgerMetadata, Versioned
from tests.simulation.shell import Cluster, CoreShell
from tests.simulation.world import Process

METADATA_LIMITS = MetadataLimits(retry_ms=100, wait_ms=8_000)


def start_recovery(
    process: Process,
    cluster: Cluster,
    chooser: BookieChooser,
    ledger: Versioned[LedgerMetadata],
    done: Callable[[RecoveryFinished | Failed], None],
) -> None:
    """Run the recovery core on a ledger; ``done`` gets its end."""
    limits = RecoveryLimits(metadata=METADATA_LIMITS)
    core = RecoveryCore(ledger, chooser, limits)
    cluster.world.count("recovery started")

    def report(effect: Effect) -> None:
        if isinstance(effect, RecoveryFinished | Failed) and not shell.is_over:
            shell.is_over = True
            cluster.world.count("recovery finished" if isinstance(effect, RecoveryFinished) else "recovery failed")
            cluster.world.note(process.name, "ledger", core.ledger_id, effect)
            done(effect)

    shell = CoreShell(cluster, process, core, report)
    shell.run(core.start(cluster.world.now))


class Meddler(Process):
    """Recovers a ledger that somebody may be writing or recovering."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.is_done = False
        self.chooser = BookieChooser(RandomPlacement(), cluster.world.stream(name))
        self.chooser.set_writable(cluster.registered())

    def recover(self, ledger_id: int) -> None:
        """Read the record and start; ``is_done`` tells when it ended, well or not."""
        store = self.cluster.store
        store.ask(self, lambda: store.ledger(ledger_id), self._on_ledger, self._end)

    def _on_ledger(self, found: Versioned[LedgerMetadata] | None) -> None:
        if found is None:
            self._end()
        else:
            start_recovery(self, self.cluster, self.chooser, found, self._on_end)

    def _on_end(self, _: RecoveryFinished | Failed) -> None:
        self._end()

    def _end(self) -> None:
        self.is_done = True
