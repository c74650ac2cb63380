"""Settings that subscriptions inherit from their broker and from their topic."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.limits.dispatch_rate import DispatchRate
from heliograph.actors.broker.metrics import Traffic
from heliograph.actors.broker.records.activity import UNWATCHED, TopicActivity
from heliograph.actors.broker.subscription.recovery import RecoveryQueue
from heliograph.actors.broker.subscription.witness import Witness
from heliograph.metadata.model import Policies

COMPACTIONS_AT_ONCE_MAX = 2  # of the topics of a broker, each of which remembers all keys; others wait  # I15


@dataclass(slots=True)
class ConsumerSetting:
    """Settings that all subscriptions of a broker inherit; they may change.

    Args:
        failover_delay_seconds: from a change of the active consumer to its first delivery.
        deletions_kept_seconds: how long the compacted form keeps messages that delete a key, after the compaction that
            first read them.
        compacting: held by each compaction.
        splits_keys: True if Key_Shared halves hash ranges for new consumers instead of using a ring.
    """

    failover_delay_seconds: float = 1.0
    splits_keys: bool = False
    deletions_kept_seconds: int = 86_400
    compacting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(COMPACTIONS_AT_ONCE_MAX))


@dataclass(frozen=True, slots=True)
class SubscriptionSetting:
    """Settings that a subscription inherits from its topic and broker.

    Args:
        choice: of the active consumer of Failover subscriptions.
        topic_rate: shared by all subscriptions of the topic.
        recoveries: shared by all topics of the broker.
        witness: of the topic's ownership.
        topic: its full name, for the spans of deliveries.
        traffic: counts deliveries, of all topics of the broker.
        activity: of the topic.
    """

    policies: Policies = field(default_factory=Policies)
    choice: FailoverChoice = field(default_factory=lambda: FailoverChoice(0))
    consumers: ConsumerSetting = field(default_factory=ConsumerSetting)
    topic_rate: DispatchRate = field(default_factory=DispatchRate)
    recoveries: RecoveryQueue = field(default_factory=RecoveryQueue)
    witness: Witness = field(default_factory=Witness)
    traffic: Traffic = field(default_factory=Traffic)
    topic: str = ""
    activity: TopicActivity = UNWATCHED
