"""A simulated broker: it takes a topic over, writes to it, rolls its ledgers, and is not told that it was replaced.

It follows the chaining rules of managed ledgers: fence and close the last two ledgers of the list, create a ledger,
append it to the list by compare-and-set, and only then write. The real writer and recovery cores do the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from heliograph.actors.errors import NotEnoughBookiesError
from heliograph.actors.ledger.effects import (
    AddsConfirmed,
    AddsFailed,
    CloseFailed,
    Effect,
    Failed,
    RecoveryFinished,
    WriterClosed,
    WriterFailed,
)
from heliograph.actors.ledger.limits import WriterLimits
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.placement import RandomPlacement
from heliograph.actors.ledger.schedule import is_vacancy
from heliograph.actors.ledger.writer import WriterCore
from heliograph.metadata.errors import MetadataError
from heliograph.metadata.model import LedgerInfo, LedgerMetadata, Segment, TopicRecord, Versioned
from tests.simulation.checkers.checkers import Checkers
from tests.simulation.cluster.runner import Cluster, SimulatedRunner
from tests.simulation.cluster.store import Author
from tests.simulation.profile import Profile
from tests.simulation.workload.recoverer import METADATA_LIMITS, start_recovery
from tests.simulation.world import Process

RETRY_MS = 300
REFRESH_MS = 200


class SimulatedBroker(Process):
    """One incarnation of a topic's owner. It stops for good when it loses its ledger, and another one takes over."""

    def __init__(self, name: str, cluster: Cluster, profile: Profile, checkers: Checkers) -> None:
        super().__init__(name)
        self.cluster = cluster
        self.world = cluster.world
        self.profile = profile
        self.checkers = checkers
        self.random = self.world.stream(name)
        self.chooser = BookieChooser(RandomPlacement(), self.random)
        self.writer: WriterCore | None = None
        self.is_finished = False
        self.messages_left: int | None = None  # None: as many as the run allows
        self.quiet_until = 0  # before this time its producers have nothing to send
        self._runner: SimulatedRunner | None = None
        self._next: Versioned[LedgerMetadata] | None = None  # the next ledger, to be used when the last one is closed
        self._is_rolling = False
        self._is_closing = False
        self._topic: Versioned[TopicRecord] | None = None
        self._sent = 0
        self._refresh()

    @property
    def _now(self) -> int:
        return self.world.now + self.clock_ahead_ms

    def start(self) -> None:
        """Take the topic over."""
        store = self.cluster.store
        store.ask(self, store.topic, self._on_topic, self._restart)

    def retire(self) -> None:
        """Close the ledger and write no more, or stop if no ledger is open."""
        self.messages_left = 0
        if self._runner is None:
            self.crash()

    # -- takeover

    def _on_topic(self, topic: Versioned[TopicRecord]) -> None:
        self._topic = topic
        last_two = [info.ledger_id for info in topic.record.ledgers[-2:]]
        self._recover(last_two, self._create)

    def _recover(self, ledger_ids: list[int], then: Callable[[], None]) -> None:
        if not ledger_ids:
            then()
            return
        store = self.cluster.store
        store.ask(
            self,
            lambda: store.ledger(ledger_ids[0]),
            lambda found: self._on_ledger(found, ledger_ids, then),
            self._restart,
        )

    def _on_ledger(
        self, found: Versioned[LedgerMetadata] | None, ledger_ids: list[int], then: Callable[[], None]
    ) -> None:
        if found is None:  # deleted since the list was read: another broker owns the topic
            self._restart()
            return
        start_recovery(self, self.cluster, self.chooser, found, lambda done: self._on_recovered(done, ledger_ids, then))

    def _on_recovered(self, done: RecoveryFinished | Failed, ledger_ids: list[int], then: Callable[[], None]) -> None:
        if isinstance(done, Failed):
            self._restart()
        else:
            self._recover(ledger_ids[1:], then)

    def _restart(self) -> None:
        self.world.count("takeover retried")
        self.world.after(RETRY_MS, self.start, self)

    # -- a new ledger

    def _create(self) -> None:
        store = self.cluster.store
        store.ask(self, store.next_ledger_id, self._on_id, self._create_failed)

    def _on_id(self, ledger_id: int) -> None:
        profile, store = self.profile, self.cluster.store
        self.checkers.on_id(self.name, ledger_id)
        try:
            bookies = self.chooser.choose_ensemble(
                profile.ensemble_size, profile.write_quorum, self._now, least=profile.ack_quorum
            )
        except NotEnoughBookiesError:
            self._create_failed()
            return
        record = LedgerMetadata(
            ledger_id, len(bookies), profile.write_quorum, profile.ack_quorum, (Segment(0, bookies),)
        )
        self.world.count("ledger with a vacancy", any(map(is_vacancy, bookies)))
        self.world.count("ledger on fewer bookies", len(bookies) < profile.ensemble_size)
        store.ask(
            self,
            lambda: store.write_ledger(Author(self.name), record, -1),
            lambda result: self._on_created(record, result),
            self._create_failed,
        )

    def _on_created(self, record: LedgerMetadata, result: int | MetadataError) -> None:
        if not isinstance(result, int):
            self._create_failed()
            return
        assert self._topic is not None, "the topic was read first"
        topic, topic_version = self._topic.record, self._topic.version
        longer = replace(topic, ledgers=(*topic.ledgers, LedgerInfo(record.ledger_id)))
        store = self.cluster.store
        store.ask(
            self,
            lambda: store.write_topic(longer, topic_version),
            lambda outcome: self._on_appended(Versioned(record, result), longer, outcome),
            self._create_failed,
        )

    def _on_appended(self, ledger: Versioned[LedgerMetadata], topic: TopicRecord, outcome: int | MetadataError) -> None:
        if not isinstance(outcome, int):
            self._create_failed()
            return
        self._topic = Versioned(topic, outcome)
        if self._is_rolling and self.writer is not None:
            self._next = ledger
            self._close_if_open(self.writer)
        elif not self.is_finished:
            self._open(ledger)

    def _create_failed(self) -> None:
        """Take over again, after the ledger that is still open is closed, if there is one."""
        if self._is_rolling and self.writer is not None:
            self._close_if_open(self.writer)
        elif not self.is_finished:
            self._restart()

    def _open(self, ledger: Versioned[LedgerMetadata]) -> None:
        """Write to a ledger that the topic names."""
        self._is_rolling = self._is_closing = False
        limits = WriterLimits(
            quorum_wait_ms=3_000,
            add_timeout_ms=6_000,
            in_flight_entries_max=50,
            ensemble_change_delay_ms=self.profile.ensemble_change_delay_ms,
            degraded_retry_ms=400,
            metadata=METADATA_LIMITS,
        )
        writer = WriterCore(ledger, self.chooser, limits)
        self.writer = writer
        self.checkers.on_writer(self.name, writer)
        self._runner = SimulatedRunner(self.cluster, self, writer, lambda effect: self._on_report(writer, effect))
        self.world.count("ledger opened for writing")
        self._write(writer)

    # -- writing

    def _write(self, writer: WriterCore) -> None:
        runner = self._runner
        if runner is None or writer is not self.writer or writer.closed_reason is not None or self._is_closing:
            return
        is_full = writer.last_add_pushed + 1 >= self.profile.ledger_entries_max
        if self.messages_left == 0 or (is_full and not self.profile.rolls_early):
            self._close(writer, runner)
            return
        if is_full and not self._is_rolling:
            self.world.count("next ledger listed before the last was closed")
            self._is_rolling = True
            self._create()
        if self._has_messages():
            burst = self.random.randrange(1, 5) if self.random.random() < self.profile.bursts else 1
            for _ in range(burst if self.messages_left is None else min(burst, self.messages_left)):
                if writer.closed_reason is None and writer.has_room(64):
                    self._add(writer, runner)
        delay = self.random.randrange(1, self.profile.add_every_ms_max + 1)
        self.world.after(delay, lambda: self._write(writer), self)

    def _has_messages(self) -> bool:
        if self.messages_left is not None:
            return True
        return self.world.now >= self.quiet_until and self.cluster.messages_taken < self.profile.messages_max

    def _add(self, writer: WriterCore, runner: SimulatedRunner) -> None:
        self._sent += 1
        self.cluster.messages_taken += 1
        if self.messages_left is not None:
            self.messages_left -= 1
        payload = f"{self.name}:{self._sent}".encode()
        effect = writer.add(payload, self._now)
        self.checkers.on_accepted(self.name, writer.ledger_id, effect.entry_id, payload)
        runner.run([effect])

    def _close(self, writer: WriterCore, runner: SimulatedRunner) -> None:
        """Close the ledger and roll over, once every add has its outcome or a little before."""
        self._is_closing = True
        if writer.last_add_confirmed < writer.last_add_pushed and self.random.random() < 0.9:
            self.world.after(20, lambda: self._close_if_open(writer), self)
        else:
            runner.run(writer.close(self._now))

    def _close_if_open(self, writer: WriterCore) -> None:
        if self._runner is not None and writer is self.writer and writer.closed_reason is None:
            self._close(writer, self._runner)

    def _on_report(self, writer: WriterCore, effect: Effect) -> None:
        self.world.note(self.name, "ledger", writer.ledger_id, effect)
        if isinstance(effect, AddsConfirmed):
            self.checkers.on_confirmed(self.name, writer.ledger_id, effect.last_entry_id)
        elif isinstance(effect, AddsFailed):
            self.checkers.on_failed(self.name, writer.ledger_id, effect.first_entry_id, effect.last_entry_id)
        elif isinstance(effect, WriterFailed | CloseFailed):
            self.world.count(f"writer ended: {type(effect.error).__name__}")
            self._end(writer)
        elif isinstance(effect, WriterClosed):
            self.world.count("ledger closed by its writer")
            self._end_runner()
            following, self._next = self._next, None
            if self.messages_left == 0:
                self._end(writer)
            elif following is not None:
                self._open(following)
            else:
                self.writer = None
                self._is_rolling = False
                self._create()

    def _end(self, writer: WriterCore) -> None:
        self.checkers.on_writer_end(self.name, writer)
        self._end_runner()
        self.is_finished = True

    def _end_runner(self) -> None:
        if self._runner is not None:
            self._runner.is_over = True
            self._runner = None

    def _refresh(self) -> None:
        """Read which bookies are registered, a little late, as a watch would tell."""
        self.chooser.set_writable(self.cluster.registered())
        if self.writer is not None and self._runner is not None:
            self._runner.run(self.writer.on_bookies_changed(self._now))
        self.world.after(REFRESH_MS, self._refresh, self)
