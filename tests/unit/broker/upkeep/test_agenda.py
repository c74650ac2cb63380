"""The rounds of upkeep look at topics in which something happened or that are due, and at no others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from heliograph.actors.broker.records.activity import ChangedTopics, TopicActivity
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import IDLE_SECONDS_MAX, BrokerTopic
from heliograph.actors.broker.upkeep.agenda import CHANGES_A_TURN, REST_SECONDS_MAX, Agenda
from heliograph.actors.broker.upkeep.housekeeping import Housekeeping
from heliograph.actors.broker.upkeep.idle_topics import IdleTopics
from heliograph.actors.errors import QuorumLostError
from heliograph.base.clock import wall_ms
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.topic_world import FakeTopics, listen, publish, topic_on
from tests.unit.broker.world import World, turns

ROUND = 10.0


def activities(count: int, queue: ChangedTopics) -> list[TopicActivity]:
    return [TopicActivity(TopicName.parse(f"t{number}"), (queue,)) for number in range(count)]


def test_a_note_reaches_each_job_once_until_the_job_looks() -> None:
    one, other = ChangedTopics(1), ChangedTopics(2)
    activity = TopicActivity(TopicName.parse("t"), (one, other))
    activity.note()
    activity.note()
    assert (len(one), len(other), activity.is_noted) == (1, 1, True)
    assert one.pop() is activity
    activity.note()
    assert (len(one), len(other)) == (1, 1)
    assert other.pop() is activity
    assert not activity.is_noted


def test_a_topic_is_due_when_something_happens_or_its_time_has_come() -> None:
    queue = ChangedTopics(1)
    agenda, (one, other) = Agenda(queue), activities(2, queue)
    one.note()
    assert agenda.due(0.0) == [one]
    assert agenda.happened(one)
    assert agenda.due(1.0) == [one], "a round that ended early has not looked"
    agenda.plan(one, 1.0, 0.0)
    assert agenda.due(11.0) == [one]
    assert not agenda.happened(one)
    agenda.plan(one, 11.0, 30.0)
    other.note()
    assert agenda.due(12.0) == [other]
    agenda.forget(other)
    assert agenda.due(40.9) == []
    assert agenda.due(42.0) == [one], "at most a second late"
    agenda.plan(one, 42.0, 500.0)
    one.note()
    assert agenda.due(43.0) == [one]
    agenda.plan(one, 43.0, 5.0)
    assert [agenda.due(at) for at in (44.0, 49.0)] == [[], [one]]
    agenda.plan(one, 49.0, 5.0)
    assert agenda.due(49.1) == []
    assert len(agenda) == 1


async def test_a_burst_of_changes_is_taken_in_turns_of_the_loop() -> None:
    queue = ChangedTopics(1)
    agenda, many = Agenda(queue), activities(3 * CHANGES_A_TURN, queue)

    async def gather(now: float, also: Sequence[TopicActivity] = ()) -> list[TopicActivity]:
        gathering, due = asyncio.create_task(agenda.gather(now, also)), [agenda.due_count]
        while not gathering.done():
            await asyncio.sleep(0)
            due.append(agenda.due_count)
        assert max(after - before for before, after in pairwise(due)) <= CHANGES_A_TURN
        return agenda.due(now)

    for activity in many:
        activity.note()
    assert await gather(0.0) == many
    assert agenda.happened(many[-1])
    for activity in many:
        agenda.plan(activity, 0.0, 60.0)
    assert set(await gather(62.0)) == set(many), "all were planned for one second"
    for activity in many:
        agenda.plan(activity, 62.0, 60.0)
    assert await gather(63.0, many[1:]) == many[1:]
    assert await gather(123.0) == [*many[1:], many[0]]


async def test_a_topic_that_is_closed_while_topics_are_gathered_is_not_due() -> None:
    queue = ChangedTopics(1)
    agenda, many = Agenda(queue), activities(2 * CHANGES_A_TURN, queue)
    for activity in many:
        activity.note()
    for activity in agenda.due(0.0):
        agenda.plan(activity, 0.0, 60.0)
    gathering = asyncio.create_task(agenda.gather(62.0))
    await asyncio.sleep(0)
    assert 0 < agenda.due_count < len(many)
    for activity in many:
        agenda.forget(activity)
    await gathering
    assert (agenda.due(62.0), len(agenda)) == ([], 0)


async def test_after_a_jump_of_the_clock_topics_are_brought_forward_in_turns(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep = Upkeep(topic := await topic_on(world, store))
    await upkeep.rest()
    taken = 0

    class Loaded(list[BrokerTopic]):
        def __iter__(self) -> Iterator[BrokerTopic]:
            nonlocal taken
            for _ in range(3 * CHANGES_A_TURN):
                taken += 1
                yield topic

    monkeypatch.setattr(FakeTopics, "loaded", property(lambda topics: Loaded([topic])))
    upkeep.began_ms += 3_600_000
    looking, takes = asyncio.create_task(upkeep.round()), [0]
    while not looking.done():
        await asyncio.sleep(0)
        takes.append(taken)
    assert taken == 3 * CHANGES_A_TURN
    assert max(after - before for before, after in pairwise(takes)) <= CHANGES_A_TURN


def test_topics_at_rest_are_looked_at_from_time_to_time_and_not_all_at_once() -> None:
    queue = ChangedTopics(1)
    agenda, count = Agenda(queue), 5_000
    for activity in activities(count, queue):
        activity.note()
    for activity in agenda.due(0.0):
        agenda.plan(activity, 0.0, 1e9)
    assert len(agenda) == count
    looks = []
    for at in range(0, REST_SECONDS_MAX + 20, 10):
        due = agenda.due(float(at))
        looks.append(len(due))
        for activity in due:
            agenda.plan(activity, float(at), 1e9)
    assert sum(looks) >= count
    assert max(looks) < count / 50
    assert not any(looks[: REST_SECONDS_MAX // 20])


class Upkeep(Housekeeping):
    """Rounds each ten seconds of a clock that the test sets; the ages of topics follow it."""

    def __init__(self, *topics: BrokerTopic, unload_seconds: float = 0.0) -> None:
        self.now = 0.0
        self.loaded = FakeTopics()
        self.deleted: list[BrokerTopic] = []
        for topic in topics:
            self.watch(topic)
        super().__init__(
            self.loaded, self.loaded.upkeep, IdleTopics(unload_seconds, self.clock), self._delete, self.clock
        )
        self.began_ms = wall_ms()
        self.loaded.ages.now_ms = self.ages_ms  # type: ignore[method-assign]

    def watch(self, topic: BrokerTopic) -> None:
        """Serve a topic, whose parts have had no activity of a broker up to now."""
        self.loaded.add(topic)
        topic.ledger.activity = topic.activity
        topic.setting = replace(topic.setting, activity=topic.activity)
        topic.ledger.ages = self.loaded.ages
        for subscription in topic.subscriptions.values():
            subscription._activity = topic.activity

    def clock(self) -> float:
        return self.now

    def ages_ms(self) -> int:
        return self.began_ms + round(1_000 * self.now)

    async def _delete(self, topic: BrokerTopic) -> None:
        self.deleted.append(topic)

    async def pass_time(self, seconds: float) -> int:
        """Do the rounds of some time, and return how many topics were looked at."""
        before, end = self.looks, self.now + seconds
        while self.now < end:
            self.now += ROUND
            await self.round()
        return self.looks - before

    async def rest(self) -> None:
        """Let everything settle that has happened."""
        await self.pass_time(3 * ROUND)
        assert await self.pass_time(60) == 0


async def test_a_topic_at_rest_is_not_looked_at_however_many_rounds_there_are(topic: BrokerTopic) -> None:
    await topic.subscribe("s", start=0)
    await publish(topic.ledger, "a")
    upkeep = Upkeep(topic)
    assert await upkeep.pass_time(ROUND) == 1
    assert await upkeep.pass_time(ROUND) == 1, "much ends in the background, so the next round looks again"
    assert await upkeep.pass_time(REST_SECONDS_MAX / 2 - 10 * ROUND) == 0
    assert await upkeep.pass_time(REST_SECONDS_MAX) >= 1, "a missed note is a delay"
    assert upkeep.planned == 1


Change = Callable[[BrokerTopic], Any]


@pytest.mark.parametrize(
    "change",
    [
        lambda topic: publish(topic.ledger, "k"),
        lambda topic: topic.subscriptions["s"].skip(1),
        lambda topic: topic.subscriptions["s"].reset(0),
        lambda topic: topic.subscribe("other", start=None),
        lambda topic: topic.unsubscribe("s"),
        lambda topic: topic.apply_policies(replace(topic.policies, retention_seconds=1)),
        lambda topic: topic.ledger.store_property("a", "b"),
        lambda topic: topic.ledger.roll(),
        lambda topic: listen(topic.subscriptions["s"], SubscriptionType.SHARED),
        lambda topic: topic.terminate(),
    ],
)
async def test_what_happens_in_a_topic_is_noted(topic: BrokerTopic, change: Change) -> None:
    await topic.subscribe("s", start=0)
    await publish(topic.ledger, "a", "b")
    upkeep = Upkeep(topic)
    await upkeep.rest()
    done = change(topic)
    if asyncio.iscoroutine(done):
        await done
    assert await upkeep.pass_time(ROUND) == 1


async def test_messages_expire_on_time_also_where_nothing_happens(topic: BrokerTopic) -> None:
    subscription = await topic.subscribe("s", start=0)
    await publish(topic.ledger, "a")
    upkeep = Upkeep(topic)
    topic.apply_policies(replace(topic.policies, message_ttl_seconds=600))
    await upkeep.rest()
    await upkeep.pass_time(590 - upkeep.now)
    assert subscription.backlog == 1
    looks = upkeep.looks
    await upkeep.pass_time(2 * ROUND)
    assert subscription.backlog == 0
    assert upkeep.looks - looks <= 2


async def test_ledgers_roll_and_are_trimmed_on_time(topic: BrokerTopic) -> None:
    await publish(topic.ledger, "a")
    upkeep = Upkeep(topic)
    topic.apply_policies(replace(topic.policies, retention_seconds=300, retention_bytes=-1))
    await topic.ledger.roll()
    await turns(lambda: not topic.ledger._is_rolling)
    closed_ms = topic.ledger.record.ledgers[0].closed_ms
    await upkeep.rest()
    await upkeep.pass_time((closed_ms - upkeep.began_ms) / 1_000 + 290 - upkeep.now)
    assert topic.ledger.chain.first == 0
    await upkeep.pass_time(2 * ROUND)
    assert topic.ledger.chain.first == 1
    await publish(topic.ledger, "b")
    await upkeep.rest()
    topic.ledger._opened_at -= topic.policies.ledger_age_seconds_max  # the clock of ledgers is the process's own
    upkeep.look_at_all()
    await upkeep.pass_time(ROUND)
    await turns(lambda: not topic.ledger._is_rolling)
    assert topic.ledger.writer.last_add_confirmed < 0


async def test_what_has_failed_is_tried_in_each_round(topic: BrokerTopic, world: World) -> None:
    await publish(topic.ledger, "a")
    await topic.ledger.roll()
    await turns(lambda: not topic.ledger._is_rolling)
    upkeep, deletes = Upkeep(topic), world.ledgers.delete
    topic.apply_policies(replace(topic.policies, retention_seconds=0))

    async def refuse(ledger_id: int) -> None:
        raise QuorumLostError("not now")

    world.ledgers.delete = refuse  # type: ignore[method-assign]
    for _ in range(5):
        assert await upkeep.pass_time(ROUND) == 1
    world.ledgers.delete = deletes  # type: ignore[method-assign]
    await upkeep.pass_time(ROUND)
    await upkeep.rest()


async def test_idle_topics_are_unloaded_and_deleted_on_time(topic: BrokerTopic) -> None:
    upkeep = Upkeep(topic, unload_seconds=400)
    await upkeep.rest()
    await upkeep.pass_time(390 - upkeep.now)
    assert upkeep.loaded.unloaded == []
    topic.apply_policies(replace(topic.policies, inactive_delete_seconds=500))
    await upkeep.pass_time(490 - upkeep.now)
    assert (upkeep.loaded.unloaded, upkeep.deleted) == ([], []), "closed, it would never be deleted"
    await upkeep.pass_time(4 * ROUND)
    assert upkeep.deleted
    topic.apply_policies(replace(topic.policies, inactive_delete_seconds=0))
    await upkeep.pass_time(ROUND)
    assert upkeep.loaded.unloaded == [topic.name]
    await upkeep.pass_time(ROUND)
    assert upkeep.planned == 0, "a topic that is not loaded is forgotten"


async def test_a_reader_that_left_is_dropped_on_time(topic: BrokerTopic) -> None:
    upkeep = Upkeep(topic)
    subscription = await topic.subscribe("reader", start=0, is_durable=False)
    consumer, _ = listen(subscription, SubscriptionType.EXCLUSIVE)
    subscription.remove_consumer(consumer)
    subscription.idle_since_ms = upkeep.ages_ms()
    await upkeep.rest()
    await upkeep.pass_time(IDLE_SECONDS_MAX - upkeep.now)
    assert "reader" in topic.subscriptions
    await upkeep.pass_time(2 * ROUND)
    assert "reader" not in topic.subscriptions


async def test_a_step_of_the_clock_of_ages_makes_every_plan_anew(topic: BrokerTopic) -> None:
    subscription = await topic.subscribe("s", start=0)
    await publish(topic.ledger, "a")
    upkeep = Upkeep(topic)
    topic.apply_policies(replace(topic.policies, message_ttl_seconds=86_400))
    await upkeep.rest()
    upkeep.began_ms += 90_000_000
    await upkeep.pass_time(2 * ROUND)
    assert subscription.backlog == 0


async def test_nothing_is_done_while_the_store_is_out_of_reach_and_nothing_forgotten(topic: BrokerTopic) -> None:
    upkeep = Upkeep(topic)
    upkeep.loaded.is_certain = False
    assert await upkeep.pass_time(60) == 0
    upkeep.loaded.is_certain = True
    assert await upkeep.pass_time(ROUND) == 1
