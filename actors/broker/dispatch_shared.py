"""Shared: entries are spread over the consumers, each acknowledged on its own (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedSet

from actors.broker.chunk_owners import ChunkOwners
from actors.broker.cursor import Cursor
from actors.broker.dispatch import ConsumerState, Delivery, Waiting, next_open
from actors.broker.held_entries import HeldEntries, can_take
from actors.broker.topic_entry import TopicEntry

TURN_ENTRIES_MAX = 20  # entries for one consumer before the next has its turn


class SharedDispatcher:
    """Round robin among the consumers of the best priority that can take something; what has to be delivered again
    goes first, oldest first. All chunks of one message go to the same consumer (``chunk_owners.py``)."""

    def __init__(self, cursor: Cursor, waiting: Waiting | None = None) -> None:
        self._cursor = cursor
        self._waiting = waiting
        self._consumers: list[ConsumerState] = []  # in the order of their turns
        self._held = HeldEntries()
        self._replay: SortedSet = SortedSet()
        self._chunks = ChunkOwners()
        self._turn: ConsumerState | None = None
        self._turn_left = 0
        self.read_index = cursor.mark

    @property
    def consumers(self) -> list[ConsumerState]:
        """See Dispatcher."""
        return self._consumers

    @property
    def active(self) -> ConsumerState | None:
        """See Dispatcher."""
        return None

    @property
    def replay_count(self) -> int:
        """See Dispatcher."""
        return len(self._replay) + len(self._chunks)

    @property
    def due_count(self) -> int:
        """See Dispatcher. Whoever takes something takes these first."""
        return len(self._replay)

    @property
    def is_blocked(self) -> bool:
        """See Dispatcher."""
        return self._held.is_blocked

    def add(self, consumer: ConsumerState) -> None:
        """See Dispatcher."""
        self._consumers.append(consumer)

    def remove(self, consumer: ConsumerState) -> None:
        """See Dispatcher."""
        if consumer not in self._consumers:
            return
        self._consumers.remove(consumer)
        if self._turn is consumer:
            self._turn = None
        self._replay.update(self._chunks.leave(consumer))
        if self._consumers:
            self._take_back(list(consumer.held))
        else:
            self.rewind()

    def next_wanted(self, end: int) -> int | None:
        """See Dispatcher."""
        if self._held.is_blocked or self._whose_turn() is None:
            return None
        while self._replay and self._cursor.is_acknowledged(self._replay[0]):
            self._replay.pop(0)
        chunk = self._chunks.next_ready()
        if self._replay:
            first: int = self._replay[0]
            return first if chunk is None else min(first, chunk)
        if chunk is not None:
            return chunk
        index = next_open(self._cursor, self._waiting, self.read_index)
        self.read_index = min(index, end)  # what waits comes back by make_due
        return index if index < end else None

    def deliver(self, index: int, entry: TopicEntry, messages: int) -> Delivery | None:
        """See Dispatcher."""
        consumer = self._whose_turn()
        assert consumer is not None, "an entry is wanted only when there is someone to take it"
        self.skip(index)
        if entry.chunk_uuid is not None:
            consumer = self._chunks.owner(entry.chunk_uuid, consumer)
            if not consumer.is_writable:
                self._chunks.wait(index, consumer)
                return None
            if entry.is_last_chunk:
                self._chunks.finish(entry.chunk_uuid)
        self._turn_left -= 1
        self._held.hold(consumer, index, messages)
        return Delivery(consumer, self._held.redeliveries(index))

    def skip(self, index: int) -> None:
        """See Dispatcher."""
        if index < self.read_index:
            self._replay.discard(index)
            self._chunks.discard(index)
        else:
            self.read_index = index + 1

    def make_due(self, indexes: Iterable[int]) -> None:
        """See Dispatcher."""
        for index in indexes:
            if index in self._held or index in self._chunks or self._cursor.is_acknowledged(index):
                continue
            if index < self.read_index:
                self._replay.add(index)

    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """See Dispatcher."""
        self._held.set_limits(per_consumer, per_subscription, self._consumers)

    def acknowledged(self, index: int) -> None:
        """See Dispatcher."""
        self._held.let_go(index)
        self._held.forget(index)
        if index < self.read_index:
            self._replay.discard(index)
            self._chunks.discard(index)

    def partly_acknowledged(self, index: int, messages: int) -> None:
        """See Dispatcher."""
        self._held.shrink(index, messages)

    def acknowledged_up_to(self, index: int) -> None:
        """See Dispatcher. Consumers of a shared subscription cannot acknowledge so; skipping and expiry can."""
        for held in self._held.up_to(index):
            self.acknowledged(held)
        while self._replay and self._replay[0] <= index:
            self._held.forget(self._replay.pop(0))
        self._chunks.discard_up_to(index)

    def redeliver(self, consumer: ConsumerState, indexes: Iterable[int] | None) -> None:
        """See Dispatcher."""
        wanted = [index for index in (consumer.held if indexes is None else indexes) if index in consumer.held]
        for index in wanted:
            self._held.count_redelivery(index)
        self._take_back(wanted)

    def rewind(self) -> None:
        """See Dispatcher."""
        self._held.clear(self._consumers)
        self._replay.clear()
        self._chunks.clear()
        self.read_index = self._cursor.mark

    def _take_back(self, indexes: list[int]) -> None:
        for index in indexes:
            self._held.let_go(index)
            if not self._cursor.is_acknowledged(index):
                self._replay.add(index)

    def _whose_turn(self) -> ConsumerState | None:
        turn = self._turn
        if turn is not None and self._turn_left > 0 and can_take(turn):
            return turn
        ready = [consumer for consumer in self._consumers if can_take(consumer)]
        if not ready:
            self._turn = None
            return None
        best = min(consumer.priority for consumer in ready)
        chosen = next(consumer for consumer in ready if consumer.priority == best)
        self._consumers.remove(chosen)
        self._consumers.append(chosen)
        self._turn, self._turn_left = chosen, TURN_ENTRIES_MAX
        return chosen
