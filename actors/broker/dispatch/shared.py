"""Shared: entries are spread over the consumers, each acknowledged on its own (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedSet
from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.chunk_owners import ChunkOwners
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, DelayedEntries, Delivery
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.topic_entry import TopicEntry

TURN_ENTRIES_MAX = 20  # entries for one consumer before the next has its turn


class SharedDispatcher(MultipleConsumersDispatcher):
    """Serves the consumers of the best priority that can take something in turn.

    Entries that are delivered again go first, the oldest of them first. All chunks of one message go to the same
    consumer (``chunk_owners.py``).
    """

    def __init__(self, cursor: Cursor, delayed: DelayedEntries | None = None) -> None:
        super().__init__(cursor, delayed)
        # ``consumers`` is kept in the order of their turns.
        self._replay: SortedSet = SortedSet()  # entries below the read index that wait for delivery
        self._chunks = ChunkOwners()
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
    def deliver(self, index: int, entry: TopicEntry, messages: int) -> Delivery | None:
        consumer = self._next_taker()
        assert consumer is not None, "an entry is wanted only when a consumer can take it"
        self.skip(index)
        if entry.chunk_uuid is not None:
            consumer = self._chunks.owner(entry.chunk_uuid, consumer)
            if not consumer.is_writable:
                self._chunks.wait(index, consumer)
                return None
            if entry.is_last_chunk:
                self._chunks.finish(entry.chunk_uuid)
        self._turn_left -= 1
        self._pending.add(consumer, index, messages)
        return Delivery(consumer, self._cursor.redeliveries(index))

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
            if index in self._pending or index in self._chunks or self._cursor.is_acknowledged(index):
                continue
            if index < self.read_index:
                self._replay.add(index)

    @override
    def acknowledged(self, index: int) -> None:
        self._pending.release(index)
        if index < self.read_index:
            self._replay.discard(index)
            self._chunks.discard(index)

    @override
    def acknowledged_up_to(self, index: int) -> None:
        # Consumers of a shared subscription cannot acknowledge cumulatively; skipping and expiry can.
        for pending in self._pending.up_to(index):
            self.acknowledged(pending)
        while self._replay and self._replay[0] <= index:
            self._replay.pop(0)
        self._chunks.discard_up_to(index)

    @override
    def rewind(self) -> None:
        super().rewind()
        self._replay.clear()
        self._chunks.clear()

    @override
    def _take_back(self, indexes: list[int]) -> None:
        for index in indexes:
            self._pending.release(index)
            if not self._cursor.is_acknowledged(index):
                self._replay.add(index)

    def _next_taker(self) -> ConsumerState | None:
        """Return the consumer whose turn it is, None if no consumer can take an entry."""
        turn = self._turn
        if turn is not None and self._turn_left > 0 and turn.can_take:
            return turn
        ready = [consumer for consumer in self.consumers if consumer.can_take]
        if not ready:
            self._turn = None
            return None
        best = min(consumer.priority for consumer in ready)
        chosen = next(consumer for consumer in ready if consumer.priority == best)
        self.consumers.remove(chosen)
        self.consumers.append(chosen)
        self._turn, self._turn_left = chosen, TURN_ENTRIES_MAX
        return chosen
