"""Actions on topics that are not used, and since when each is idle.

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
from heliograph.base.clock import NEVER_MS
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
        has_backlog: whether one of them has messages to deliver.
        has_old_ledgers: whether retention will delete ledgers as time passes.
    """

    idle_seconds: float
    subscriptions: int
    has_backlog: bool
    has_old_ledgers: bool


def idle_action(state: IdleState, policies: Policies, unload_seconds: float) -> IdleAction:
    """Return the action for an unused topic (pure).

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
    is_in_use: bool  # then ``since`` is no beginning: the topic may be in use for hours until the next look


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
        """Return what to do with the topic now. Call it after each use and when ``due_ms`` says: the topic is idle from
        the first call on that finds no use since the call before."""
        now, in_use = self._clock(), is_in_use(topic)
        seen = self._seen.get(topic)
        if seen is None or in_use or seen.is_in_use or seen.messages_in != topic.messages_in:
            self._seen[topic] = _Seen(topic.messages_in, now, in_use)
            return IdleAction.KEEP
        idle = now - seen.since
        return self._action(topic, idle) if any(idle >= limit for limit in self._limits(topic)) else IdleAction.KEEP

    def due_ms(self, topic: BrokerTopic, now_ms: int) -> int:
        """Return when ``look`` has to be called again, if nothing happens until then, by the clock of ``now_ms``."""
        seen = self._seen.get(topic)
        if is_in_use(topic):
            return NEVER_MS
        if seen is None or seen.is_in_use or seen.messages_in != topic.messages_in:
            return now_ms
        idle = self._clock() - seen.since
        left = [limit - idle for limit in self._limits(topic)]
        if any(one <= 0 for one in left) and self._action(topic, idle) is not IdleAction.KEEP:
            return now_ms
        return now_ms + round(1_000 * min((one for one in left if one > 0), default=NEVER_MS))

    def _limits(self, topic: BrokerTopic) -> list[float]:
        return [limit for limit in (topic.policies.deletes_after_seconds, self.unload_seconds) if limit > 0]

    def _action(self, topic: BrokerTopic, idle: float) -> IdleAction:
        state = IdleState(idle, topic.users, has_backlog(topic), topic.has_old_ledgers())
        return idle_action(state, topic.policies, self.unload_seconds)


def is_in_use(topic: BrokerTopic) -> bool:
    """Return whether a client is connected to the topic, or an operation is in flight."""
    is_busy = topic.ledger.pending or topic.compaction.is_running
    return bool(topic.producers or topic.has_consumers or is_busy or not topic.is_open)


def has_backlog(topic: BrokerTopic) -> bool:
    """Return whether a subscription has something to deliver."""
    of_users = (s for s in topic.subscriptions.values() if s.is_durable and not s.is_internal)
    return bool(topic.recoveries.pending) or any(s.backlog > 0 for s in of_users)
