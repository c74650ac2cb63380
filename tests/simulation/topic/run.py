"""One run of a topic. Brokers take it over from each other while clients publish, consume and acknowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from heliograph.actors.broker.balance import orphan_sweep
from heliograph.actors.broker.cursor import log as cursor_log
from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.delayed import index as delayed_index
from heliograph.actors.broker.delayed import log as delayed_log
from heliograph.actors.broker.managed_ledger import managed_ledger
from heliograph.actors.broker.managed_ledger import reader as topic_reader
from heliograph.actors.broker.records import topic_chain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.base import clock as base_clock
from heliograph.base.errors import HeliographError
from tests.simulation.checkers.judge import LIVENESS, Judge
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.runner import Cluster
from tests.simulation.cluster.store import SimulatedStore
from tests.simulation.faults.fault import Fault
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.profile import Plan, Profile
from tests.simulation.report import Report, failure_of
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.checkers import TopicCheckers
from tests.simulation.topic.consumer import SimulatedConsumer
from tests.simulation.topic.faults import TOPIC_KINDS
from tests.simulation.topic.keeping import COMPACTED, Entries, put
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.topic.producer import SimulatedProducer
from tests.simulation.topic.reader import SimulatedReader
from tests.simulation.topic.scene import Scene
from tests.simulation.topic.upkeep import Administration, look_at_view, sweep
from tests.simulation.world import World

STEPS_MAX = 1_500_000
CALM_MS_MAX = 120_000
FINAL_MESSAGES = 6
PRODUCERS = 2
READERS = 2
ENTRIES_MAX = 150  # published while there are faults; the cost of a run grows with it
READ_BYTES = 1 << 20
KINDS = {
    "keys": (SubscriptionType.KEY_SHARED, 3),
    "shared": (SubscriptionType.SHARED, 2),
    "failover": (SubscriptionType.FAILOVER, 2),
    "exclusive": (SubscriptionType.EXCLUSIVE, 1),
    COMPACTED: (SubscriptionType.EXCLUSIVE, 1),
}


class Clock:
    """A stand-in for the module ``time``, where the product measures durations."""

    def __init__(self, world: World, profile: Profile) -> None:
        self._world = world
        self._profile = profile

    def monotonic(self) -> float:
        """Return the seconds of the simulated clock."""
        return self._world.now / 1000

    perf_counter = monotonic

    def monotonic_ns(self) -> int:
        """Return the simulated clock in nanoseconds."""
        return self._world.now * 1_000_000

    def time_ns(self) -> int:
        """Return the wall clock in nanoseconds, that of the broker whose loop is running."""
        loop = asyncio._get_running_loop()
        ahead = loop.wall_ahead_ms if self._profile.has_features and isinstance(loop, SimulatedLoop) else 0
        return self._profile.wall_ms(self._world.now + ahead) * 1_000_000


class TopicRun:
    """A run of one plan."""

    checkers_made_by: type[TopicCheckers] = TopicCheckers
    kinds: Sequence[Fault] = TOPIC_KINDS

    def __init__(self, plan: Plan, is_traced: bool = False, watched: Collection[str] | None = None) -> None:
        self.plan = plan
        self.world = World(plan.seed, is_traced)
        self.profile = Profile.of(plan, self.world.stream("profile"))
        self.random = self.world.stream("topic run")
        self.judge = Judge(watched)
        self.network = Network(self.world, self.profile)
        self.store = SimulatedStore(self.world, self.network)
        names = [f"bookie-{n + 1}" for n in range(self.profile.bookies)]
        self.bookies = {name: SimulatedBookie(self.world, name, self.profile.sync_ms_max) for name in names}
        self.cluster = Cluster(self.world, self.network, self.store, self.bookies)
        other = self.random.choice([name for name in KINDS if name not in ("keys", COMPACTED)])
        self.subscriptions: tuple[str, ...] = ("keys", other)
        if self.profile.compactions:
            self.subscriptions += (COMPACTED,)
        is_deduplicated = self.random.random() < 0.6
        is_counted = self.world.stream("entry metadata").random() < 0.5
        self.checkers = self.checkers_made_by(
            self.store, self.judge, self.bookies, ["keys"], is_deduplicated=is_deduplicated, is_counted=is_counted
        )
        self.administration = Administration(self.world, self.network, self.profile)
        self.nemesis = Nemesis(self.cluster, plan, self.profile, self.checkers, self.kinds, self._broker)
        self.administration.brokers = lambda: self.nemesis.brokers
        self.scene = Scene(self.cluster, self.network, self.profile, self.checkers, self.nemesis)
        self.scene.messages_max = min(self.scene.messages_max, ENTRIES_MAX)
        self.nemesis.scene = self.scene  # type: ignore[attr-defined]
        clock = Clock(self.world, self.profile)
        self._constants: dict[tuple[ModuleType, str], object] = {
            (cursor_log, "LEDGER_ENTRIES_MAX"): self.random.choice((5, 20, 1_000)),
            (cursor_log, "SNAPSHOT_BYTES_MIN"): self.random.choice((0, 100, 1_000)),
            (cursor_record, "PART_ITEMS_MAX"): self.random.choice((1, 2, 4_096)),
            (managed_ledger, "time"): clock,
            (topic_reader, "time"): clock,
        }
        if self.profile.delays:
            small = self.world.stream("delayed index")
            self._constants |= {
                (delayed_index, "RUN_ENTRIES_MAX"): small.choice((2, 5)),
                (delayed_index, "LOADED_MAX"): small.choice((1, 8)),
                (delayed_index, "LOADED_MIN"): 1,
                (delayed_log, "LEDGER_RUNS_MAX"): small.choice((1, 3)),
            }
        if self.profile.folds:
            self._constants |= {
                (topic_chain, "PIECE_LEDGERS"): 2,
                (topic_chain, "PIECE_REFS"): 2,
                (topic_chain, "TAIL_LEDGERS_MAX"): self.world.stream("folds").choice((3, 4)),
            }
        if self.profile.has_features:
            self._constants |= {(base_clock, "time"): clock, (orphan_sweep, "time"): clock}

    def execute(self) -> Report:
        """Run to the end, or to the first broken invariant."""
        failure = ""
        with self._surroundings():
            try:
                self._faulty_part()
                self._calm_part()
            except Exception as error:  # a core that raises is a finding like any other
                failure = failure_of(error)
            for broker in self.nemesis.brokers:
                broker.crash()
        world = self.world
        return Report(
            self.plan,
            failure,
            world.now,
            world.steps,
            self.checkers.confirmed_messages,
            self.scene.messages_taken,
            self.nemesis.struck,
            world.counts,
            world.trace or [],
        )

    # -- parts

    def _faulty_part(self) -> None:
        self.nemesis.begin()
        for number in range(PRODUCERS):
            self._make_producer(f"producer-{number + 1}")
        number = 0
        for name in self.subscriptions:
            kind, count = KINDS[name]
            for _ in range(count):
                number += 1
                self._make_consumer(f"consumer-{number}", name, kind)
        if self.profile.readers:
            for number in range(READERS):
                SimulatedReader(f"reader-{number + 1}", self.scene)
        while self.world.now < self.profile.faults_until_ms:
            self._step()

    def _make_producer(self, name: str) -> None:
        SimulatedProducer(name, self.scene)

    def _make_consumer(self, name: str, subscription: str, kind: SubscriptionType) -> None:
        SimulatedConsumer(name, subscription, kind, self.scene)

    def _calm_part(self) -> None:
        """Heal everything, let a last broker take over, and let every message be sent, delivered and acknowledged."""
        deadline = self.world.now + CALM_MS_MAX
        self.world.note("no more faults")
        self.nemesis.end()
        for broker in self.nemesis.brokers:
            broker.retire()
        for client in self.scene.clients:
            if client.link is not None:
                client.link.cut()
        last: TopicBroker = self.nemesis.last_broker()
        while not last.is_serving:
            self._step_until(deadline, "the last broker could not take over")
        self.scene.messages_max = self.scene.messages_taken + FINAL_MESSAGES
        while self.scene.may_publish() or not all(producer.is_idle for producer in self.scene.producers):
            self._step_until(deadline, "a producer waits for receipts")
        while not self._is_drained(last):
            self._step_until(deadline, "a subscription does not come to the end")
        if self.profile.seeks:
            for name in self.subscriptions[:2]:
                self._seek_back(name, last, deadline)
        self._end_upkeep(last, deadline)
        contents = self._contents(last, deadline)
        self.checkers.at_end(last, contents)
        for reader in self.scene.readers:
            while contents and reader.last < contents[-1][0]:
                self._step_until(deadline, f"{reader.name} does not come to the end")
            self.checkers.check_read(reader.name, reader.read, contents)
        self._check_compaction(last, contents, deadline)
        self._check_clients(last, contents, deadline)

    def _is_drained(self, broker: TopicBroker) -> bool:
        if not broker.is_serving or broker.topic is None:
            return False
        own = [one for one in broker.topic.subscriptions.values() if one.is_durable and not one.is_internal]
        return len(own) == len(self.subscriptions) and all(one.cursor.mark == one.chain.end for one in own)

    def _seek_back(self, name: str, last: TopicBroker, deadline: int) -> None:
        """Let a consumer seek back, and everything from there on be delivered again."""
        seeks = self.checkers.seeks_of(name)
        consumers = [one for one in self.scene.consumers if one.subscription == name]
        while not any(one.seek_back() for one in consumers):
            self._step_until(deadline, "no consumer is connected")
        while self.checkers.seeks_of(name) == seeks or not self._is_drained(last):
            self._step_until(deadline, "a subscription does not come to the end after a seek back")

    def _end_upkeep(self, last: TopicBroker, deadline: int) -> None:
        """Let the last round of upkeep end."""
        self.administration.is_over = True
        while last.is_keeping_up or (last.topic is not None and last.topic.compaction.is_running):
            self._step_until(deadline, "a round of upkeep does not end")

    def _check_compaction(self, last: TopicBroker, contents: Entries, deadline: int) -> None:
        """Look at the compacted form as readers see it in the end, and for ledgers that compactions left."""
        if not self.profile.compactions:
            return
        assert last.topic is not None, "it serves it"
        log = [*self.checkers.keeping.gone, *contents]
        reader = next(one for one in self.scene.consumers if one.reads_compacted)
        table = {key: value for key, (_, value) in reader.table.items() if value is not None}
        if self.profile.deletions_kept_seconds < CALM_MS_MAX / 1000:  # it may have been away for longer
            newest: dict[str, str] = {}
            for _, section in log:
                put(newest, section)
            table = {key: value for key, value in table.items() if key in newest}
        if not self.profile.policies:  # no value was too old for the subscription
            self.checkers.keeping.check_view("the subscription to the compacted form", table, log)
        self._do(last, look_at_view(last, last.topic), deadline, "the compacted form cannot be read")
        self._do(last, sweep(last), deadline, "the sweep does not end")
        self.checkers.keeping.check_orphans()

    def _check_clients(self, last: TopicBroker, contents: Entries, deadline: int) -> None:
        """Check what clients were told, where they are our own."""

    def _do(self, broker: TopicBroker, work: Coroutine[Any, Any, None], deadline: int, what: str) -> None:
        with broker.loop.running():
            task = broker.loop.create_task(work)
        while not task.done():
            self._step_until(deadline, what)

    def _contents(self, broker: TopicBroker, deadline: int) -> list[tuple[Position, bytes]]:
        """Return all entries of the chain, read from the bookies."""
        found: list[tuple[Position, bytes]] = []
        topic = broker.topic
        assert topic is not None, "it serves it"

        async def read() -> None:
            chain = topic.ledger.chain
            await chain.load_index(chain.first)
            index = chain.first
            while index < chain.end:
                try:
                    entries = await topic.reader.read(index, 100, READ_BYTES)
                except HeliographError as error:
                    self.world.note("reading at the end:", error)
                    continue
                found.extend((chain.position_at(at), bytes(entry.payload)) for at, entry in entries)
                index = entries[-1][0] + 1

        self._do(broker, read(), deadline, "the topic cannot be read")
        return found

    # -- internals

    def _broker(self, name: str) -> TopicBroker:
        for earlier in self.nemesis.brokers:
            earlier.doubt()  # a session is in doubt before the store lets another broker own the topic
        return TopicBroker(name, self.cluster, self.profile, self.checkers, self.administration)

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Set small limits that little work reaches, simulated time, and no log lines of expected errors."""
        loggers = [logging.getLogger(name) for name in ("heliograph.actors", "heliograph.client")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL + 1)
        with ExitStack() as stack:
            for (module, name), value in self._constants.items():
                stack.enter_context(patch.object(module, name, value))
            try:
                yield
            finally:
                for logger, level in zip(loggers, levels, strict=True):
                    logger.setLevel(level)

    def _step_until(self, deadline: int, what: str) -> None:
        self.judge.require(self.world.now < deadline, LIVENESS, what)
        self._step()

    def _step(self) -> None:
        world = self.world
        if world.steps >= STEPS_MAX or not world.step():
            self.judge.require(False, LIVENESS, "the run does not end, or nothing happens any more")
        self.checkers.after_step()
