"""Deletion of ledgers: they leave the topic's list, then metadata, and then bookies collect their entries."""

from __future__ import annotations

from dataclasses import replace

from heliograph.actors.ledger.deletion import DeletionCore
from heliograph.actors.ledger.effects import Deleted, Effect
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.model import TopicRecord, Versioned
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.workload.recoverer import METADATA_LIMITS
from tests.simulation.world import Process

LEDGERS_KEPT_MIN = 2  # as many as a takeover recovers


class Trimmer(Process):
    """Deletes ledgers at the topic's head once: first from the list, then their records."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.random = cluster.world.stream(name)

    def trim(self) -> None:
        """Read the list and begin."""
        store = self.cluster.store
        store.ask(self, store.topic, self._on_topic, _leave)

    def _on_topic(self, topic: Versioned[TopicRecord]) -> None:
        ledgers = topic.record.ledgers
        spare = len(ledgers) - LEDGERS_KEPT_MIN
        if spare <= 0:
            return
        count = self.random.randint(1, spare)
        shorter = replace(topic.record, ledgers=ledgers[count:])
        doomed = [info.ledger_id for info in ledgers[:count]]
        self.shorten(topic.version, shorter, doomed)

    def shorten(self, version: int, shorter: TopicRecord, doomed: list[int]) -> None:
        """Write the shorter list, then delete: a ledger that the list names must not be deleted."""  # I14
        store = self.cluster.store
        store.ask(
            self,
            lambda: store.write_topic(shorter, version),
            lambda outcome: self._on_shortened(doomed, outcome),
            _leave,  # the ledgers may be off the list; they stay, and no list names them
        )

    def _on_shortened(self, doomed: list[int], outcome: int | MetadataError) -> None:
        if isinstance(outcome, int):
            for ledger_id in doomed:
                self.delete(ledger_id)

    def delete(self, ledger_id: int) -> None:
        """Run the deletion core."""
        core = DeletionCore(ledger_id, METADATA_LIMITS)

        def report(effect: Effect) -> None:
            runner.is_over = True
            self.cluster.world.count("ledger deleted" if isinstance(effect, Deleted) else "deletion failed")

        runner = SimulatedRunner(self.cluster, self, core, report)
        runner.run(core.start(self.cluster.world.now))


def collect_garbage(bookie: SimulatedBookie, cluster: Cluster, checkers: Checkers) -> None:
    """Collect garbage at a bookie: list its ledgers, then those of metadata, and drop those that metadata lacks."""
    known = bookie.known_ledgers()  # I14
    store = cluster.store
    store.ask(bookie, store.ledgers, lambda listed: finish_round(bookie, known, listed, checkers), _leave)


def finish_round(bookie: SimulatedBookie, known: set[int], listed: list[int], checkers: Checkers) -> None:
    """Delete what metadata does not list."""
    gone = known.difference(listed)
    checkers.on_collect(bookie.name, gone)
    bookie.collect(gone)
    if gone:
        bookie.world.count("ledger collected by a bookie", len(gone))


def _leave() -> None:
    """Do nothing more."""
