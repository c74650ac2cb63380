"""The pending acknowledgements of one subscription, with their bounds (pure)."""

from __future__ import annotations

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState

PENDING_MESSAGES_PER_CONSUMER_MAX = 50_000  # delivered and not acknowledged, where policies set no limit
PENDING_MESSAGES_MAX = 200_000  # the same over the subscription; delivery goes on at half of it
UNLIMITED = 1 << 62


class PendingAcks:
    """The entries that were delivered and not acknowledged. Each is pending at one consumer.

    ``is_blocked`` is True from the limit of the subscription until half of it is reached (I15).
    """

    def __init__(self) -> None:
        self.is_blocked = False
        self._consumer_max = PENDING_MESSAGES_PER_CONSUMER_MAX
        self._messages_max = PENDING_MESSAGES_MAX
        self._consumers: dict[int, ConsumerState] = {}  # entry -> the consumer that it is pending at
        self._messages = 0  # 0 <= messages, the sum over the consumers

    def set_limits(self, per_consumer: int, per_subscription: int, consumers: list[ConsumerState]) -> None:
        """Set how many messages may be pending; 0 means any number. A consumer above its limit is blocked at once."""
        assert per_consumer >= 0, "a limit is a number of messages"
        assert per_subscription >= 0, "a limit is a number of messages"
        self._consumer_max = per_consumer or UNLIMITED
        self._messages_max = per_subscription or UNLIMITED
        self.is_blocked = self._messages >= self._messages_max
        for consumer in consumers:
            consumer.is_blocked = consumer.pending_messages >= self._consumer_max

    def __contains__(self, index: int) -> bool:
        return index in self._consumers

    def add(self, consumer: ConsumerState, index: int, messages: int) -> None:
        """Note the delivery of an entry, which costs the consumer ``messages`` permits."""
        assert index not in self._consumers, "an entry is pending at one consumer at a time"
        assert messages > 0, "an entry has messages"
        consumer.permits -= messages
        consumer.pending[index] = messages
        consumer.pending_messages += messages
        self._consumers[index] = consumer
        self._messages += messages
        if consumer.pending_messages >= self._consumer_max:
            consumer.is_blocked = True
        if self._messages >= self._messages_max:
            self.is_blocked = True

    def release(self, index: int) -> ConsumerState | None:
        """End the pending acknowledgement of an entry. Return its consumer, None if the entry was not pending."""
        consumer = self._consumers.pop(index, None)
        if consumer is None:
            return None
        self._lighten(consumer, consumer.pending.pop(index))
        return consumer

    def shrink(self, index: int, messages: int) -> None:
        """Lower the number of pending messages of an entry to ``messages``. Do nothing if it is not pending."""
        consumer = self._consumers.get(index)
        if consumer is not None and messages < (before := consumer.pending[index]):
            assert messages > 0, "an entry without open messages is acknowledged as a whole"
            consumer.pending[index] = messages
            self._lighten(consumer, before - messages)

    def up_to(self, index: int) -> list[int]:
        return [pending for pending in self._consumers if pending <= index]

    def _lighten(self, consumer: ConsumerState, messages: int) -> None:
        consumer.pending_messages -= messages
        self._messages -= messages
        assert self._messages >= consumer.pending_messages >= 0, "what is released was pending"
        if consumer.is_blocked and consumer.pending_messages <= self._consumer_max // 2:
            consumer.is_blocked = False
        if self.is_blocked and self._messages <= self._messages_max // 2:
            self.is_blocked = False

    def clear(self, consumers: list[ConsumerState]) -> None:
        """Release every entry (seek, or the last consumer left)."""
        for consumer in consumers:
            consumer.pending.clear()
            consumer.pending_messages = 0
            consumer.is_blocked = False
        self._consumers.clear()
        self._messages = 0
        self.is_blocked = False
