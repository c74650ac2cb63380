"""What is done with topics that are not used."""

from __future__ import annotations

import gc
from collections import deque

import pytest

from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.idle_topics import IdleAction, IdleState, IdleTopics, idle_action
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import Policies
from tests.unit.broker.topic_world import publish, topic_on
from tests.unit.broker.world import World

IDLE = IdleState(idle_seconds=100, subscriptions=0, has_backlog=False, has_old_ledgers=False)
READ = IdleState(idle_seconds=100, subscriptions=1, has_backlog=False, has_old_ledgers=False)
UNREAD = IdleState(idle_seconds=100, subscriptions=1, has_backlog=True, has_old_ledgers=False)
TRIMMED_LATER = IdleState(idle_seconds=100, subscriptions=1, has_backlog=False, has_old_ledgers=True)
CAUGHT_UP = "delete_when_subscriptions_caught_up"


@pytest.mark.parametrize(
    ("state", "policies", "unload_seconds", "action"),
    [
        (IDLE, Policies(), 0, IdleAction.KEEP),
        (IDLE, Policies(), 101, IdleAction.KEEP),
        (IDLE, Policies(), 100, IdleAction.UNLOAD),
        (UNREAD, Policies(), 100, IdleAction.UNLOAD),
        (IDLE, Policies(inactive_delete_seconds=100), 100, IdleAction.DELETE),
        (IDLE, Policies(inactive_delete_seconds=101), 100, IdleAction.KEEP),  # closed, it would never be deleted
        (READ, Policies(inactive_delete_seconds=100), 0, IdleAction.KEEP),
        (READ, Policies(inactive_delete_seconds=100), 100, IdleAction.UNLOAD),
        (READ, Policies(inactive_delete_seconds=100, inactive_delete_mode=CAUGHT_UP), 0, IdleAction.DELETE),
        (UNREAD, Policies(inactive_delete_seconds=100, inactive_delete_mode=CAUGHT_UP), 0, IdleAction.KEEP),
        (UNREAD, Policies(message_ttl_seconds=1_000), 100, IdleAction.KEEP),
        (READ, Policies(message_ttl_seconds=1_000), 100, IdleAction.UNLOAD),
        (UNREAD, Policies(backlog_quota_seconds=1_000), 100, IdleAction.KEEP),
        (READ, Policies(subscription_expiration_seconds=1_000), 100, IdleAction.KEEP),
        (IDLE, Policies(subscription_expiration_seconds=1_000), 100, IdleAction.UNLOAD),
        (TRIMMED_LATER, Policies(), 100, IdleAction.KEEP),
    ],
)
def test_what_becomes_of_an_idle_topic(
    state: IdleState, policies: Policies, unload_seconds: float, action: IdleAction
) -> None:
    assert idle_action(state, policies, unload_seconds) is action


async def test_a_topic_without_entries_has_no_queue_of_its_own(topic: BrokerTopic) -> None:
    producer = TopicProducer(1, "p", 0, channel=None)  # type: ignore[arg-type]  # nothing is sent
    parts = (producer, topic, topic.admission, topic.ledger, topic.ledger._tail)
    queues = [found for found in gc.get_referents(*(vars(part) for part in parts)) if isinstance(found, deque)]
    assert len(queues) == 3
    assert all(queue.maxlen == 0 for queue in queues)  # shared by all topics
    await publish(topic.ledger, "k", "k")
    assert topic.ledger.chain.end == 2
    assert not any(queues)


async def test_a_topic_is_idle_since_its_last_use_although_nobody_looked_for_hours(
    world: World, store: MemoryStore
) -> None:
    """A client that is connected and does nothing is no reason for a look; that it leaves is one."""
    topic, at = await topic_on(world, store), 0.0
    idle = IdleTopics(unload_seconds=600, clock=lambda: at)
    topic.admission.producers.connected["p"] = TopicProducer(1, "p", 0, channel=None)  # type: ignore[arg-type]  # nothing is sent
    assert idle.look(topic) is IdleAction.KEEP
    at = 1_700.0
    topic.admission.producers.connected.clear()
    assert idle.due_ms(topic, 0) == 0
    assert idle.look(topic) is IdleAction.KEEP
    assert idle.due_ms(topic, 0) == 600_000
    at += 600
    assert idle.look(topic) is IdleAction.UNLOAD
