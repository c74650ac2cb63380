"""The statistics of a subscription and its consumers, in Pulsar's shapes and names."""

from __future__ import annotations

import time
from typing import Any

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.message_count import message_backlog
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.base.clock import iso_time

Json = dict[str, Any]

DRAINING_SHOWN_MAX = 100  # hashes of one consumer
RANGES_SHOWN_MAX = 1_000  # of one consumer


def sample_rates(subscription: Subscription, now: float) -> None:
    """Note the counters of a subscription and its consumers for the rates of the next minute.

    Args:
        now: seconds of the monotonic clock.
    """
    subscription.window.sample(now, *_counters(subscription))
    for consumer in subscription.consumers.values():
        consumer.sample_rates(now)


def subscription_rates(subscription: Subscription, now: float) -> tuple[float, ...]:
    """Return how many messages and bytes are delivered, and entries acknowledged and expired, each second."""
    return subscription.window.rates(now, *_counters(subscription))


def subscription_stats(subscription: Subscription, ledger: ManagedLedger, storage: int) -> Json:
    """Return the statistics of one subscription. ``msgBacklog`` counts entries, as in Pulsar, and ``backlogMessages``
    their messages; ``backlogEntriesUncounted`` are those of the entries that count as one message each.

    Args:
        storage: bytes of the topic, from which the bytes of the backlog are estimated.
    """
    dispatcher = subscription.dispatcher
    entries = ledger.chain.end - ledger.chain.first
    messages, uncounted = message_backlog(subscription, ledger)
    active = dispatcher.active
    delayed = subscription.delays.index.count
    now = time.monotonic()
    consumers = [consumer_stats(subscription, consumer, now) for consumer in subscription.consumers.values()]
    delivered, size, acknowledged, expired = subscription_rates(subscription, now)
    return {
        "msgRateOut": delivered,
        "msgThroughputOut": size,
        "msgRateRedeliver": sum((one["msgRateRedeliver"] for one in consumers), 0.0),
        "msgRateExpired": expired,
        "messageAckRate": acknowledged,
        "msgBacklog": subscription.backlog,
        "backlogMessages": messages,
        "backlogEntriesUncounted": uncounted,
        "msgBacklogNoDelayed": max(subscription.backlog - delayed, 0),
        "backlogSize": storage * subscription.backlog // entries if entries else 0,
        "msgOutCounter": subscription.messages_out,
        "bytesOutCounter": subscription.bytes_out,
        "messageAckCounter": subscription.entries_acknowledged,
        "totalMsgExpired": subscription.messages_expired,
        "lastExpireTimestamp": subscription.expired_ms,
        "unackedMessages": sum(c.state.pending_messages for c in subscription.consumers.values()),
        "type": subscription.kind.value if subscription.consumers else "",
        "activeConsumerName": active.name if active is not None else "",
        "msgInReplay": dispatcher.replay_count,
        "msgDropCount": subscription.messages_dropped,
        "msgDelayed": delayed,
        "isDurable": subscription.is_durable,
        "isReplicated": False,
        "blockedSubscriptionOnUnackedMsgs": dispatcher.is_blocked,
        "nonContiguousDeletedMessagesRanges": subscription.cursor.holes,
        "drainingHashesCount": dispatcher.draining_hashes,
        "keySharedMode": _mode(subscription) if dispatcher.delivers_by_key else None,
        "allowOutOfOrderDelivery": any(c.state.allow_out_of_order for c in subscription.consumers.values()),
        "consumersAfterMarkDeletePosition": {},
        "subscriptionProperties": dict(subscription.properties),
        "consumers": consumers,
    }


def consumer_stats(subscription: Subscription, consumer: SubscriptionConsumer, now: float) -> Json:
    """Return the statistics of one consumer at a time of the monotonic clock."""
    dispatcher = subscription.dispatcher
    rates = consumer.rates(now)
    stats: Json = {
        "consumerName": consumer.name,
        "availablePermits": consumer.state.permits,
        "unackedMessages": consumer.state.pending_messages,
        "blockedConsumerOnUnackedMsgs": consumer.state.is_blocked,
        "oldestUnackedMessageId": _oldest(subscription, consumer),
        "msgRateOut": rates.messages,
        "msgThroughputOut": rates.size,
        "msgRateRedeliver": rates.redelivered,
        "msgOutCounter": consumer.messages_out,
        "bytesOutCounter": consumer.bytes_out,
        "avgMessagesPerEntry": round(consumer.messages_out / consumer.entries_out) if consumer.entries_out else 0,
        "priorityLevel": consumer.state.priority,
        "address": consumer.channel.peer,
        "connectedSince": iso_time(consumer.connected_ms),
        "lastConsumedFlowTimestamp": consumer.flow_ms,
        "lastConsumedTimestamp": consumer.delivered_ms,
        "lastAckedTimestamp": consumer.acknowledged_ms,
        "clientVersion": consumer.channel.client_version,
        "metadata": dict(consumer.metadata),
    }
    if dispatcher.delivers_by_key:
        ranges = dispatcher.ranges_of(consumer.state)[:RANGES_SHOWN_MAX]
        draining = dispatcher.draining_of(consumer.state)
        stats |= {
            "keyHashRanges": [f"[{first}, {last}]" for first, last in ranges],
            "keyHashRangeArrays": [[first, last] for first, last in ranges],
            "drainingHashesCount": len(draining),
            "drainingHashesUnackedMessages": sum(count for _, count in draining),
            "drainingHashes": [
                {"hash": key_hash, "unackMsgs": count} for key_hash, count in draining[:DRAINING_SHOWN_MAX]
            ],
        }
    return stats


def _oldest(subscription: Subscription, consumer: SubscriptionConsumer) -> str:
    """Return the position of the entry that a consumer has held longest, by the order of delivery; empty for none."""
    index = next(iter(consumer.state.pending), None)
    if index is None or index < subscription.chain.first:
        return ""
    return str(subscription.chain.position_at(index))


def _mode(subscription: Subscription) -> str:
    is_sticky = any(consumer.state.key_ranges is not None for consumer in subscription.consumers.values())
    return "STICKY" if is_sticky else "AUTO_SPLIT"


def _counters(subscription: Subscription) -> tuple[int, int, int, int]:
    return (
        subscription.messages_out,
        subscription.bytes_out,
        subscription.entries_acknowledged,
        subscription.messages_expired,
    )
