"""Topics that nobody uses: what becomes of them, and since when that is so.

A topic that a policy wants gone is deleted. One that merely takes up memory is closed, unless time itself still has
something to do with it (retention that will give ledgers back, messages that will expire); whoever asks for it next
loads it again.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from actors.broker.retention import UNLIMITED
from actors.broker.topic import Topic
from metadata.model import Policies

WHEN_CAUGHT_UP = "delete_when_subscriptions_caught_up"


class Fate(enum.Enum):
    """KEEP: as it is. UNLOAD: close it here. DELETE: for good, with everything in it."""

    KEEP = "keep"
    UNLOAD = "unload"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Standing:
    """What a topic is like while nobody produces to it or consumes from it.

    Args:
        idle_seconds: since its last use, or since it was loaded.
        subscriptions: how many it has.
        has_backlog: whether one of them has something to deliver.
        has_old_ledgers: whether retention is going to give something back as time goes by.
    """

    idle_seconds: float
    subscriptions: int
    has_backlog: bool
    has_old_ledgers: bool


def fate_of(standing: Standing, policies: Policies, unload_seconds: float) -> Fate:
    """What becomes of a topic that nobody uses (pure).

    Args:
        unload_seconds: of idleness after which a topic leaves memory, 0 never.
    """
    may_be_deleted = policies.inactive_delete_seconds > 0 and (
        not standing.has_backlog if policies.inactive_delete_mode == WHEN_CAUGHT_UP else standing.subscriptions == 0
    )
    if may_be_deleted and standing.idle_seconds >= policies.inactive_delete_seconds:
        return Fate.DELETE
    time_has_work = (
        may_be_deleted
        or standing.has_old_ledgers
        or (standing.has_backlog and policies.message_ttl_seconds > 0)
        or (standing.has_backlog and policies.backlog_quota_seconds != UNLIMITED)
        or (standing.subscriptions > 0 and policies.subscription_expiration_seconds > 0)
    )
    if unload_seconds > 0 and standing.idle_seconds >= unload_seconds and not time_has_work:
        return Fate.UNLOAD
    return Fate.KEEP


@dataclass(slots=True)
class _Seen:
    messages_in: int
    since: float


class IdleTopics:
    """Remembers since when each loaded topic is idle.

    Args:
        unload_seconds: see ``fate_of``.
        clock: seconds, only forward.
    """

    def __init__(self, unload_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._unload_seconds = unload_seconds
        self._clock = clock
        self._seen: WeakKeyDictionary[Topic, _Seen] = WeakKeyDictionary()

    def look(self, topic: Topic) -> Fate:
        """What becomes of the topic now. To be asked again and again: use in between two looks is noticed."""
        now = self._clock()
        seen = self._seen.get(topic)
        if seen is None or is_in_use(topic) or seen.messages_in != topic.messages_in:
            self._seen[topic] = _Seen(topic.messages_in, now)
            return Fate.KEEP
        policies = topic.policies
        idle = now - seen.since
        if idle < min(policies.inactive_delete_seconds or float("inf"), self._unload_seconds or float("inf")):
            return Fate.KEEP
        standing = Standing(idle, topic.users, has_backlog(topic), topic.has_old_ledgers())
        return fate_of(standing, policies, self._unload_seconds)


def is_in_use(topic: Topic) -> bool:
    """Whether anybody is connected to it, or something is under way."""
    is_busy = topic.ledger.pending or topic.compaction.is_running
    return bool(topic.producers or topic.has_consumers or is_busy or not topic.is_open)


def has_backlog(topic: Topic) -> bool:
    """Whether a subscription has something to deliver."""
    of_users = (s for s in topic.subscriptions.values() if s.is_durable and not s.is_internal)
    return bool(topic.unavailable) or any(s.backlog > 0 for s in of_users)
