"""A broker that takes one topic over and serves it: the product's own topic, on the product's own driver.

The ledger client with its cores, the managed ledger, the cursors with their logs, and the subscriptions with their
dispatchers are the product's. Time, the metadata session, the bookies and the clients are simulated. As in
``tests/simulation/cluster/broker.py``, a broker is not told that it was replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, cast

from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.silence_watch import SilenceWatch
from heliograph.actors.broker.subscription.message_count import ReadAllowance
from heliograph.actors.broker.subscription.setting import ConsumerSetting, SubscriptionSetting
from heliograph.actors.broker.subscription.witness import PROBE_SECONDS, Witness
from heliograph.actors.broker.topic.opening import open_managed_ledger
from heliograph.actors.broker.topic.stats import count_backlogs
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.topic.topics import Topics
from heliograph.actors.ledger.driver import LedgerClient, LedgerClientConfig
from heliograph.actors.ledger.driver.context import DriverContext as DriverWorld
from heliograph.actors.ledger.driver.placements import PlacementRegistry
from heliograph.actors.ledger.limits import RecoveryLimits, WriterLimits
from heliograph.actors.ledger.placement.chooser import BookieChooser
from heliograph.actors.ledger.placement.placement import RandomPlacement
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import BookieRegistration, Persistence, Policies
from heliograph.metadata.store import SessionState
from heliograph.protocol.topic_name import TopicName
from tests.simulation.cluster.runner import Cluster
from tests.simulation.cluster.store import TOPIC
from tests.simulation.profile import Profile
from tests.simulation.topic.bookies import SimulatedBookieClient
from tests.simulation.topic.checkers import TopicCheckers
from tests.simulation.topic.loop import SimulatedLoop
from tests.simulation.topic.session import SimulatedSession
from tests.simulation.topic.upkeep import Administration, keep_up, limited
from tests.simulation.workload.recoverer import METADATA_LIMITS
from tests.simulation.world import Process

NAME = TopicName.parse("persistent://public/default/simulated")
RETRY_MS = 300
COUNT_MS = 200
COUNTS_BACKLOGS = 0.5  # of the runs
TICK_MS = 100
REFRESH_MS = 200
BUNDLE = "/bundle"
GONE_AFTER_MS = 500  # after which a broker that knows that it lost the topic is stopped
DEDUP_SNAPSHOT_ENTRIES = 6
CLOCKS_OFF_MS = (0, 0, 0, -20_000, 2_000, 20_000)  # of brokers
CACHE_BYTES = 3_000  # small, so that some entries are read from bookies


class Directory:
    """A stand-in for ``BookieDirectory`` of the driver: the bookies that the store shows, a little late."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.readonly: dict[str, BookieRegistration] = {}
        self.refresh()

    def refresh(self) -> None:
        """Read the registered bookies again."""
        self.writable = {bookie.bookie_id: bookie for bookie in self._cluster.registered()}

    def address_of(self, bookie_id: str) -> str:
        """Return any text: there are no sockets."""
        return bookie_id

    def is_registered(self, bookie_id: str) -> bool:
        return bookie_id in self.writable


class TopicBroker(Process):
    """One incarnation of the topic's owner."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        profile: Profile,
        checkers: TopicCheckers,
        administration: Administration,
    ) -> None:
        super().__init__(name)
        self.administration = administration
        self.changed = ChangedTopics(1)  # the topic, for the rounds of upkeep
        self.in_force: list[Policies] = []  # since the last round of upkeep began
        self.round_began_ms = 0
        self.is_keeping_up = False  # a round of upkeep is under way
        self.rank = 0  # the version that its takeover gave the record: a later owner has a greater one
        self.cluster = cluster
        self.world = cluster.world
        self.profile = profile
        self.checkers = checkers
        self.topic: BrokerTopic | None = None
        self.is_lost = False  # and it knows that
        self.is_fenced = False  # and a bookie has told it so
        self.is_finished = False
        self.quiet_until = 0
        self.messages_left: int | None = None
        self.wall_off_ms = 0  # of its wall clock, besides ``clock_ahead_ms``
        self.latest_wall_ms = 0
        if profile.has_features:
            self._set_clock()
        self.loop = SimulatedLoop(self.world, self)
        self.session = SimulatedSession(cluster.store, self, self.loop)
        self.session.add_session_listener(self._on_session)
        self.watch = SilenceWatch(cast(Any, self.session), cast(Any, self), cast(Any, self))
        self.directory = Directory(cluster)
        with self.loop.running():
            self.ledgers = self._client()
        self._refresh()

    @property
    def writer(self) -> Any:
        """Return the writer of the open ledger, None if the topic is not open."""
        return self.topic.ledger.writer if self.is_serving and self.topic is not None else None

    @property
    def is_serving(self) -> bool:
        """Whether it has the topic open, as its owner or not."""
        return self.is_up and self.topic is not None and self.topic.ledger.state is not WriteState.CLOSED

    @property
    def loaded(self) -> list[BrokerTopic]:
        """Return the topic, for the watch of silence."""
        return [self.topic] if self.topic is not None and self.is_serving else []

    def of_bundle(self, path: str) -> list[BrokerTopic]:
        """Return the topic, for the check of what is taken back."""
        return self.loaded

    @property
    def seconds(self) -> float:
        """Return the time by its own clock."""
        return (self.world.now + self.clock_ahead_ms) / 1000

    def doubt(self) -> None:
        """Be in doubt from now on: the session may have ended. From then on it asks the bookies."""
        if not self.session.is_in_doubt:
            self.session.is_in_doubt = True
            self._look()

    def go_silent(self) -> None:
        """Get no answer from the store until ``session.resume``; the session may have ended."""
        self.session.silence()
        self.doubt()

    def reclaim(self) -> None:
        """Own the topic again by the store's word, after a check of what others have done meanwhile."""

        async def check() -> None:
            with contextlib.suppress(ConnectionLossError):
                await Topics._check_bundle(cast(Any, self), BUNDLE)
                self.session.is_in_doubt = False
                self.world.count("topic taken back", self.is_serving)

        if self.is_up:
            with self.loop.running():
                self.loop.create_task(check())

    def apply_policies(self) -> None:
        """Hear of the policies as they are now."""
        if self.is_serving and self.topic is not None:
            policies = limited(self.topic.policies, self.administration.limits)
            self.in_force.append(policies)
            with self.loop.running():
                self.topic.apply_policies(policies)

    def start(self) -> None:
        """Take the topic over."""
        with self.loop.running():
            self.loop.create_task(self._serve())

    def run(self, action: Callable[[], object]) -> None:
        """Do an action on the broker's loop, as when a frame came."""
        with self.loop.running():
            action()

    def wall_ms(self) -> int:
        """Return the wall clock of the broker."""
        now = self.profile.wall_ms(self.world.now + self.clock_ahead_ms + self.wall_off_ms)
        self.latest_wall_ms = max(self.latest_wall_ms, now)
        return now

    def crash(self) -> None:
        """Kill the process."""
        if self.is_up:
            super().crash()
            self.loop.die()

    def retire(self) -> None:
        """Stop for good."""
        self.crash()

    # -- internals

    def _set_clock(self) -> None:
        """Set the wall clock. Where messages are delayed it stays: a message that was due may wait for its consumer."""
        random = self.world.stream(f"{self.name}|clock|{self.world.now}")
        self.wall_off_ms = random.choice(CLOCKS_OFF_MS)
        if not self.profile.delays:
            self.world.after(random.randrange(500, 6_000), self._set_clock, self)

    def _client(self) -> LedgerClient:
        profile = self.profile
        config = LedgerClientConfig(
            request_timeout_ms=profile.request_timeout_ms,
            tick_ms=TICK_MS,
            writer=WriterLimits(
                quorum_wait_ms=profile.request_timeout_ms,  # short, so that writers fail often
                add_timeout_ms=2_500,
                ensemble_change_delay_ms=profile.ensemble_change_delay_ms,
                degraded_retry_ms=400,
                metadata=METADATA_LIMITS,
            ),
            recovery=RecoveryLimits(metadata=METADATA_LIMITS),
        )
        chooser = BookieChooser(RandomPlacement(), self.world.stream(self.name))
        chooser.set_writable(self.directory.writable.values())
        driver = DriverWorld(
            cast(Any, self.session),
            cast(Any, self.directory),
            chooser,
            PlacementRegistry(),
            config,
            on_broken=lambda error: None,  # the loop records a finding
        )
        driver.bookies = cast(Any, SimulatedBookieClient(self.cluster, self, self.loop, self._on_fenced))
        driver.spawn(driver.keep_time())
        return LedgerClient(driver)

    async def _serve(self) -> None:
        while True:
            try:
                topic = await self._open()
                break
            except HeliographError as error:
                self.world.count("takeover retried")
                self.world.note(self.name, "cannot open the topic:", error)
                await asyncio.sleep(RETRY_MS / 1000)
        topic.on_lost = lambda topic: self._on_lost()
        self.topic = topic
        if self.is_lost:
            topic.abandon(ServiceNotReadyError("this broker lost its session"))
        if not self.is_serving:
            self._on_lost()
            return
        self.world.count("topic opened")
        self.world.note(self.name, "serves ledgers", topic.ledger.chain.ledger_ids)
        self.checkers.on_open(self)
        if self.profile.has_upkeep:
            self.loop.create_task(keep_up(self, topic))
        if self.world.stream("backlogs").random() < COUNTS_BACKLOGS:
            self.loop.create_task(self._count_backlogs(topic))
        for name in list(topic.recoveries.pending):
            self.loop.create_task(self._recovered(topic, name))

    async def _count_backlogs(self, topic: BrokerTopic) -> None:
        """Count backlogs from time to time, as when statistics are asked for."""
        while self.is_serving:
            await asyncio.sleep(COUNT_MS / 1000)
            await count_backlogs(topic, ReadAllowance())
            if self.is_serving:
                self.checkers.messages.check_backlogs(self)

    async def _recovered(self, topic: BrokerTopic, name: str) -> None:
        """Wait until a cursor is recovered; one that failed is tried again, as housekeeping does."""
        while self.is_serving and topic.has_subscription(name):
            try:
                await topic.subscription(name)
            except HeliographError as error:
                self.world.count("cursor recovery retried")
                self.world.note(self.name, "cannot recover", name, error)
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                self.checkers.on_recovered(self, name)
                return

    async def _open(self) -> BrokerTopic:
        profile = self.profile
        plain = Policies(
            persistence=Persistence(profile.ensemble_size, profile.write_quorum, profile.ack_quorum),
            ledger_entries_max=profile.ledger_entries_max,
            deduplication=self.checkers.is_deduplicated,
            delayed_tick_ms=profile.delayed_tick_ms,
            deduplication_snapshot_entries=DEDUP_SNAPSHOT_ENTRIES,
        )
        policies = limited(plain, self.administration.limits)
        cache = TailCache(CACHE_BYTES)
        session = cast(Any, self.session)
        setting = "index" if self.checkers.is_counted else "none"
        ledger = await open_managed_ledger(str(NAME), TOPIC, session, self.ledgers, cache, policies, setting)
        self.changed = ChangedTopics(1)
        ledger.activity = TopicActivity(NAME, (self.changed,))
        self.rank = ledger._owned._version
        reader = TopicReader(ledger.chain, cache, self.ledgers)
        witness = Witness(lambda: self.session.is_in_doubt, lambda: self.seconds)
        if ledger.is_taken_over:
            witness.fenced(witness.now())
        own = SubscriptionSetting(
            witness=witness, consumers=ConsumerSetting(deletions_kept_seconds=profile.deletions_kept_seconds)
        )
        topic = BrokerTopic(NAME, TOPIC, BUNDLE, ledger, reader, session, self.ledgers, policies, own)
        try:
            await topic.load_subscriptions()
        except BaseException:
            with contextlib.suppress(HeliographError):
                await ledger.close()
            raise
        return topic

    def _look(self) -> None:
        if self.session.is_in_doubt:
            with self.loop.running():
                self.watch.look()
            self.world.after(round(PROBE_SECONDS * 1000), self._look, self)

    def _on_fenced(self, ledger_id: int) -> None:
        writer = self.writer
        if writer is None or writer.ledger_id != ledger_id or not writer.is_open:
            return

        def note() -> None:
            self.is_fenced = True

        self.world.count("quiet owner told by a bookie")
        self.world.after(1, note, self)

    def _on_session(self, state: SessionState) -> None:
        if state is not SessionState.LOST:
            return
        if self.topic is not None:
            self.topic.abandon(ServiceNotReadyError("this broker lost its session"))  # I13
        self._on_lost()

    def _on_lost(self) -> None:
        if not self.is_lost:
            self.is_lost = self.is_finished = True
            self.world.count("topic lost, and its broker knows")
            self.world.note(self.name, "knows that it lost the topic")
            self.world.after(GONE_AFTER_MS, self.crash)

    def _refresh(self) -> None:
        self.directory.refresh()
        with self.loop.running():
            self.ledgers._on_bookies_changed()
        self.world.after(REFRESH_MS, self._refresh, self)
