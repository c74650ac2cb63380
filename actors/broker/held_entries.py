"""Who holds which entries unacknowledged, how often they were delivered again, and when that is too much (pure)."""

from __future__ import annotations

from actors.broker.dispatch import ConsumerState

HELD_MESSAGES_PER_CONSUMER_MAX = 50_000  # delivered and not acknowledged, where policies say nothing else
HELD_MESSAGES_MAX = 200_000  # the same over the subscription; delivery goes on at half of it
UNLIMITED = 1 << 62


def can_take(consumer: ConsumerState) -> bool:
    """Whether a consumer asked for more, has a socket that takes it, and has acknowledged enough."""
    return consumer.permits > 0 and consumer.is_writable and not consumer.is_blocked


class HeldEntries:
    """The entries that consumers of a subscription hold, each held by one. ``is_blocked``: too many, for now (I15)."""

    def __init__(self) -> None:
        self.is_blocked = False
        self._consumer_max = HELD_MESSAGES_PER_CONSUMER_MAX
        self._messages_max = HELD_MESSAGES_MAX
        self._holders: dict[int, ConsumerState] = {}
        self._messages = 0
        self._redeliveries: dict[int, int] = {}  # of entries held, or given back

    def set_limits(self, per_consumer: int, per_subscription: int, consumers: list[ConsumerState]) -> None:
        """How many messages may be held; 0 for any number. Who is above it now is blocked now."""
        self._consumer_max = per_consumer or UNLIMITED
        self._messages_max = per_subscription or UNLIMITED
        self.is_blocked = self._messages >= self._messages_max
        for consumer in consumers:
            consumer.is_blocked = consumer.held_messages >= self._consumer_max

    def redeliveries(self, index: int) -> int:
        """How often the entry was given back."""
        return self._redeliveries.get(index, 0)

    def __contains__(self, index: int) -> bool:
        return index in self._holders

    def hold(self, consumer: ConsumerState, index: int, messages: int) -> None:
        """The entry goes to a consumer, at the price of permits."""
        assert index not in self._holders, "an entry is held by one consumer at a time"
        consumer.permits -= messages
        consumer.held[index] = messages
        consumer.held_messages += messages
        self._holders[index] = consumer
        self._messages += messages
        if consumer.held_messages >= self._consumer_max:
            consumer.is_blocked = True
        if self._messages >= self._messages_max:
            self.is_blocked = True

    def let_go(self, index: int) -> ConsumerState | None:
        """The entry is held no more; returns who held it."""
        consumer = self._holders.pop(index, None)
        if consumer is None:
            return None
        self._lighten(consumer, consumer.held.pop(index))
        return consumer

    def shrink(self, index: int, messages: int) -> None:
        """The entry, if it is held, is so many messages from now on; never more than before."""
        consumer = self._holders.get(index)
        if consumer is not None and messages < (before := consumer.held[index]):
            consumer.held[index] = messages
            self._lighten(consumer, before - messages)

    def count_redelivery(self, index: int) -> None:
        """A consumer gave the entry back."""
        self._redeliveries[index] = self._redeliveries.get(index, 0) + 1

    def forget(self, index: int) -> None:
        """The entry is acknowledged."""
        self._redeliveries.pop(index, None)

    def up_to(self, index: int) -> list[int]:
        """Entries held up to and with ``index``."""
        return [held for held in self._holders if held <= index]

    def _lighten(self, consumer: ConsumerState, messages: int) -> None:
        consumer.held_messages -= messages
        self._messages -= messages
        if consumer.is_blocked and consumer.held_messages <= self._consumer_max // 2:
            consumer.is_blocked = False
        if self.is_blocked and self._messages <= self._messages_max // 2:
            self.is_blocked = False

    def clear(self, consumers: list[ConsumerState]) -> None:
        """Nobody holds anything (seek, or the last consumer left)."""
        for consumer in consumers:
            consumer.held.clear()
            consumer.held_messages = 0
            consumer.is_blocked = False
        self._holders.clear()
        self._redeliveries.clear()
        self._messages = 0
        self.is_blocked = False
