"""What is done with topics that are not used, and since when each is idle.

A topic that a policy wants gone is deleted. A topic that only takes up memory is unloaded, unless something will happen
to it as time passes (retention deletes ledgers, messages expire). The next use loads it again.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from heliograph.actors.broker.managed_ledger.retention import UNLIMITED
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.metadata.model import Policies

WHEN_CAUGHT_UP = "delete_when_subscriptions_caught_up"


class IdleAction(enum.Enum):
    """KEEP: leave it loaded. UNLOAD: close it on this broker. DELETE: delete it for good."""

    KEEP = "keep"
    UNLOAD = "unload"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class IdleState:
    """The state of a topic without producers and consumers.

    Args:
        idle_seconds: since its last use, or since it was loaded.
        subscriptions: how many it has.
        has_backlog: whether one of them has something to deliver.
        has_old_ledgers: whether retention will delete ledgers as time passes.
    """

    idle_seconds: float
    subscriptions: int
    has_backlog: bool
    has_old_ledgers: bool


def idle_action(state: IdleState, policies: Policies, unload_seconds: float) -> IdleAction:
    """Return what to do with a topic that is not used (pure).

    Args:
        unload_seconds: the idle time after which a topic leaves memory, 0 for never.
    """
    may_be_deleted = policies.deletes_after_seconds > 0 and (
        not state.has_backlog if policies.inactive_delete_mode == WHEN_CAUGHT_UP else state.subscriptions == 0
    )
    if may_be_deleted and state.idle_seconds >= policies.deletes_after_seconds:
        return IdleAction.DELETE
    time_has_work = (
        may_be_deleted
        or state.has_old_ledgers
        or (state.has_backlog and policies.message_ttl_seconds > 0)
        or (state.has_backlog and policies.backlog_quota_seconds != UNLIMITED)
        or (state.subscriptions > 0 and policies.subscription_expiration_seconds > 0)
    )
    if unload_seconds > 0 and state.idle_seconds >= unload_seconds and not time_has_work:
        return IdleAction.UNLOAD
    return IdleAction.KEEP


@dataclass(slots=True)
class _Seen:
    messages_in: int
    since: float


class IdleTopics:
    """Notes since when each loaded topic is idle.

    Args:
        unload_seconds: the idle time after which a topic leaves memory, 0 for never; it may change.
        clock: seconds that only grow.
    """

    def __init__(self, unload_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.unload_seconds = unload_seconds
        self._clock = clock
        self._seen: WeakKeyDictionary[BrokerTopic, _Seen] = WeakKeyDictionary()

    def look(self, topic: BrokerTopic) -> IdleAction:
        """Return what to do with the topic now. Call it regularly: it notices use between two calls."""
        now = self._clock()
        seen = self._seen.get(topic)
        if seen is None or is_in_use(topic) or seen.messages_in != topic.messages_in:
            self._seen[topic] = _Seen(topic.messages_in, now)
            return IdleAction.KEEP
        policies = topic.policies
        idle = now - seen.since
        if idle < min(policies.deletes_after_seconds or float("inf"), self.unload_seconds or float("inf")):
            return IdleAction.KEEP
        state = IdleState(idle, topic.users, has_backlog(topic), topic.has_old_ledgers())
        return idle_action(state, policies, self.unload_seconds)


def is_in_use(topic: BrokerTopic) -> bool:
    """Return whether a client is connected to the topic, or an operation is in flight."""
    is_busy = topic.ledger.pending or topic.compaction.is_running
    return bool(topic.producers or topic.has_consumers or is_busy or not topic.is_open)


def has_backlog(topic: BrokerTopic) -> bool:
    """Return whether a subscription has something to deliver."""
    of_users = (s for s in topic.subscriptions.values() if s.is_durable and not s.is_internal)
    return bool(topic.recoveries.pending) or any(s.backlog > 0 for s in of_users)
