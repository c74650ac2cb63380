"""Ledgers that nobody needs any more: taken off the topic's list, deleted in metadata, then collected by bookies."""

from __future__ import annotations

from dataclasses import replace

from actors.ledger.deletion import DeletionCore
from actors.ledger.effects import Deleted, Effect
from metadata.errors import MetadataError
from metadata.model import TopicRecord, Versioned
from tests.simulation.bookie import SimulatedBookie
from tests.simulation.checkers import Checkers
from tests.simulation.recoverer import METADATA_LIMITS
from tests.simulation.shell import Cluster, CoreShell
from tests.simulation.world import Process

LEDGERS_KEPT_MIN = 2  # a takeover recovers as many


class Trimmer(Process):
    """Deletes ledgers from the topic's head, once: first from the list, then their records."""

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
        """The list first: a ledger that is still named must not be deleted."""  # I14
        store = self.cluster.store
        store.ask(
            self,
            lambda: store.write_topic(shorter, version),
            lambda outcome: self._on_shortened(doomed, outcome),
            _leave,  # the ledgers may be off the list: they stay, and nobody names them
        )

    def _on_shortened(self, doomed: list[int], outcome: int | MetadataError) -> None:
        if isinstance(outcome, int):
            for ledger_id in doomed:
                self.delete(ledger_id)

    def delete(self, ledger_id: int) -> None:
        """Run the deletion core."""
        core = DeletionCore(ledger_id, METADATA_LIMITS)

        def report(effect: Effect) -> None:
            shell.is_over = True
            self.cluster.world.count("ledger deleted" if isinstance(effect, Deleted) else "deletion failed")

        shell = CoreShell(self.cluster, self, core, report)
        shell.run(core.start(self.cluster.world.now))


def collect_garbage(bookie: SimulatedBookie, cluster: Cluster, checkers: Checkers) -> None:
    """One round of a bookie: what it knows first, then what metadata has. Only what was known before can be gone."""
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
    """Nothing came of it."""
