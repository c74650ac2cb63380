"""What Shared and Key_Shared have in common: several consumers at a time, each entry acknowledged on its own (pure)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

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
            self._take_back(list(consumer.pending))
        else:
            self.rewind()

    @override
    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        self._pending.set_limits(per_consumer, per_subscription, self.consumers)

    @override
    def partly_acknowledged(self, index: int, messages: int) -> None:
        self._pending.shrink(index, messages)

    @override
    def redeliver(self, consumer: ConsumerState, indexes: Iterable[int] | None) -> None:
        pending = consumer.pending
        named = pending if indexes is None else dict.fromkeys(indexes)  # a client may name an entry twice
        returned = [index for index in named if index in pending]
        for index in returned:
            self._cursor.count_redelivery(index)
        self._take_back(returned)

    @override
    def rewind(self) -> None:
        self._pending.clear(self.consumers)
        self.read_index = self._cursor.mark

    @abstractmethod
    def _take_back(self, indexes: list[int]) -> None:
        """Release pending entries, and queue those that are not acknowledged for another delivery."""

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
