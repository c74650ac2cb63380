"""Exclusive and Failover: one consumer at a time gets every entry, in order (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, Delivery, Dispatcher
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import ConsumerBusyError


class ExclusiveDispatcher(Dispatcher):
    """Delivers to the active consumer only, whose permits are the only limit, as in Pulsar.

    Order matters here, so no entry is delayed, and a redelivery starts over at the mark-delete position.

    Args:
        choice: None for Exclusive, where a second consumer is refused.
    """

    def __init__(self, cursor: Cursor, choice: FailoverChoice | None = None) -> None:
        super().__init__(cursor)
        self._choice = choice
        self.is_held_off = False

    @override
    def add(self, consumer: ConsumerState) -> None:
        if self._choice is None and self.consumers:
            raise ConsumerBusyError("the exclusive subscription already has a consumer")
        self.consumers.append(consumer)
        self._elect()

    @override
    def remove(self, consumer: ConsumerState) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            self._elect()

    @override
    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """Do nothing: the permits of the active consumer are the limit."""

    @override
    def next_wanted(self, end: int) -> int | None:
        if self.read_index >= end:
            return None
        active = self.active
        if active is None or active.permits <= 0 or not active.is_writable or self.is_held_off:
            return None
        index = self._cursor.next_unacknowledged(self.read_index)
        return index if index < end else None

    @override
    def deliver(self, index: int, entry: TopicEntry, messages: int, bits: int | None = None) -> Delivery:
        active = self.active
        assert active is not None, "an entry is wanted only when a consumer can take it"
        assert index >= self.read_index, "one consumer gets entries in order"
        self.read_index = index + 1
        active.permits -= messages
        active.pending[index] = messages
        active.pending_messages += messages
        return Delivery(active, 0, messages, bits, crashes=self._cursor.crashed.of(index).entry)

    @override
    def skip(self, index: int) -> None:
        self.read_index = index + 1

    @override
    def make_due(self, indexes: Iterable[int]) -> None:
        """Do nothing: no entry is delayed."""

    @override
    def hold_off(self) -> None:
        assert self.active is not None, "the active consumer has changed"
        self.is_held_off = True

    @override
    def resume(self) -> bool:
        if not self.is_held_off:
            return False
        self.is_held_off = False
        self.rewind()
        return True

    @override
    def acknowledged(self, index: int) -> None:
        active = self.active
        if active is not None:
            active.pending_messages -= active.pending.pop(index, 0)
            assert active.pending_messages >= 0, "only pending messages are released"

    @override
    def partly_acknowledged(self, index: int, left: int, by: ConsumerState | None = None) -> None:
        active, messages = self.active, left.bit_count()
        if active is not None and messages < active.pending.get(index, 0):
            active.pending_messages -= active.pending[index] - messages
            active.pending[index] = messages

    @override
    def messages_of(self, index: int) -> int:
        pending = self.active.pending.get(index, 0) if self.active is not None else 0
        return (1 << pending) - 1 if pending and self._cursor.unacknowledged_bits(index) is None else -1

    @override
    def acknowledged_up_to(self, index: int) -> None:
        active = self.active
        if active is None:
            return
        # The entries are in order, so this costs no more than the entries that are acknowledged.
        while active.pending and (first := next(iter(active.pending))) <= index:
            active.pending_messages -= active.pending.pop(first)

    @override
    def redeliver(
        self, consumer: ConsumerState, entries: Mapping[int, int] | None, *, is_unhandled: bool = False
    ) -> None:
        if consumer is self.active:
            self.rewind()

    @override
    def rewind(self) -> None:
        self.read_index = self._cursor.mark
        if self.active is not None:
            self.active.pending.clear()
            self.active.pending_messages = 0

    def _elect(self) -> None:
        before = self.active
        self.active = next(iter(self.consumers), None) if self._choice is None else self._choice.choose(self.consumers)
        if self.active is not before:
            if before is not None:
                before.pending.clear()
                before.pending_messages = 0
            self.rewind()
