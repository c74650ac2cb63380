"""A topic opens before its cursors are recovered: who waits, who does not, and what must not happen meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.subscription.recovery import (
    RECOVERIES_AT_ONCE_MAX,
    PendingSubscription,
    RecoveryQueue,
    SubscriptionRecoveries,
)
from heliograph.actors.broker.subscription.state import SubscriptionState
from heliograph.actors.broker.topic.stats import topic_stats
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.idle_topics import has_backlog
from heliograph.actors.errors import LedgerRecoveryError
from heliograph.base.errors import ServiceNotReadyError, SubscriptionNotFoundError
from heliograph.metadata import codec
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import CursorRecord, LedgerMetadata
from tests.unit.broker.topic_world import finish, publish, topic_on
from tests.unit.broker.world import World, turns


class Recoveries:
    """The recoveries of cursor ledgers, each of which waits for the test or fails."""

    def __init__(self, world: World, topic: BrokerTopic) -> None:
        self.names = {one.log.ledger_id: name for name, one in topic.subscriptions.items() if one.log is not None}
        self.held: set[str] = set()
        self.failing: set[str] = set()
        self.running = 0
        self.running_max = 0
        self.order: list[str] = []
        self.open = asyncio.Event()
        self._recover = world.ledgers.recover
        world.ledgers.recover = self._run  # type: ignore[method-assign]

    async def _run(self, ledger_id: int) -> LedgerMetadata:
        name = self.names.get(ledger_id)
        if name is None:
            return await self._recover(ledger_id)
        self.order.append(name)
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        try:
            if name in self.held:
                await self.open.wait()
            if name in self.failing:
                raise LedgerRecoveryError("not now")
            return await self._recover(ledger_id)
        finally:
            self.running -= 1


async def left_behind(world: World, store: MemoryStore, *names: str, entries: str = "abcdef") -> Recoveries:
    """Return the recoveries of a topic whose owner is gone; each subscription acknowledged the first entry."""
    topic = await topic_on(world, store)
    await publish(topic.ledger, *entries)
    for name in names:
        done = (await topic.subscribe(name, start=0)).skip(1)
        assert done is not None
        await done
    recoveries = Recoveries(world, topic)
    await topic.close()
    return recoveries


async def opened(world: World) -> BrokerTopic:
    """Open the world's topic as a new owner, and wait for no cursor."""
    store = await world.session()
    ledger = await world.open(store)
    reader = TopicReader(ledger.chain, TailCache(1 << 20), world.ledgers)
    topic = BrokerTopic(
        world.topic, ledger._owned.path, "/bundle", ledger, reader, store, world.ledgers, world.policies
    )
    await topic.load_subscriptions()
    return topic


async def test_publishing_and_other_subscriptions_do_not_wait_for_a_cursor(world: World, store: MemoryStore) -> None:
    recoveries = await left_behind(world, store, "fast", "slow")
    recoveries.held = {"slow"}
    topic = await opened(world)
    assert (await topic.subscription("fast")).backlog == 5
    await publish(topic.ledger, "g")
    assert topic.subscriptions["fast"].backlog == 6
    waiting = asyncio.create_task(topic.subscribe("slow", start=None))
    await turns(lambda: recoveries.running == 1)
    assert not waiting.done()
    assert topic.recoveries.pending["slow"].state is SubscriptionState.RECOVERING
    assert "is being recovered" in topic_stats(topic, "b")["unavailableSubscriptions"]["slow"]
    assert topic.users == 2
    assert topic.has_subscription("slow")
    assert has_backlog(topic), "an idle topic is not deleted while a cursor is unknown"
    recoveries.open.set()
    assert (await waiting).backlog == 6  # what was acknowledged before is not delivered again (I11)
    assert not topic.recoveries.pending


async def test_nothing_is_trimmed_and_no_quota_acts_before_every_cursor_is_known(
    world: World, store: MemoryStore
) -> None:
    """The unknown cursor may be the slowest (I14)."""
    world.policies = replace(
        world.policies,
        ledger_entries_max=2,
        retention_seconds=0,
        retention_bytes=0,
        backlog_quota_bytes=1,
        backlog_quota_action="consumer_backlog_eviction",
    )
    recoveries = await left_behind(world, store, "fast", "slow")
    recoveries.held = {"slow"}
    topic = await opened(world)
    fast = await topic.subscription("fast")
    done = fast.skip(None)
    assert done is not None
    await done
    assert await topic.trim() == 0
    assert not topic.has_old_ledgers()
    await topic.housekeep()
    assert topic.admission.quota.evicted == 0
    recoveries.open.set()
    slow = await topic.subscription("slow")
    assert slow.backlog == 5
    await topic.housekeep()
    assert topic.admission.quota.evicted == 5
    assert await topic.trim() > 0


async def test_a_cursor_that_cannot_be_recovered_is_tried_again_and_hurts_no_other(
    world: World, store: MemoryStore
) -> None:
    recoveries = await left_behind(world, store, "good", "bad")
    recoveries.failing = {"bad"}
    topic = await opened(world)
    assert (await topic.subscription("good")).backlog == 5
    with pytest.raises(LedgerRecoveryError):  # clients try again
        await topic.subscribe("bad", start=None)
    assert topic.recoveries.pending["bad"].state is SubscriptionState.UNAVAILABLE
    assert topic.is_open
    assert await topic.trim() == 0
    recoveries.failing = set()
    await topic.housekeep()
    await turns(lambda: "bad" in topic.subscriptions)
    assert topic.subscriptions["bad"].backlog == 5


async def test_few_cursors_are_recovered_at_once_and_those_that_are_waited_for_first(
    world: World, store: MemoryStore
) -> None:
    names = [f"s{number}" for number in range(4 * RECOVERIES_AT_ONCE_MAX)]
    recoveries = await left_behind(world, store, *names)
    recoveries.held = set(names)
    topic = await opened(world)
    await turns(lambda: recoveries.running == RECOVERIES_AT_ONCE_MAX)
    wanted = next(reversed(topic.recoveries.pending))
    waiting = asyncio.create_task(topic.subscription(wanted))
    await asyncio.sleep(0)
    assert wanted not in recoveries.order
    recoveries.open.set()
    await waiting
    assert recoveries.order.index(wanted) <= RECOVERIES_AT_ONCE_MAX
    await topic.recoveries.all_recovered()
    assert sorted(topic.subscriptions) == sorted(names)
    assert recoveries.running_max == RECOVERIES_AT_ONCE_MAX  # I15


@pytest.mark.parametrize("end", ["close", "lose"])
async def test_a_topic_that_ends_while_cursors_are_recovered_leaves_them_to_the_next_owner(
    world: World, store: MemoryStore, end: str
) -> None:
    recoveries = await left_behind(world, store, "fast", "slow")
    recoveries.held = {"slow"}
    topic = await opened(world)
    await topic.subscription("fast")
    waiting = asyncio.create_task(topic.subscribe("slow", start=None))
    await turns(lambda: recoveries.running == 1)
    if end == "close":
        await topic.close()
    else:
        topic.abandon(ServiceNotReadyError("another broker owns it"))
    with pytest.raises(ServiceNotReadyError):
        await waiting
    await turns(lambda: recoveries.running == 0)
    assert not topic.subscriptions
    recoveries.held = set()
    again = await topic_on(world, await world.session())
    assert {name: one.backlog for name, one in again.subscriptions.items()} == {"fast": 5, "slow": 5}


async def test_a_late_owner_serves_no_cursor_of_a_topic_that_went_on(world: World, store: MemoryStore) -> None:
    """The ownership is checked after each cursor was recovered (I11, I13)."""
    recoveries = await left_behind(world, store, "slow")
    recoveries.held = {"slow"}
    late = await opened(world)
    await turns(lambda: recoveries.running == 1)
    recoveries.held = set()
    quick = await opened(world)
    recoveries.open.set()
    await turns(lambda: not late.is_open)
    assert not late.subscriptions
    again = quick if quick.is_open else await opened(world)
    assert (await again.subscription("slow")).backlog == 5


async def test_a_subscription_is_deleted_while_it_is_recovered(world: World, store: MemoryStore) -> None:
    recoveries = await left_behind(world, store, "slow")
    recoveries.held = {"slow"}
    topic = await opened(world)
    deleting = asyncio.create_task(topic.unsubscribe("slow"))
    await turns(lambda: recoveries.running == 1)
    recoveries.open.set()
    await deleting
    with pytest.raises(SubscriptionNotFoundError):
        await topic.subscription("slow")
    again = await topic_on(world, await world.session())
    assert not again.subscriptions


async def test_a_subscription_that_the_previous_owner_deleted_at_last_is_gone(world: World, store: MemoryStore) -> None:
    recoveries = await left_behind(world, store, "slow")
    recoveries.held = {"slow"}
    topic = await opened(world)
    await turns(lambda: recoveries.running == 1)
    path = topic._place("slow").path
    value, stat = await store.get(path)
    assert codec.decode(CursorRecord, value).cursor_ledger_id in recoveries.names
    await store.delete(path, stat.version)
    recoveries.open.set()
    with pytest.raises(SubscriptionNotFoundError):
        await topic.subscription("slow")
    assert not topic.recoveries.pending


async def test_a_cursor_counts_by_the_chain_of_a_compaction_that_ended_meanwhile(
    topic: BrokerTopic, world: World
) -> None:
    await publish(topic.ledger, *"aabbc")
    topic.compaction.start()
    await finish(topic)
    done = (await topic.subscribe("state", start=0, view=await topic.view(True))).skip(1)
    assert done is not None
    await done
    recoveries = Recoveries(world, topic)
    await topic.close()
    recoveries.held = {"state"}
    again = await opened(world)
    await turns(lambda: recoveries.running == 1)
    await publish(again.ledger, *"bd")
    again.compaction.start()
    await finish(again)
    recoveries.open.set()
    state = await again.subscription("state")
    assert state.chain is (await again.view(True))[0]
    assert [state.chain.end - state.cursor.mark, state.backlog] == [3, 3]  # b, c and d are not acknowledged


async def test_a_recovery_that_is_begun_again_at_once_holds_one_place() -> None:
    attempts, running, most, errors = list[str](), 0, 0, list[object]()

    async def recover(pending: PendingSubscription) -> None:
        nonlocal running, most
        attempts.append(pending.name)
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        if attempts.count("first") == 1 and pending.name == "first":
            asyncio.get_running_loop().call_soon(recoveries.repeat)  # before the queue hears of the failure
            raise LedgerRecoveryError("not now")

    recoveries = SubscriptionRecoveries("topic", RecoveryQueue(at_once_max=3), recover)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    for name in ("first", "second"):
        recoveries.begin(name)
    with pytest.raises(LedgerRecoveryError):
        await recoveries.recovered("first")
    for name in ("third", "fourth", "fifth"):
        recoveries.begin(name)
    await asyncio.sleep(0.2)
    assert not errors
    assert most == 3
    assert not recoveries.pending
