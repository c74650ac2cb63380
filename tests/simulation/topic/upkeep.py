"""The upkeep of a topic: policies that change, and the product's own rounds of expiry, trimming and compaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from heliograph.actors.broker.balance.orphan_sweep import OrphanSweep
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.backlog_quota import EVICTION
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.housekeeping import Housekeeping
from heliograph.actors.broker.upkeep.idle_topics import IdleTopics
from heliograph.base.errors import HeliographError
from heliograph.metadata.model import Policies
from heliograph.metadata.store import SessionState
from heliograph.protocol.topic_name import TopicName
from tests.simulation.cluster.network import Network
from tests.simulation.profile import Profile
from tests.simulation.topic.keeping import Entries, put
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker

ROUND_MS = 250
READ_BYTES = 1 << 20
LATE_MS_MAX = 3_000  # of a duty of the upkeep: times are rounded up to seconds, and clocks are set
AUDITS = 0.2  # how often a round ends with a look at the compacted form, where there is one


class Administration:
    """Changes the policies of the topic from time to time. Every broker hears of it later, as by a watch."""

    def __init__(self, world: World, network: Network, profile: Profile) -> None:
        self.is_over = False  # no round of upkeep begins any more
        self.limits: dict[str, Any] = {}  # the policies that change
        self.brokers: Callable[[], Iterable[TopicBroker]] = tuple
        self._world = world
        self._network = network
        self._profile = profile
        self._random = world.stream("administration")
        if profile.policies:
            self._change()

    def _change(self) -> None:
        choice = self._random.choice
        self.limits = {
            "message_ttl_seconds": choice((0, 0, 1, 2, 4)),
            "retention_seconds": choice((-1, 0, 1, 3)),
            "retention_bytes": choice((-1, 0, 300, 2_000)),
            "backlog_quota_bytes": choice((-1, -1, -1, 500, 2_000)),
            "backlog_quota_seconds": choice((-1, -1, 2)),
            "backlog_quota_action": EVICTION,
        }
        self._world.note("policies:", self.limits)
        for broker in self.brokers():
            self._world.after(self._random.randrange(1_000), broker.apply_policies, broker)
        if not self._network.is_healed:
            self._world.after(self._random.randrange(300, 4_000), self._change)


class OneTopic:
    """A stand-in for ``Topics``: the topic that a broker of the simulation serves."""

    def __init__(self, topic: BrokerTopic) -> None:
        self.is_certain = True
        self.ages = topic.ledger.ages
        self.loaded = [topic]

    def find(self, name: TopicName) -> BrokerTopic:
        return self.loaded[0]

    async def unload(self, name: TopicName) -> None:
        raise AssertionError("no idle topic is unloaded here")


async def keep_up(broker: TopicBroker, topic: BrokerTopic) -> None:
    """Do rounds of upkeep as long as the broker serves the topic."""
    random, administration = broker.world.stream(f"{broker.name}|upkeep"), broker.administration
    session = broker.session
    topics = OneTopic(topic)
    upkeep = Housekeeping(topics, broker.changed, IdleTopics(0), clock=lambda: broker.seconds)
    late_since: int | None = None
    while broker.is_serving:
        await asyncio.sleep(ROUND_MS / 1000)
        if administration.is_over or not topic.is_open:
            continue
        broker.is_keeping_up = True
        broker.in_force, broker.round_began_ms = [topic.policies], broker.world.now
        topics.is_certain = session.state is SessionState.CONNECTED and not session.is_in_doubt
        compaction = topic.compaction
        if random.random() < broker.profile.compactions and topics.is_certain and not compaction.is_running:
            broker.world.count("compaction started")
            compaction.start()
        looks = upkeep.looks
        await upkeep.round()
        rests = topics.is_certain and upkeep.looks == looks and topic.is_open
        broker.world.count("round of upkeep without a look", rests)
        late_since = (late_since or broker.world.now) if rests and upkeep.seconds_to_next(topic) <= 0 else None
        late_ms = 0 if late_since is None else broker.world.now - late_since
        assert late_ms < LATE_MS_MAX, f"nobody told the upkeep at {broker.name} that something is due"
        if broker.profile.compactions and random.random() < AUDITS and topic.is_open:
            await look_at_view(broker, topic)
        broker.is_keeping_up = False


def limited(policies: Policies, limits: dict[str, Any]) -> Policies:
    """Return policies with other limits."""
    return replace(policies, **limits)


async def look_at_view(broker: TopicBroker, topic: BrokerTopic) -> None:
    """Read the compacted form from end to end, and compare it with the topic."""
    base, keeping = topic.ledger.chain, broker.checkers.keeping
    try:
        chain, reader = await topic.view(True)
        if chain is base:
            return
        end = chain.end
        stop = chain.to_base(end)
        seen = await entries_of(chain, reader, end)
        await base.load_index(base.first)
        oldest = base.position_before(base.first).ledger_id
        log = await entries_of(base, topic.reader, stop)
    except HeliographError as error:
        broker.world.note(broker.name, "does not read the compacted form:", error)
        return
    if seen is None or log is None:
        return
    table: dict[str, str] = {}
    for _, section in seen:
        put(table, section)
    gone = [one for one in keeping.gone if one[0].ledger_id not in keeping.never_compacted]
    before = [(position, section) for position, section in gone if position.ledger_id < oldest]
    broker.world.count("compacted form looked at")
    broker.world.note(broker.name, "reads the compacted form up to entry", stop)
    keeping.check_view(f"a reader at {broker.name} up to entry {stop}", table, [*before, *log])


async def entries_of(chain: Chain, reader: EntryReader, end: int) -> Entries | None:
    """Return all entries before ``end``, None if they are trimmed meanwhile."""
    found: list[tuple[Position, bytes]] = []
    index = chain.first
    while index < end:
        if index < chain.first:
            return None
        entries = await reader.read(index, min(100, end - index), READ_BYTES)
        found += [(chain.position_at(at), bytes(entry.payload)) for at, entry in entries]
        index = entries[-1][0] + 1
    return found


async def sweep(broker: TopicBroker) -> None:
    """Delete the ledgers that no record names, as the leader does an hour later."""
    orphans = OrphanSweep(cast(Any, broker.session), broker.ledgers, grace_seconds=-3_600)
    broker.world.count("orphaned ledger deleted", await orphans.sweep())
