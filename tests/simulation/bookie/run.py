"""One run of a bookie's storage, from a plan to a report."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Any, cast

from heliograph.actors.errors import BookieError, BookieStorageError, JournalCorruptError
from tests.simulation.bookie.client import Clients
from tests.simulation.bookie.disk import SimulatedDisk
from tests.simulation.bookie.faults import BOOKIE_KINDS
from tests.simulation.bookie.host import BookieHost, surroundings
from tests.simulation.bookie.model import Model
from tests.simulation.checkers.judge import LIVENESS, Judge
from tests.simulation.faults.fault import Fault
from tests.simulation.profile import Plan, Profile
from tests.simulation.report import Report, failure_of
from tests.simulation.world import World

STEPS_MAX = 400_000
STARTS_MAX = 60  # of the last part, with nothing in the way
LENGTH_SHARE = 3  # a run is so many times shorter than in the other worlds: most of its events write to a disk
REFUSALS = (BookieStorageError, JournalCorruptError)
LOGGERS = ("actors", "heliograph")


class BookieRun:
    """A run of one plan."""

    def __init__(self, plan: Plan, is_traced: bool = False, watched: Collection[str] | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed, is_traced)
        self.profile = Profile.of(plan, self.world.stream("profile"))
        self.judge = Judge(watched)
        self.model = Model(self.judge)
        self.random = self.world.stream("bookie run")
        self.host = BookieHost(self.world, self.random, set())
        self.host.on_dead = self._on_dead
        self.host.trouble = self._trouble
        every_ms = self.random.choice((4, 20, 80))
        self.clients = Clients(self.world, self.host, self.model, every_ms, plan.messages_max)
        self._faults_until_ms = self.profile.faults_until_ms // (1 if plan.until_ms is not None else LENGTH_SHARE)
        self.struck: list[int] = []
        self.is_full = False
        self.next_start_is_cut_in = 0
        self._is_over = False
        self._is_start_due = False
        self._is_refused = False

    def execute(self) -> Report:
        """Run to the end, or to the first broken invariant."""
        failure = ""
        loggers = [logging.getLogger(name) for name in LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        with surroundings(self.host):
            try:
                self._faulty_part()
                self._calm_part()
            except Exception as error:  # a core that raises is a finding like any other
                failure = failure_of(error)
            self.host.kill()
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        world = self.world
        return Report(
            self.plan,
            failure,
            world.now,
            world.steps,
            self.clients.confirmed,
            self.clients.sent,
            self.struck,
            world.counts,
            world.trace or [],
        )

    # -- for faults

    def later(self, milliseconds: int, action: Callable[[], object]) -> None:
        """Let something happen later, unless the time of faults is over by then."""

        def unless_over() -> None:
            if not self._is_over:
                action()

        self.world.after(milliseconds, unless_over)

    def start_later(self, milliseconds: int) -> None:
        """Start the bookie again."""
        if not self._is_start_due:
            self._is_start_due = True
            self.world.after(milliseconds, self._start_if_due)

    def make_room(self) -> None:
        """Let files grow again."""
        self.is_full = False
        if self.host.is_up:
            self.host.disk.is_full = False

    def stop(self) -> None:
        """Stop the bookie in good order."""
        try:
            self.host.stop()
        except BookieStorageError as error:
            self.world.note("the stop failed:", error)
            self.host.kill()

    def checkpoint(self) -> None:
        self._ask(lambda: self.host.checkpointer.checkpoint())

    def collect(self) -> None:
        """Ask for a round of garbage collection."""
        self._ask(lambda: self.host.gc.collect())

    # -- parts

    def _faulty_part(self) -> None:
        self._schedule()
        self._start()
        self.clients.begin()
        while self.world.now < self._faults_until_ms:
            self._step()

    def _calm_part(self) -> None:
        """Heal everything, check all that was stored, and let the bookie stop and start in good order."""
        self._is_over = self.clients.is_over = True
        self.world.note("no more faults")
        self._heal()
        if self.host.is_up and self.random.random() < 0.5:
            self.host.kill() if self.random.random() < 0.5 else self.host.cut_power()
        self._start_at_last()
        self._check(is_complete=True)
        last = self.clients.sent
        with self.host.loop.running():
            self.clients.add_some()
        deadline = self.world.now + 5_000
        while self.world.now < deadline and self.host.is_up:
            self._step()
        self.judge.require(self.host.is_up, LIVENESS, f"the bookie ends by itself after {last} adds")
        self.stop()
        self._start_at_last()
        self._check(is_complete=True)

    def _schedule(self) -> None:
        random = self.world.stream("schedule")
        kinds = sorted(BOOKIE_KINDS, key=lambda kind: kind.name)
        weights = [kind.weight for kind in kinds]
        number, at = 0, 0
        while at < self._faults_until_ms:
            at += 1 + random.randrange(2 * self.profile.fault_every_ms)
            kind = random.choices(kinds, weights)[0]
            is_planned = self.plan.faults is None or number in self.plan.faults
            if is_planned and kind.name not in self.plan.without:
                self.later(at, lambda number=number, kind=kind: self._strike(number, kind))  # type: ignore[misc]
            number += 1

    def _strike(self, number: int, kind: Fault) -> None:
        random = self.world.stream(f"fault-{number}")
        if kind.strike(cast(Any, self), random):
            self.struck.append(number)
            self.world.count(kind.name)
            self.world.note("fault", number, kind.name)

    # -- starts

    def _start_if_due(self) -> None:
        self._is_start_due = False
        if not self.host.is_up:
            self._start()

    def _start_at_last(self) -> None:
        for _ in range(STARTS_MAX):
            if self.host.is_up:
                return
            self._heal()
            self._start()
        self.judge.require(False, LIVENESS, "the bookie does not start")

    def _start(self) -> None:
        """Start the bookie. A refusal is right if a file was damaged, or the disk failed or is full."""
        host, world = self.host, self.world
        try:
            host.begin()
        except REFUSALS as error:
            world.note("the start is refused:", error)
            if host.disk.after_cut is None:
                self._judge_refusal(error)
        if host.disk.after_cut is not None:
            world.count("power cut happened in a start")
            host.cut_power()
        if self._is_refused or not host.is_up:
            self._is_refused = False
            host.kill()
            self.start_later(20)
            return
        world.count("start")
        world.count("entry replayed", host.summary.entries)
        world.count("fence replayed", host.summary.fences)
        self._check(is_complete=False)

    def _judge_refusal(self, error: BookieError) -> None:
        host = self.host
        self._is_refused = True
        may = host.is_damaged or host.disk.is_poisoned or host.disk.is_full
        self.judge.require(may, "I19", f"the start is refused, and nothing is damaged: {error}")
        self.world.count("start refused for damage", host.is_damaged)
        for inode in host.platter.names.values():
            inode.mend()  # the operator restores the file

    def _trouble(self, disk: SimulatedDisk) -> None:
        """Prepare the disk of a start."""
        disk.is_full = self.is_full
        disk.cut_in, self.next_start_is_cut_in = self.next_start_is_cut_in, 0

    def _heal(self) -> None:
        self.make_room()
        self.next_start_is_cut_in = 0
        if self.host.is_up:
            disk = self.host.disk
            disk.cut_in, disk.ambush, disk.fails_next_sync, disk.fails_next_index = 0, None, False, False
        for inode in self.host.platter.names.values():
            inode.mend()

    def _check(self, *, is_complete: bool) -> None:
        host = self.host
        with host.loop.running():
            self.model.check_start(host.storage, self.random, is_damaged=host.is_damaged, is_complete=is_complete)

    # -- steps

    def _ask(self, call: Callable[[], Awaitable[None]]) -> None:
        host = self.host
        if host.is_up:
            with host.loop.running():
                host.loop.create_task(call())

    def _on_dead(self, error: BaseException) -> None:
        """End the process as the product does when its storage has failed. Only a failed sync may be the reason."""
        self.world.note("the bookie ends:", error)
        if not isinstance(error, BookieStorageError):
            raise error
        self.world.count("bookie ended by itself")
        self.host.kill()
        self.start_later(20)

    def _step(self) -> None:
        world, host = self.world, self.host
        if world.steps >= STEPS_MAX or not world.step():
            self.judge.require(False, LIVENESS, "the run does not end, or nothing happens any more")
        if host.is_up and host.disk.after_cut is not None:
            world.count("power cut happened in an operation")
            world.note("the power goes")
            host.cut_power()
            self.start_later(self.random.choice((5, 100)))
        if world.alarms:
            self.judge.hear(world.alarms)
