"""Exclusive and Failover: one consumer at a time gets every entry, in order (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from actors.broker.cursor import Cursor
from actors.broker.dispatch import ConsumerState, Delivery
from actors.broker.failover_choice import FailoverChoice
from actors.broker.topic_entry import TopicEntry
from heliograph.errors import ConsumerBusyError


class ExclusiveDispatcher:
    """Delivers to the active consumer only.

    Args:
        choice: None for Exclusive, where a second consumer is refused.

    While ``is_held_off`` nothing is delivered: the active consumer has changed, and what the one before acknowledges
    is still on its way. ``resume`` ends that.
    """

    def __init__(self, cursor: Cursor, choice: FailoverChoice | None = None) -> None:
        self._cursor = cursor
        self._choice = choice
        self._consumers: list[ConsumerState] = []
        self.active: ConsumerState | None = None
        self.is_held_off = False
        self.read_index = cursor.mark

    @property
    def consumers(self) -> list[ConsumerState]:
        """See Dispatcher."""
        return self._consumers

    @property
    def replay_count(self) -> int:
        """See Dispatcher."""
        return 0

    @property
    def due_count(self) -> int:
        """See Dispatcher."""
        return 0

    @property
    def is_blocked(self) -> bool:
        """See Dispatcher."""
        return False

    def add(self, consumer: ConsumerState) -> None:
        """See Dispatcher."""
        if self._choice is None and self._consumers:
            raise ConsumerBusyError("the exclusive subscription has its consumer already")
        self._consumers.append(consumer)
        self._elect()

    def remove(self, consumer: ConsumerState) -> None:
        """See Dispatcher."""
        if consumer in self._consumers:
            self._consumers.remove(consumer)
            self._elect()

    def next_wanted(self, end: int) -> int | None:
        """See Dispatcher."""
        active = self.active
        if active is None or active.permits <= 0 or not active.is_writable or self.is_held_off:
            return None
        index = self._cursor.next_unacknowledged(self.read_index)
        return index if index < end else None

    def deliver(self, index: int, entry: TopicEntry, messages: int) -> Delivery:
        """See Dispatcher."""
        active = self.active
        assert active is not None, "an entry is wanted only when there is someone to take it"
        assert index >= self.read_index, "one consumer gets entries in order"
        self.read_index = index + 1
        active.permits -= messages
        active.held[index] = messages
        active.held_messages += messages
        return Delivery(active, 0)

    def skip(self, index: int) -> None:
        """See Dispatcher."""
        self.read_index = index + 1

    def make_due(self, indexes: Iterable[int]) -> None:
        """See Dispatcher. Order matters here: nothing waits for its time."""

    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """See Dispatcher. One consumer gets everything, so its permits are the limit, as in Pulsar."""

    def resume(self) -> None:
        """The one before had time enough: deliver what is not acknowledged by now."""
        self.is_held_off = False
        self.rewind()

    def acknowledged(self, index: int) -> None:
        """See Dispatcher."""
        if self.active is not None:
            self.active.held_messages -= self.active.held.pop(index, 0)

    def partly_acknowledged(self, index: int, messages: int) -> None:
        """See Dispatcher."""
        active = self.active
        if active is not None and messages < active.held.get(index, 0):
            active.held_messages -= active.held[index] - messages
            active.held[index] = messages

    def acknowledged_up_to(self, index: int) -> None:
        """See Dispatcher. Entries are held in order, so the cost is that of the entries acknowledged."""
        active = self.active
        if active is None:
            return
        while active.held and (first := next(iter(active.held))) <= index:
            active.held_messages -= active.held.pop(first)

    def redeliver(self, consumer: ConsumerState, indexes: Iterable[int] | None) -> None:
        """See Dispatcher. Order matters here, so everything unacknowledged is delivered again, as in Pulsar."""
        if consumer is self.active:
            self.rewind()

    def rewind(self) -> None:
        """See Dispatcher."""
        self.read_index = self._cursor.mark
        if self.active is not None:
            self.active.held.clear()
            self.active.held_messages = 0

    def _elect(self) -> None:
        before = self.active
        self.active = (
            next(iter(self._consumers), None) if self._choice is None else self._choice.choose(self._consumers)
        )
        if self.active is not before:
            if before is not None:
                before.held.clear()
                before.held_messages = 0
            self.rewind()
