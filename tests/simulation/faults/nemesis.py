"""The nemesis: it chooses faults and undoes them later. Permanent losses stay within what is promised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from heliograph.actors.ledger.schedule import is_vacancy
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.broker import SimulatedBroker
from tests.simulation.cluster.network import ANYONE
from tests.simulation.cluster.runner import Cluster
from tests.simulation.faults.fault import KINDS, Fault
from tests.simulation.profile import Plan, Profile
from tests.simulation.workload.recoverer import Meddler
from tests.simulation.workload.repairer import SimulatedRepairer

BROKERS_MAX = 12
REPAIRERS_MAX = 20
LONG_LOSSES = ("bookie gone for long", "vacancy filled in a race")  # kinds that only some seeds have


class Nemesis:
    """Causes faults at times that the seed decides, until the time of the profile; then it undoes all of them."""

    def __init__(
        self,
        cluster: Cluster,
        plan: Plan,
        profile: Profile,
        checkers: Any,
        kinds: Sequence[Fault] = KINDS,
        make_broker: Callable[[str], Any] | None = None,
    ) -> None:
        """Args:
        checkers: the checkers of the run, which are told what bookies collect.
        kinds: the kinds of faults that may happen.
        make_broker: makes a broker of a name, which takes the topic over when it is started.
        """
        happening = [kind for kind in kinds if profile.long_losses or kind.name not in LONG_LOSSES]
        self.kinds = sorted(happening, key=lambda kind: kind.name)  # independent of the order of imports
        self._make_broker = make_broker or (lambda name: SimulatedBroker(name, cluster, profile, checkers))
        self.cluster = cluster
        self.world = cluster.world
        self.plan = plan
        self.profile = profile
        self.checkers = checkers
        self.brokers: list[Any] = []  # made by ``make_broker``, the newest last
        self.repairers: list[SimulatedRepairer] = []
        self.struck: list[int] = []  # numbers of the faults that happened
        # The bookies whose data may be lost or damaged: the same few for a whole run.
        self._lossy = self.world.stream("lossy").sample(self.bookies, profile.losable_bookies)
        self._is_over = False
        self._gone: dict[str, bool] = {}  # bookies that are away until they return -> whether they come back empty
        self._names: Counter[str] = Counter()

    def begin(self) -> None:
        """Start the first broker and the faults."""
        self.take_over()
        random = self.world.stream("schedule")
        weights = [kind.weight for kind in self.kinds]
        number, at = 0, 0
        while True:
            at += 1 + random.randrange(2 * self.profile.fault_every_ms)
            kind = random.choices(self.kinds, weights)[0]
            if at >= self.profile.faults_until_ms:
                return
            if self._is_planned(number, kind):
                self.world.after(at, lambda number=number, kind=kind: self._strike(number, kind))  # type: ignore[misc]
            number += 1

    def end(self) -> None:
        """Undo every fault."""
        self._is_over = True  # what faults have planned for later does not happen
        self.cluster.network.heal()
        for bookie in self.bookies:
            bookie.is_full = bookie.is_stuffed = False
            bookie.fails_next_sync = False
            bookie.sync_ms_max = 4
            bookie.paused_until = 0
            bookie.unregistered_until = 0
            bookie.on_unsynced.clear()
            self.start(bookie)
        may_stay_away = len(self._gone) <= self.profile.write_quorum - self.profile.ack_quorum
        if not may_stay_away or any(self.cluster.bookies[name] not in self._lossy for name in self._gone):
            self.bring_back()
        for broker in self.brokers:
            broker.paused_until = 0
        self.cluster.store.paused_until = 0

    def bring_back(self) -> None:
        """Let every bookie return that is away."""
        for name in list(self._gone):
            self.come_back(self.cluster.bookies[name])

    # -- for faults

    @property
    def is_over(self) -> bool:
        """Whether the time of faults has passed."""
        return self._is_over

    @property
    def bookies(self) -> list[SimulatedBookie]:
        return list(self.cluster.bookies.values())

    def bookies_up(self) -> list[SimulatedBookie]:
        """Return the bookies that run."""
        return [bookie for bookie in self.bookies if bookie.is_up]

    def ensemble(self) -> list[SimulatedBookie]:
        """Return the bookies that the newest broker writes to, none if it has no ledger."""
        writer = self.brokers[-1].writer
        named = [] if writer is None else writer.metadata.last_segment.bookies
        return [self.cluster.bookies[b] for b in named if not is_vacancy(b)]

    def can_take_over(self) -> bool:
        """Whether the run may have one more broker."""
        return len(self.brokers) < BROKERS_MAX and not self._is_over

    def take_over(self) -> bool:
        """Start a broker that takes the topic over. Its previous owner is not told."""
        if not self.can_take_over():
            return False
        self.last_broker()
        return True

    def last_broker(self) -> Any:
        """Start a broker as ``take_over`` does, without a bound on their number."""
        broker = self._make_broker(self.name_for("broker"))
        self.brokers.append(broker)
        broker.start()
        return broker

    def recover(self, ledger_id: int) -> None:
        """Let a client recover a ledger that may be being written."""
        Meddler(self.name_for("bystander"), self.cluster).recover(ledger_id)

    def repair(self, ledger_id: int) -> None:
        """Let a worker repair a ledger, unless there were many repairs already."""
        if len(self.repairers) < REPAIRERS_MAX:
            repairer = SimulatedRepairer(self.name_for("repairer"), self.cluster)
            self.repairers.append(repairer)
            repairer.repair(ledger_id)

    def confirmed_to(self, ledger_id: int) -> int:
        """Return the last entry of a ledger that a client was told is stored, -1 for none."""
        return int(self.checkers.confirmed_to(ledger_id))

    def name_for(self, kind: str) -> str:
        """Return a name for a new process."""
        self._names[kind] += 1
        return f"{kind}-{self._names[kind]}"

    def later(self, milliseconds: int, action: Callable[[], object]) -> None:
        """Let something happen later, unless the time of faults is over by then."""

        def unless_over() -> None:
            if not self._is_over:
                action()

        self.world.after(milliseconds, unless_over)

    def crash(self, bookie: SimulatedBookie, random: Random) -> None:
        """Kill a bookie that runs, and start it again later."""
        if bookie.is_up:
            bookie.crash()
            self.restart_later(bookie, random)

    def crash_when_unsynced(self, bookie: SimulatedBookie, what: str, delay_ms: int, restart_ms: int) -> None:
        """Kill a bookie a moment after it gets a record of one of UNSYNCED, and start it again ``restart_ms`` later."""

        def crash() -> None:
            if bookie.is_up:
                self.world.count(f"bookie died with an unsynced {what}", bookie.has_unsynced)
                bookie.crash()
                self.later(restart_ms, lambda: self.start(bookie))

        bookie.on_unsynced[what] = lambda: self.later(delay_ms, crash)

    def lose_disk(self, bookie: SimulatedBookie, restart_ms: int, *, only_journal: bool = False) -> None:
        """Lose all data of a bookie, or all that it had not flushed, and restart it soon."""
        store = self.cluster.store
        lose = bookie.lose_journal if only_journal else bookie.lose_disk
        lose(store.ledgers_naming(bookie.name), store.last_ledger_id())
        self.later(restart_ms, lambda: self.start(bookie))

    def start(self, bookie: SimulatedBookie) -> None:
        """Start a bookie that is down, unless it is away."""
        if not bookie.is_up and bookie.name not in self._gone:
            bookie.restart()

    def go_away(self, bookie: SimulatedBookie, loses_disk: bool) -> None:
        """Take a bookie away until it comes back, with its disk or on an empty one."""
        bookie.crash()
        self._gone[bookie.name] = loses_disk

    def come_back(self, bookie: SimulatedBookie) -> None:
        """Let a bookie return that went away."""
        if bookie.name not in self._gone:
            return
        loses_disk = self._gone.pop(bookie.name)
        self.world.count("bookie back on an empty disk" if loses_disk else "bookie back with its disk")
        if loses_disk:
            bookie.lose_disk(self.cluster.store.ledgers_naming(bookie.name), self.cluster.store.last_ledger_id())
        self.start(bookie)

    def restart_later(self, bookie: SimulatedBookie, random: Random) -> None:
        """Start a bookie that was killed."""
        self.later(random.choice((50, 500, 4_000)), lambda: self.start(bookie))

    def cut(self, source: str, target: str, milliseconds: int) -> None:
        """Drop messages in one direction for a while."""
        if self._is_over:
            return
        self.cluster.network.cut(source, target)
        self.later(milliseconds, lambda: self.cluster.network.mend(source, target))

    def slow(self, source: str, target: str, delay_ms_max: int, milliseconds: int) -> None:
        """Delay messages in one direction for a while."""
        self.cluster.network.slow(source, target, delay_ms_max)
        self.later(milliseconds, lambda: self.cluster.network.slow(source, target, 0))

    def delay_kinds(self, bookies: Sequence[SimulatedBookie], kinds: Sequence[str], random: Random) -> None:
        """Delay some kinds of requests to some bookies, or the answers to them, for a while."""
        delay_ms = random.choice((150, 500, 900))
        for bookie in bookies:
            for kind in kinds:
                if random.random() < 0.4:
                    source, target = (ANYONE, bookie.name) if random.random() < 0.7 else (bookie.name, ANYONE)
                    self.delay_kind(source, target, delay_ms, kind)

    @property
    def safe_bookies(self) -> list[SimulatedBookie]:
        """Return the bookies that lose nothing that they synced."""
        return [bookie for bookie in self.bookies if bookie not in self._lossy]

    def choose_lossy(self, random: Random) -> SimulatedBookie | None:
        """Return a bookie that may lose data, None if one copy is all that is promised."""
        return random.choice(self._lossy) if self._lossy else None

    def delay_kind(self, source: str, target: str, delay_ms: int, kind: str) -> None:
        """Delay messages of one kind in one direction for a while."""
        network = self.cluster.network
        network.make_late(source, target, delay_ms, kind)
        self.later(2_000, lambda: network.make_late(source, target, 0, kind))

    # -- the schedule

    def _is_planned(self, number: int, kind: Fault) -> bool:
        plan = self.plan
        return (plan.faults is None or number in plan.faults) and kind.name not in plan.without

    def _strike(self, number: int, kind: Fault) -> None:
        random = self.world.stream(f"fault-{number}")
        if kind.strike(self, random):
            self.struck.append(number)
            self.world.count(kind.name)
            self.world.note("fault", number, kind.name)
