"""A reader that follows the topic, from its oldest ledger to the one being written."""

from __future__ import annotations

from heliograph.actors.ledger.effects import Effect, Failed, LacFound, ReadFinished
from heliograph.actors.ledger.lac import LacReadCore
from heliograph.actors.ledger.placement.health import BookieHealth
from heliograph.actors.ledger.reader import ReadCore
from heliograph.metadata.model import LedgerMetadata, TopicRecord, Versioned
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.world import Process

PAUSE_MS = 50
BATCH_ENTRIES_MAX = 20


class SimulatedTailer(Process):
    """Asks the bookies for the LAC now and then, and reads what is new."""

    def __init__(self, name: str, cluster: Cluster, checkers: Checkers) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.world = cluster.world
        self.checkers = checkers
        self.random = self.world.stream(name)
        self.health = BookieHealth()
        self.ledger_id = 0  # the ledger being followed; 0 before the first
        self.next_entry_id = 0
        self._go_on()

    def _go_on(self) -> None:
        """Read the topic's record again after a pause."""
        store = self.cluster.store
        pause = PAUSE_MS + self.random.randrange(PAUSE_MS)
        self.world.after(pause, lambda: store.ask(self, store.topic, self._on_topic, self._go_on), self)

    def _on_topic(self, topic: Versioned[TopicRecord]) -> None:
        ahead = [info.ledger_id for info in topic.record.ledgers if info.ledger_id >= self.ledger_id]
        if not ahead:
            self._go_on()
            return
        if ahead[0] != self.ledger_id:
            if self.ledger_id:
                self.world.count("reader lost its ledger to deletion")
            self.ledger_id, self.next_entry_id = ahead[0], 0
        store, ledger_id = self.cluster.store, self.ledger_id
        following = ahead[1] if len(ahead) > 1 else 0
        store.ask(
            self,
            lambda: store.ledger(ledger_id),
            lambda found: self._on_ledger(found, following),
            self._go_on,
        )

    def _on_ledger(self, found: Versioned[LedgerMetadata] | None, following: int) -> None:
        if found is None:
            self._go_on()
        elif not found.record.is_closed:
            self._wait(found.record)
        elif self.next_entry_id <= found.record.last_entry_id:
            self._read(found.record, found.record.last_entry_id)
        else:
            if following:
                self.checkers.on_tail_end(self.name, self.ledger_id, self.next_entry_id)
                self.ledger_id, self.next_entry_id = following, 0
            self._go_on()

    def _wait(self, record: LedgerMetadata) -> None:
        """Ask the bookies whether the ledger grew."""
        after = self.next_entry_id - 1
        core = LacReadCore(record)

        def report(effect: Effect) -> None:
            runner.is_over = True
            if not isinstance(effect, LacFound):
                self._go_on()
                return
            self.world.count("LAC read")
            if effect.last_add_confirmed > after:
                self.checkers.on_lac(record.ledger_id, effect.last_add_confirmed)
                self._read(record, effect.last_add_confirmed)
            else:
                self._go_on()

        runner = SimulatedRunner(self.cluster, self, core, report)
        runner.run(core.start(self.world.now))

    def _read(self, record: LedgerMetadata, end: int) -> None:
        last = min(end, self.next_entry_id + BATCH_ENTRIES_MAX)
        core = ReadCore(record, self.next_entry_id, last, 1 << 20, self.health)

        def report(effect: Effect) -> None:
            if isinstance(effect, ReadFinished):
                runner.is_over = True
                self.world.count("tail read")
                self.checkers.on_read(record.ledger_id, effect.entries, last)
                self.checkers.on_tail(self.name, record.ledger_id, effect.entries)
                self.next_entry_id = effect.entries[-1].entry_id + 1
                self._go_on()
            elif isinstance(effect, Failed):
                runner.is_over = True
                self.world.count("tail read failed")
                self._go_on()

        runner = SimulatedRunner(self.cluster, self, core, report)
        runner.run(core.start(self.world.now))
