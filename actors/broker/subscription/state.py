"""The states of a subscription (pure)."""

from __future__ import annotations

import enum

from heliograph.base.lifecycle import Lifecycle


class SubscriptionState(enum.Enum):
    """Whether a subscription takes consumers and delivers entries."""

    RECOVERING = "recovering"
    UNAVAILABLE = "unavailable"
    OPEN = "open"
    RESETTING = "resetting"
    CLOSED = "closed"


SUBSCRIPTION_LIFECYCLE = Lifecycle(
    {
        SubscriptionState.RECOVERING: (
            "Its cursor is being recovered from the previous owner. Consumers and administration wait for it.",
            {SubscriptionState.OPEN, SubscriptionState.UNAVAILABLE, SubscriptionState.CLOSED},
        ),
        SubscriptionState.UNAVAILABLE: (
            "Its cursor, or the compacted form that it reads, cannot be loaded now. It is tried again.",
            {SubscriptionState.RECOVERING, SubscriptionState.CLOSED},
        ),
        SubscriptionState.OPEN: (
            "Consumers may join, and entries are delivered to them.",
            {SubscriptionState.RESETTING, SubscriptionState.CLOSED},
        ),
        SubscriptionState.RESETTING: (
            "A seek is being stored. The consumers were disconnected, new ones are refused until it is durable.",
            {SubscriptionState.OPEN, SubscriptionState.CLOSED},
        ),
        SubscriptionState.CLOSED: (
            "Nothing is delivered any more: the topic was closed or lost, or the subscription was removed.",
            (),
        ),
    }
)
