"""A simulated replication worker, which repairs one ledger with the real repair core."""

from __future__ import annotations

from heliograph.actors.ledger.effects import Effect, Failed, RepairFinished
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.placement.placement import RandomPlacement
from heliograph.actors.ledger.repair.core import RepairCore
from heliograph.metadata.model import LedgerMetadata, Versioned
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.world import Process


class SimulatedRepairer(Process):
    """One worker that repairs one ledger, once."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.world = cluster.world
        self.is_done = False
        self.is_complete = False
        self.copied_entries = 0
        self.health = BookieHealth()
        self.chooser = BookieChooser(RandomPlacement(), self.world.stream(name))

    def repair(self, ledger_id: int) -> None:
        """Read the record and start."""
        self.chooser.set_writable(self.cluster.registered())
        store = self.cluster.store
        store.ask(self, lambda: store.ledger(ledger_id), self._on_ledger, self._end)

    def _on_ledger(self, found: Versioned[LedgerMetadata] | None) -> None:
        if found is None:
            self._end()
            return
        alive = {registration.bookie_id for registration in self.cluster.registered()}
        alive |= {bookie.name for bookie in self.cluster.bookies.values() if bookie.is_full and bookie.is_up}
        named = {bookie_id for segment in found.record.segments for bookie_id in segment.bookies}
        core = RepairCore(found, sorted(named), sorted(alive), self.chooser, self.health)

        def report(effect: Effect) -> None:
            if isinstance(effect, RepairFinished):
                runner.is_over = True
                self.is_complete = effect.complete
                self.copied_entries = effect.copied_entries
                self.world.count("repair complete" if effect.complete else "repair incomplete")
                if effect.copied_entries:
                    self.world.count("entry copied", effect.copied_entries)
                self.world.note(self.name, "ledger", core.ledger_id, effect)
                self._end()
            elif isinstance(effect, Failed):
                runner.is_over = True
                self.world.count("repair failed")
                self._end()

        runner = SimulatedRunner(self.cluster, self, core, report)
        runner.run(core.start(self.world.now))

    def _end(self) -> None:
        self.is_done = True
