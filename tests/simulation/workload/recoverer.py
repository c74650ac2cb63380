"""Recoveries: by a broker that takes a topic over, and by clients that have no reason to recover the ledger."""

from __future__ import annotations

from collections.abc import Callable

from heliograph.actors.ledger.effects import Effect, Failed, RecoveryFinished
from heliograph.actors.ledger.limits import MetadataLimits, RecoveryLimits
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.placement import RandomPlacement
from heliograph.actors.ledger.recovery import RecoveryCore
from heliograph.metadata.model import LedgerMetadata, Versioned
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.world import Process

METADATA_LIMITS = MetadataLimits(retry_ms=100, wait_ms=8_000)


def start_recovery(
    process: Process,
    cluster: Cluster,
    chooser: BookieChooser,
    ledger: Versioned[LedgerMetadata],
    done: Callable[[RecoveryFinished | Failed], None],
) -> None:
    """Run the recovery core on a ledger, and call ``done`` with its end."""
    limits = RecoveryLimits(metadata=METADATA_LIMITS)
    core = RecoveryCore(ledger, chooser, limits)
    cluster.world.count("recovery started")

    def report(effect: Effect) -> None:
        if isinstance(effect, RecoveryFinished | Failed) and not runner.is_over:
            runner.is_over = True
            cluster.world.count("recovery finished" if isinstance(effect, RecoveryFinished) else "recovery failed")
            cluster.world.note(process.name, "ledger", core.ledger_id, effect)
            done(effect)

    runner = SimulatedRunner(cluster, process, core, report)
    runner.run(core.start(cluster.world.now))


class Meddler(Process):
    """A client that recovers a ledger while another may be writing or recovering it."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.is_done = False
        self.chooser = BookieChooser(RandomPlacement(), cluster.world.stream(name))
        self.chooser.set_writable(cluster.registered())

    def recover(self, ledger_id: int) -> None:
        """Read the record and start the recovery. ``is_done`` is true once it has ended, with or without success."""
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
