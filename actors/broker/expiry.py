"""What ends by age: messages that nobody acknowledged in time, and durable subscriptions that nobody uses."""

from __future__ import annotations

import logging

from actors.broker.subscription import Subscription
from actors.broker.topic import Topic
from actors.broker.topic_record import now_ms
from heliograph.errors import HeliographError

log = logging.getLogger(__name__)


async def expire_by_policy(topic: Topic) -> None:
    """Apply the time to live and the expiration of subscriptions; called now and then.

    While the oldest message of the backlogs is young this costs one read, or none: the tail cache and the hint of the
    look before know it. Otherwise the place is found by bisection on the publish time, once for all subscriptions.
    """
    await _expire_subscriptions(topic)
    ttl = topic.policies.message_ttl_seconds
    durable = [s for s in topic.subscriptions.values() if s.is_durable and not s.is_internal]
    if ttl > 0 and durable:
        await expire_older_than(topic, durable, ttl)


async def expire_older_than(topic: Topic, subscriptions: list[Subscription], seconds: int) -> int:
    """Count every message older than that as acknowledged.

    Returns:
        how many entries that took off the backlogs.

    Raises:
        QuorumLostError, BookieError: entries cannot be read now; nothing was changed.
    """
    chain = topic.ledger.chain
    before = now_ms() - 1_000 * seconds
    oldest = max(min((s.topic_mark for s in subscriptions), default=chain.end), chain.first)
    if oldest >= chain.end:
        return 0
    hint = topic.expiry_hint
    if hint[0] != oldest:
        hint = topic.expiry_hint = (oldest, (await topic.reader.entry(oldest)).publish_time_ms)
    if hint[1] >= before:
        return 0
    mark = await topic.index_at_time(before)
    return sum(expire_up_to(subscription, mark) for subscription in subscriptions)


def expire_up_to(subscription: Subscription, mark: int) -> int:
    """Count every entry of the topic before ``mark`` as acknowledged; returns how many that took off the backlog."""
    before = subscription.backlog
    subscription.skip_to(subscription.chain.from_base(mark))
    expired = before - subscription.backlog
    if expired:
        subscription.entries_expired += expired
        subscription.expired_ms = now_ms()
    return expired


async def _expire_subscriptions(topic: Topic) -> None:
    seconds = topic.policies.subscription_expiration_seconds
    if seconds <= 0:
        return
    for subscription in list(topic.subscriptions.values()):
        idle_ms = now_ms() - subscription.idle_since_ms
        if (
            not subscription.is_internal
            and subscription.is_durable
            and not subscription.consumers
            and idle_ms > 1_000 * seconds
        ):
            log.info("%s: subscription %s was not used for %d s", topic.name, subscription.name, idle_ms // 1_000)
            try:
                await topic.unsubscribe(subscription.name)
            except HeliographError as error:
                log.warning("%s: subscription %s: %s", topic.name, subscription.name, error)
