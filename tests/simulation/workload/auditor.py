"""A simulated auditor, which closes open ledgers so that their copies can be made, by the real auditor's rules."""

from __future__ import annotations

from functools import partial

from heliograph.actors.auditor import plan
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.placement import RandomPlacement
from heliograph.metadata.model import LedgerMetadata, Versioned
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.cluster.runner import Cluster
from tests.simulation.workload.recoverer import start_recovery
from tests.simulation.world import Process

ROUND_MS = 700
LOST_MS = 1_500  # absence after which a bookie is lost
GRACE_MS = 1_500  # for the writer of a ledger to go on with another bookie


class SimulatedAuditor(Process):
    """Looks at all ledgers that are not closed, again and again."""

    def __init__(self, name: str, cluster: Cluster, checkers: Checkers) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.world = cluster.world
        self.checkers = checkers
        self.chooser = BookieChooser(RandomPlacement(), self.world.stream(name))
        self._seen: dict[str, int] = dict.fromkeys(cluster.bookies, 0)  # bookie -> when it was alive last
        self._fence_at: dict[int, int] = {}  # ledger -> end of its grace
        self._look()

    def _look(self) -> None:
        self.world.after(ROUND_MS, self._look, self)
        now, store = self.world.now, self.cluster.store
        usable = {registration.bookie_id for registration in self.cluster.registered()}
        alive = usable | {bookie.name for bookie in self.cluster.bookies.values() if bookie.is_up}
        self._seen.update(dict.fromkeys(alive, now))
        for ledger_id in store.ledgers():
            if not store.history[ledger_id][-1].is_closed:
                store.ask(self, partial(store.ledger, ledger_id), self._judge, lambda: None)

    def _judge(self, found: Versioned[LedgerMetadata] | None) -> None:
        if found is None:
            return
        ledger, now = found.record, self.world.now
        lost = {name for name, seen in self._seen.items() if now - seen >= LOST_MS}
        places = plan.places_to_fill(ledger, lost)
        registered = self.cluster.registered()
        self.chooser.set_writable(registered)
        bookies = ledger.last_segment.bookies
        can_be_filled = bool(self.chooser.choose_replacements(bookies, places, now, lost))
        if not plan.must_be_fenced(places, can_be_filled):
            self._fence_at.pop(ledger.ledger_id, None)
        elif now >= self._fence_at.setdefault(ledger.ledger_id, now + GRACE_MS):
            del self._fence_at[ledger.ledger_id]
            self.checkers.on_fencing(self.name, ledger, [one.bookie_id for one in registered])
            self.world.count("open ledger fenced by the auditor")
            start_recovery(self, self.cluster, self.chooser, found, lambda done: None)
