"""What Shared and Key_Shared have in common: several consumers at a time, each entry acknowledged on its own (pure)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, DelayedEntries, Dispatcher
from heliograph.actors.broker.dispatch.pending_acks import PendingAcks


class MultipleConsumersDispatcher(Dispatcher):
    """Keeps the pending acknowledgements and takes entries back. Subclasses choose the consumer of each entry."""

    def __init__(self, cursor: Cursor, delayed: DelayedEntries | None = None) -> None:
        super().__init__(cursor)
        self._delayed = delayed
        self._pending = PendingAcks()

    @property
    @override
    def is_blocked(self) -> bool:
        return self._pending.is_blocked

    @override
    def add(self, consumer: ConsumerState) -> None:
        assert consumer not in self.consumers, "a consumer connects once"
        self.consumers.append(consumer)

    @override
    def remove(self, consumer: ConsumerState) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        if self.consumers:
            self._take_back(consumer, dict.fromkeys(consumer.pending, 0))
        else:
            self.rewind()

    @override
    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        self._pending.set_limits(per_consumer, per_subscription, self.consumers)

    @override
    def partly_acknowledged(self, index: int, left: int) -> None:
        self._pending.shrink(index, left)

    @override
    def left_by(self, index: int, consumer: ConsumerState) -> int:
        divided = self._pending.divided
        return divided[index].left_by(consumer) if divided and index in divided else 0

    @override
    def messages_of(self, index: int) -> int:
        return self._pending.messages_of(index, self._cursor.unacknowledged_bits(index))

    @override
    def redeliver(self, consumer: ConsumerState, entries: Mapping[int, int] | None) -> None:
        pending = consumer.pending
        named = dict.fromkeys(pending, 0) if entries is None else entries
        returned: dict[int, int] = {}
        for index, bits in named.items():
            if index in pending:
                some = self._given_back(consumer, index, bits)
                if some is not None:
                    returned[index] = some
                    self._cursor.count_redelivery(index, some)
        self._take_back(consumer, returned)

    @override
    def _held_part(self, consumer: ConsumerState, index: int) -> int:
        divided = self._pending.divided.get(index)
        return 0 if divided is None else divided.parts[consumer]

    def _given_back(self, consumer: ConsumerState, index: int, bits: int) -> int | None:
        """Return which messages of a pending entry come back if a consumer names ``bits``: 0 for all of an entry that
        it has as a whole, None if it has none of them."""
        return self._pending.given_back(consumer, index, bits, self._cursor.unacknowledged_bits(index))

    @override
    def rewind(self) -> None:
        self._pending.clear(self.consumers)
        self.read_index = self._cursor.mark

    @abstractmethod
    def _take_back(self, consumer: ConsumerState, entries: Mapping[int, int]) -> None:
        """Release what a consumer has pending of entries, as ``redeliver`` names it, and queue what is not acknowledged
        for another delivery."""

    def _next_new(self, end: int) -> int | None:
        """Return the first entry that was never delivered and is neither acknowledged nor delayed, None at the end.

        The read index moves to it; ``make_due`` brings delayed entries back.
        """
        cursor, delayed = self._cursor, self._delayed
        index = cursor.next_unacknowledged(self.read_index)
        if delayed is not None and delayed.count:
            while (later := delayed.next_not_waiting(index)) != index:
                index = cursor.next_unacknowledged(later)
        if index >= end:
            self.read_index = end
            return None
        self.read_index = index
        return index
