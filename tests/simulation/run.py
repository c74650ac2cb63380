"""One run of ledgers, from a plan to a report."""

from __future__ import annotations

from collections.abc import Collection

from heliograph.actors.bookie.upkeep.limbo import owed
from heliograph.actors.ledger.effects import CheckFinished, Effect
from heliograph.actors.ledger.inventory import CheckCore
from tests.simulation import events
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.checkers.judge import LIVENESS, Judge
from tests.simulation.checkers.record_checker import RecordChecker
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.cluster.store import SimulatedStore
from tests.simulation.faults import disasters, faults
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.profile import Plan, Profile
from tests.simulation.report import Report, failure_of
from tests.simulation.workload.auditor import SimulatedAuditor
from tests.simulation.workload.reader import SimulatedReader
from tests.simulation.workload.recoverer import Meddler
from tests.simulation.workload.repairer import SimulatedRepairer
from tests.simulation.workload.tailer import SimulatedTailer
from tests.simulation.world import World

STEPS_MAX = 400_000
CALM_MS_MAX = 120_000  # after the last fault, everything must recover within this time
FINAL_MESSAGES = 5
REPAIR_ROUNDS_MAX = 6
KINDS_FROM = (faults, events, disasters)  # the kinds of faults register themselves


class Run:
    """A run of one plan."""

    def __init__(self, plan: Plan, is_traced: bool = False, watched: Collection[str] | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed, is_traced)
        self.profile = Profile.of(plan, self.world.stream("profile"))
        self.judge = Judge(watched)
        self.network = Network(self.world, self.profile)
        self.store = SimulatedStore(self.world, self.network)
        names = [f"bookie-{n + 1}" for n in range(self.profile.bookies)]
        self.bookies = {name: SimulatedBookie(self.world, name, self.profile.sync_ms_max) for name in names}
        self.checkers = Checkers(self.store, self.bookies, self.judge)
        RecordChecker(self.checkers)
        self.cluster = Cluster(self.world, self.network, self.store, self.bookies)
        self.cluster.on_send_add = self.checkers.on_send_add
        self.cluster.on_entry_answer = self.checkers.on_entry_answer
        self.nemesis = Nemesis(self.cluster, plan, self.profile, self.checkers)
        SimulatedReader("reader", self.cluster, self.checkers, every_ms=200)
        self.tailer = SimulatedTailer("tailer", self.cluster, self.checkers)
        if self.profile.long_losses:
            SimulatedAuditor("auditor", self.cluster, self.checkers)

    def execute(self) -> Report:
        """Run to the end, or to the first broken invariant."""
        failure = ""
        try:
            self._faulty_part()
            self._calm_part()
            self.checkers.at_end()
        except Exception as error:  # a core that raises is a finding like any other
            failure = failure_of(error)
        world = self.world
        return Report(
            self.plan,
            failure,
            world.now,
            world.steps,
            self.checkers.confirmed_messages,
            self.cluster.messages_taken,
            self.nemesis.struck,
            world.counts,
            world.trace or [],
        )

    def _faulty_part(self) -> None:
        self.nemesis.begin()
        while self.world.now < self.profile.faults_until_ms:
            self._step()

    def _calm_part(self) -> None:
        """Heal everything, let a last broker take over, write and close, and close and repair every ledger.

        As many bookies as the quorums allow stay away until the last broker has done that (I20).
        """
        deadline = self.world.now + CALM_MS_MAX
        self.world.note("no more faults")
        self.nemesis.end()
        for broker in self.nemesis.brokers:
            broker.retire()
        last = self.nemesis.last_broker()
        last.messages_left = FINAL_MESSAGES
        while not last.is_finished:
            self._step_until(deadline, "the last broker could not take over, write and close")
        self.nemesis.bring_back()
        for ledger_id in self.store.ledgers():
            self._close(ledger_id, deadline)
        for ledger_id in self.store.ledgers():
            self._repair(ledger_id, deadline)
            self._check(ledger_id, deadline)
        self._leave_limbo()
        self._follow(deadline)

    def _close(self, ledger_id: int, deadline: int) -> None:
        while True:
            found = self.store.ledger(ledger_id)
            if found is None or found.record.is_closed:
                return
            meddler = Meddler(self.nemesis.name_for("closer"), self.cluster)
            meddler.recover(ledger_id)
            while not meddler.is_done:
                self._step_until(deadline, f"ledger {ledger_id} could not be closed")

    def _repair(self, ledger_id: int, deadline: int) -> None:
        """Repair until nothing is missing, then check that every entry has Qw copies."""
        for _ in range(REPAIR_ROUNDS_MAX):
            repairer = SimulatedRepairer(self.nemesis.name_for("final-repairer"), self.cluster)
            repairer.repair(ledger_id)
            while not repairer.is_done:
                self._step_until(deadline, f"the repair of ledger {ledger_id} did not end")
            if repairer.is_complete and repairer.copied_entries == 0:
                break
        if self._is_deleted(ledger_id):
            return
        record = self.store.history[ledger_id][-1]
        for entry_id in range(record.last_entry_id + 1):
            holders = self.checkers.holders(record, entry_id)
            self.judge.require(
                len(holders) == record.write_quorum, LIVENESS, f"{ledger_id}:{entry_id} has {holders} after its repair"
            )

    def _is_deleted(self, ledger_id: int) -> bool:
        """Whether a deletion that a fault began has reached the ledger, so that its copies are not needed."""
        return self.store.ledger(ledger_id) is None

    def _check(self, ledger_id: int, deadline: int) -> None:
        """Check that the auditor's check finds nothing missing either."""
        core = CheckCore(self.store.history[ledger_id][-1])
        found: list[Effect] = []
        runner = SimulatedRunner(self.cluster, self.tailer, core, found.append)
        runner.run(core.start(self.world.now))
        while not found:
            self._step_until(deadline, f"the check of ledger {ledger_id} did not end")
        runner.is_over = True
        if self._is_deleted(ledger_id):
            return
        self.judge.require(found == [CheckFinished(())], LIVENESS, f"ledger {ledger_id} is repaired, and has {found}")

    def _leave_limbo(self) -> None:
        """Check that every ledger leaves limbo now that all copies are in place."""
        for bookie in self.bookies.values():
            bookie.flush()
            named = self.store.ledgers_naming(bookie.name)
            bookie.leave_limbo(named)
            owing = [ledger for ledger in named if owed(ledger, bookie.name)]  # not where its segment has no entries
            doubtful = [ledger.ledger_id for ledger in owing if ledger.ledger_id in bookie.memory.limbo]
            self.judge.require(not doubtful, LIVENESS, f"{bookie.name} has all of {doubtful}, and leaves them in limbo")

    def _follow(self, deadline: int) -> None:
        """Check that the reader that follows the topic gets to its end."""
        last = self.store.topic().record.ledgers[-1].ledger_id
        end = self.store.history[last][-1].last_entry_id
        while (self.tailer.ledger_id, self.tailer.next_entry_id) != (last, end + 1):
            self._step_until(deadline, f"the reader never came to {last}:{end}")

    def _step_until(self, deadline: int, what: str) -> None:
        self.judge.require(self.world.now < deadline, LIVENESS, what)
        self._step()

    def _step(self) -> None:
        world = self.world
        if world.steps >= STEPS_MAX or not world.step():
            self.judge.require(False, LIVENESS, "the run does not end, or nothing happens any more")
        self.checkers.after_step()


def run_seed(seed: int, is_traced: bool = False) -> Report:
    return Run(Plan(seed), is_traced).execute()
