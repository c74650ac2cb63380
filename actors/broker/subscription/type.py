"""The types of subscriptions and the dispatcher of each."""

from __future__ import annotations

import enum

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import DelayedEntries, Dispatcher
from heliograph.actors.broker.dispatch.exclusive import ExclusiveDispatcher
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.dispatch.key_shared import KeySharedDispatcher
from heliograph.actors.broker.dispatch.shared import SharedDispatcher


class SubscriptionType(enum.Enum):
    """The subscription types, with Pulsar's names.

    Attributes:
        is_shared: several consumers get messages at the same time; only these types honour delivery times.
    """

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"

    def __init__(self, value: str) -> None:
        self.is_shared = value in ("Shared", "Key_Shared")


def make_dispatcher(
    kind: SubscriptionType, cursor: Cursor, choice: FailoverChoice, delayed: DelayedEntries, *, splits_keys: bool
) -> Dispatcher:
    if kind is SubscriptionType.EXCLUSIVE:
        return ExclusiveDispatcher(cursor)
    if kind is SubscriptionType.FAILOVER:
        return ExclusiveDispatcher(cursor, choice)
    if kind is SubscriptionType.SHARED:
        return SharedDispatcher(cursor, delayed)
    assert kind is SubscriptionType.KEY_SHARED, "every type has its dispatcher"
    return KeySharedDispatcher(cursor, delayed, splits_keys=splits_keys)  # I16
