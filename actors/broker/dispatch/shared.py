"""Shared: messages are spread over the consumers, each acknowledged on its own (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sortedcontainers import SortedSet
from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.return_counts import least_refused
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, DelayedEntries, Delivery
from heliograph.actors.broker.dispatch.message_bits import lowest
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.topic_entry import TopicEntry

TURN_ENTRIES_MAX = 20  # entries for one consumer before the next has its turn


class SharedDispatcher(MultipleConsumersDispatcher):
    """Serves the consumers of the best priority that can take something in turn.

    Entries that are delivered again go first, the oldest of them first. All chunks of one message go to the same
    consumer (``chunk_owners.py``).

    A batch that has more messages than its consumer asks for is divided: the consumer gets as many as it asks for, and
    the next ones get the others. A lone consumer gets a part only if it asks for less than ``LONE_SHARE`` of the
    messages. All get whole entries while one of them cannot acknowledge parts.
    """

    def __init__(self, cursor: Cursor, delayed: DelayedEntries | None = None) -> None:
        super().__init__(cursor, delayed)
        self._replay: SortedSet = SortedSet()  # entries below the read index of which messages wait for delivery
        self._turn: ConsumerState | None = None
        self._turn_left = 0  # entries

    @property
    @override
    def replay_count(self) -> int:
        return len(self._replay) + len(self._chunks)

    @property
    @override
    def due_count(self) -> int:
        return len(self._replay)

    @override
    def remove(self, consumer: ConsumerState) -> None:
        if self._turn is consumer:
            self._turn = None
        self._replay.update(self._chunks.leave(consumer))
        super().remove(consumer)

    @override
    def next_wanted(self, end: int) -> int | None:
        if self._pending.is_blocked or self._next_taker() is None:
            return None
        while self._replay and self._cursor.is_acknowledged(self._replay[0]):
            self._replay.pop(0)
        chunk = self._chunks.next_ready()
        if self._replay:
            first: int = self._replay[0]
            return first if chunk is None else min(first, chunk)
        return self._next_new(end) if chunk is None else chunk

    @override
    def deliver(self, index: int, entry: TopicEntry, messages: int, bits: int | None = None) -> Delivery | None:
        consumer = self._next_taker()
        assert consumer is not None, "an entry is wanted only when a consumer can take it"
        self.skip(index)
        if entry.chunk_uuid is not None:
            consumer = self._chunks.owner(entry.chunk_uuid, consumer)
            if not consumer.is_writable:
                self._chunks.wait(index, consumer)
                return None
            self._chunks.note(index, entry.chunk_uuid)
            self._chunks.delivered(index, consumer, is_last=entry.is_last_chunk)
        self._turn_left -= 1
        is_too_large = messages > 1 and messages > consumer.permits
        refused, crashed, alone = self._cursor.counts_of(index)
        has_counts = refused.messages or crashed.messages or alone.messages
        if is_too_large or index in self._pending.divided or has_counts:
            return self._deliver_part(consumer, index, entry, (1 << messages) - 1 if bits is None else bits)
        self._pending.add(consumer, index, messages)
        return Delivery(consumer, refused.entry, messages, bits, 0, crashed.entry, alone.entry)

    @override
    def skip(self, index: int) -> None:
        if index < self.read_index:
            self._replay.discard(index)
            self._chunks.discard(index)
        else:
            self.read_index = index + 1

    @override
    def make_due(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            if index < self.read_index and index not in self._chunks and self._is_free(index):
                self._replay.add(index)

    @override
    def acknowledged(self, index: int) -> None:
        self._chunks.forget(index)
        self._pending.release(index)
        if index < self.read_index:
            self._replay.discard(index)
            self._chunks.discard(index)

    @override
    def partly_acknowledged(self, index: int, left: int, by: ConsumerState | None = None) -> None:
        super().partly_acknowledged(index, left, by)
        if not left & ~self._pending.held(index):
            self._replay.discard(index)  # what was not pending is acknowledged

    @override
    def acknowledged_up_to(self, index: int) -> None:
        # Consumers of a shared subscription cannot acknowledge cumulatively; skipping and expiry can.
        for pending in self._pending.up_to(index):
            self.acknowledged(pending)
        while self._replay and self._replay[0] <= index:
            self._replay.pop(0)
        self._chunks.forget_up_to(index)

    @override
    def rewind(self) -> None:
        super().rewind()
        self._replay.clear()

    @override
    def _take_back(self, consumer: ConsumerState, entries: Mapping[int, int]) -> None:
        pending, cursor = self._pending, self._cursor
        for index, bits in entries.items():
            if bits:
                pending.release_messages(consumer, index, bits, cursor.unacknowledged_bits(index))
            else:
                pending.release_at(consumer, index)
            if not self._cursor.is_acknowledged(index):
                self._replay.add(index)

    def _deliver_part(self, consumer: ConsumerState, index: int, entry: TopicEntry, bits: int) -> Delivery:
        """Deliver those messages of an entry that the consumer asks for and that are not pending. A delivery has one
        count of refusals and one of crashes, so that those that came back more often come in another one (I22)."""
        pending, held = self._pending, self._pending.held(index)
        free = bits & ~held  # I22
        assert free, "an entry is wanted when a message of it is not pending"
        messages = free.bit_count()
        part, counts = free, []
        for entry_count, refusals in self._cursor.counts_of(index):
            least, times = least_refused(refusals, part) if refusals else (part, 0)
            counts.append(entry_count + times)
            if not self._whole_takers:
                part = least
        count = part.bit_count()
        # The owner of a chunk gets it without permits, though it may claim to be a batch.
        may_divide = not self._whole_takers and consumer.permits > 0
        may_divide &= self._takes_less(consumer, count)
        if count > consumer.permits and may_divide and (held or part != free or entry.is_divisible):
            count = consumer.permits
            part = lowest(part, count)
        if count < messages or index in pending.divided:
            pending.add_part(consumer, index, part, entry.messages)
        else:
            pending.add(consumer, index, messages)
        if count < messages:
            self._replay.add(index)
        is_whole = part == (1 << entry.messages) - 1
        return Delivery(consumer, counts[0], count, None if is_whole else part, messages - count, *counts[1:])

    def _next_taker(self) -> ConsumerState | None:
        """Return the consumer whose turn it is, None if no consumer can take an entry."""
        turn = self._turn
        if turn is not None and self._turn_left > 0 and turn.can_take:
            return turn
        chosen = self._turn = self._takers.first()
        if chosen is not None:
            self._takers.to_end(chosen)
            self._turn_left = TURN_ENTRIES_MAX
        return chosen
