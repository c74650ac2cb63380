"""Expiry by age: of messages that were not acknowledged in time, and of durable subscriptions that are not used."""

from __future__ import annotations

import logging

from heliograph.actors.broker.subscription.backlog_quota import give_up
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import NEVER_MS, wall_ms
from heliograph.base.errors import HeliographError

log = logging.getLogger(__name__)


async def expire_by_policy(topic: BrokerTopic) -> None:
    """Apply the time to live of messages and the expiration of subscriptions. Housekeeping calls it.

    While the oldest message of the backlogs is young, this costs at most one read, because the tail cache or
    ``expiry_hint`` has the entry. Otherwise one bisection on the stored time finds the mark for all subscriptions.
    """
    await _expire_subscriptions(topic)
    ttl = topic.policies.message_ttl_seconds
    durable = [s for s in topic.subscriptions.values() if s.is_durable and not s.is_internal]
    if ttl > 0 and durable:
        await expire_older_than(topic, durable, ttl)


def expiry_due_ms(topic: BrokerTopic, now_ms: int) -> int:
    """Return when ``expire_by_policy`` has something to do, if nothing happens until then, by the clock of ages."""
    policies, due = topic.policies, NEVER_MS
    durable = [s for s in topic.subscriptions.values() if s.is_durable and not s.is_internal]
    if policies.subscription_expiration_seconds > 0:
        unused = [s.idle_since_ms for s in durable if not s.consumers]
        due = min(unused, default=NEVER_MS) + 1_000 * policies.subscription_expiration_seconds
    if policies.message_ttl_seconds > 0 and (oldest := _oldest_of(topic, durable)) < topic.ledger.chain.end:
        index, stored_ms = topic.expiry_hint
        due = min(due, stored_ms + 1_000 * policies.message_ttl_seconds if index == oldest else now_ms)
    return due


def _oldest_of(topic: BrokerTopic, subscriptions: list[Subscription]) -> int:
    """Return the index of the oldest entry of the backlogs, the end of the topic if there is none."""
    chain = topic.ledger.chain
    return max(min((s.topic_mark for s in subscriptions), default=chain.end), chain.first)


async def expire_older_than(topic: BrokerTopic, subscriptions: list[Subscription], seconds: int) -> int:
    """Acknowledge every message that was stored more than ``seconds`` ago, by the topic's clock.

    Returns:
        how many entries left the backlogs.

    Raises:
        QuorumLostError, BookieError: entries cannot be read now; nothing was changed.
    """
    chain = topic.ledger.chain
    before = topic.ledger.ages.now_ms() - 1_000 * seconds
    oldest = _oldest_of(topic, subscriptions)
    if oldest >= chain.end:
        return 0
    hint = topic.expiry_hint
    if hint[0] != oldest:
        hint = topic.expiry_hint = (oldest, await topic.reader.stored_ms(oldest))
    if hint[1] >= before:
        return 0
    mark = await topic.reader.index_at_time(before, stored=True)
    why = f"stored more than {seconds} s ago"
    return sum([await expire_up_to(topic, subscription, mark, why) for subscription in subscriptions])


async def expire_up_to(topic: BrokerTopic, subscription: Subscription, mark: int, why: str) -> int:
    """Acknowledge every entry of the topic before ``mark`` and return how many entries left the backlog."""
    expired = await give_up(topic.ledger, topic.reader, subscription, mark, why)
    if expired.entries:
        subscription.messages_expired += expired.messages
        subscription.expired_ms = wall_ms()
    return expired.entries


async def _expire_subscriptions(topic: BrokerTopic) -> None:
    seconds = topic.policies.subscription_expiration_seconds
    if seconds <= 0:
        return
    for subscription in list(topic.subscriptions.values()):
        idle_ms = topic.ledger.ages.now_ms() - subscription.idle_since_ms
        if (
            not subscription.is_internal
            and subscription.is_durable
            and not subscription.consumers
            and idle_ms > 1_000 * seconds
        ):
            log.info("%s: subscription %s is removed, unused for %d s", topic.name, subscription.name, idle_ms // 1_000)
            try:
                await topic.unsubscribe(subscription.name)
            except HeliographError as error:
                log.warning("%s: subscription %s cannot be removed: %s", topic.name, subscription.name, error)
