"""A reader of open and closed ledgers, as a client without a subscription."""

from __future__ import annotations

from heliograph.actors.ledger.effects import Effect, Failed, LacFound, ReadFinished
from heliograph.actors.ledger.lac import LacReadCore
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.reader import ReadCore
from heliograph.metadata.model import LedgerMetadata, Versioned
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.world import Process


class SimulatedReader(Process):
    """Reads random ranges of random ledgers of the topic, up to the last readable entry."""

    def __init__(self, name: str, cluster: Cluster, checkers: Checkers, every_ms: int) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.world = cluster.world
        self.checkers = checkers
        self.every_ms = every_ms
        self.random = self.world.stream(name)
        self.health = BookieHealth()
        self._look()

    def _look(self) -> None:
        self.world.after(self.every_ms + self.random.randrange(self.every_ms), self._look, self)
        ledgers = self.cluster.store.topic().record.ledgers
        if not ledgers:
            return
        ledger_id = self.random.choice(ledgers).ledger_id
        store = self.cluster.store
        store.ask(self, lambda: store.ledger(ledger_id), self._on_ledger, lambda: None)

    def _on_ledger(self, found: Versioned[LedgerMetadata] | None) -> None:
        if found is None:
            return
        if found.record.is_closed:
            self._read(found.record, found.record.last_entry_id)
        else:
            self._read_lac(found.record)

    def _read_lac(self, record: LedgerMetadata) -> None:
        core = LacReadCore(record)

        def report(effect: Effect) -> None:
            runner.is_over = True
            if isinstance(effect, LacFound):
                self.world.count("LAC read")
                self.checkers.on_lac(record.ledger_id, effect.last_add_confirmed)
                self._read(record, effect.last_add_confirmed)

        runner = SimulatedRunner(self.cluster, self, core, report)
        runner.run(core.start(self.world.now))

    def _read(self, record: LedgerMetadata, end: int) -> None:
        if end < 0:
            return
        first = self.random.randint(0, end)
        last = self.random.randint(first, min(end, first + 20))
        core = ReadCore(record, first, last, 1 << 20, self.health)

        def report(effect: Effect) -> None:
            if isinstance(effect, ReadFinished):
                runner.is_over = True
                self.world.count("read finished")
                self.checkers.on_read(record.ledger_id, effect.entries, last)
            elif isinstance(effect, Failed):
                runner.is_over = True
                self.world.count("read failed")

        runner = SimulatedRunner(self.cluster, self, core, report)
        runner.run(core.start(self.world.now))
