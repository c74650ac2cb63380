"""The types of subscriptions and the dispatcher of each."""

from __future__ import annotations

import enum

from actors.broker.cursor import Cursor
from actors.broker.dispatch import Dispatcher, Waiting
from actors.broker.dispatch_exclusive import ExclusiveDispatcher
from actors.broker.dispatch_key_shared import KeySharedDispatcher
from actors.broker.dispatch_shared import SharedDispatcher
from actors.broker.failover_choice import FailoverChoice
from actors.broker.key_ring import KeyRing
from actors.broker.key_split import KeySplit


class SubscriptionType(enum.Enum):
    """Pulsar's names."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"

    @property
    def is_shared(self) -> bool:
        """Whether several consumers get messages at the same time; only these types honour delivery times."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


def make_dispatcher(
    kind: SubscriptionType, cursor: Cursor, choice: FailoverChoice, waiting: Waiting, *, splits_keys: bool
) -> Dispatcher:
    """The dispatcher of a type."""
    if kind is SubscriptionType.EXCLUSIVE:
        return ExclusiveDispatcher(cursor)
    if kind is SubscriptionType.FAILOVER:
        return ExclusiveDispatcher(cursor, choice)
    if kind is SubscriptionType.SHARED:
        return SharedDispatcher(cursor, waiting)
    assert kind is SubscriptionType.KEY_SHARED, "every type has its dispatcher"
    return KeySharedDispatcher(cursor, waiting, KeyRing(KeySplit() if splits_keys else None))  # I16
