"""The base of Shared and Key_Shared: several consumers at a time, each entry acknowledged individually (pure)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.chunk_owners import ChunkOwners
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, DelayedEntries, Dispatcher
from heliograph.actors.broker.dispatch.pending_acks import DividedEntry, PendingAcks
from heliograph.actors.broker.dispatch.takers import Takers

LONE_SHARE = 0.25  # of the messages of an entry: a lone consumer that asks for fewer gets a part, too


class MultipleConsumersDispatcher(Dispatcher):
    """Keeps the pending acknowledgements and takes entries back. Subclasses choose the consumer of each entry."""

    def __init__(self, cursor: Cursor, delayed: DelayedEntries | None = None) -> None:
        super().__init__(cursor)
        self._delayed = delayed
        self._pending = PendingAcks()
        self._takers = Takers()
        self._whole_takers = 0  # consumers that take no parts
        self._chunks = ChunkOwners()

    @property
    @override
    def is_blocked(self) -> bool:
        return self._pending.is_blocked

    @override
    def add(self, consumer: ConsumerState) -> None:
        assert consumer not in self.consumers, "a consumer connects once"
        self.consumers.append(consumer)
        self._whole_takers += not consumer.takes_parts
        self._takers.add(consumer)
        consumer.on_able = self._able

    @override
    def remove(self, consumer: ConsumerState) -> None:
        if consumer not in self.consumers:
            return
        self.consumers.remove(consumer)
        consumer.on_able = None
        self._whole_takers -= not consumer.takes_parts
        self._takers.remove(consumer)
        if self.consumers:
            self._take_back(consumer, dict.fromkeys(consumer.pending, 0))
        else:
            divided = {index: DividedEntry(one.messages) for index, one in self._pending.divided.items()}
            self.rewind()
            self._pending.divided = divided  # acknowledgements of parts may come after their consumers connect again

    def _able(self, consumer: ConsumerState) -> None:
        self._takers.add(consumer)

    @property
    @override
    def divided(self) -> Mapping[int, object]:
        return self._pending.divided

    @override
    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        self._pending.set_limits(per_consumer, per_subscription, self.consumers)

    @override
    def partly_acknowledged(self, index: int, left: int, by: ConsumerState | None = None) -> None:
        self._pending.shrink(index, left, by)

    @override
    def left_by(self, index: int, consumer: ConsumerState) -> int:
        divided = self._pending.divided
        return divided[index].left_by(consumer) if divided and index in divided else 0

    @override
    def messages_of(self, index: int) -> int:
        return self._pending.messages_of(index, self._cursor.unacknowledged_bits(index))

    @override
    def redeliver(
        self, consumer: ConsumerState, entries: Mapping[int, int] | None, *, is_unhandled: bool = False
    ) -> None:
        pending = consumer.pending
        named = dict.fromkeys(pending, 0) if entries is None else dict(entries)
        for index in list(named):  # without one of its chunks, a message is not complete again
            named.update(dict.fromkeys(self._chunks.others(index), 0))
        returned: dict[int, int] = {}
        for index, bits in named.items():
            if index in pending:
                some = self._given_back(consumer, index, bits)
                if some is not None:
                    returned[index] = some
                    if not is_unhandled:
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
        self._chunks.clear()
        self.read_index = self._cursor.mark

    @abstractmethod
    def _take_back(self, consumer: ConsumerState, entries: Mapping[int, int]) -> None:
        """Release what a consumer has pending of entries, as ``redeliver`` names it, and queue what is not acknowledged
        for another delivery."""

    def _is_free(self, index: int) -> bool:
        """Return whether a message of an entry is neither acknowledged nor pending."""
        if (divided := self._pending.divided.get(index)) is None:
            return index not in self._pending and not self._cursor.is_acknowledged(index)
        open_bits = self._cursor.unacknowledged_bits(index)
        return bool(((1 << divided.messages) - 1 if open_bits is None else open_bits) & ~divided.held)

    def _takes_less(self, consumer: ConsumerState, count: int) -> bool:
        """Return whether a consumer gets fewer than ``count`` messages if it asks for fewer. A lone one may get some in
        excess, since nobody else can use them now, unless it ``asks_exactly``."""
        return len(self.consumers) > 1 or consumer.asks_exactly or consumer.permits < count * LONE_SHARE

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
