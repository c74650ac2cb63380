"""Key_Shared: all messages of a key go to one consumer at a time, in order (pure, I16).

A hash of keys belongs to the consumer that the ring names. While another consumer still holds messages of the hash
(it moved when somebody joined or left), the hash is *draining*: its new owner gets nothing of it until the old one has
acknowledged, given back or gone.

An entry that cannot go to its consumer now is *parked*, and everything of the same hash behind it with it, so order
holds; the dispatcher looks ahead for entries of other hashes, up to a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from sortedcontainers import SortedSet

from actors.broker.cursor import Cursor
from actors.broker.dispatch import ConsumerState, Delivery, Waiting, next_open
from actors.broker.held_entries import HeldEntries, can_take
from actors.broker.key_ring import KeyRing
from actors.broker.topic_entry import TopicEntry
from heliograph.protocol.hashing import sticky_key_hash

PARKED_PER_CONSUMER_MAX = 4_000  # entries looked at and not delivered, for each consumer
PARKED_MAX = 40_000  # the same over the subscription


class KeySharedDispatcher:
    """Delivers by key. Consumers' priorities mean nothing here."""

    def __init__(self, cursor: Cursor, waiting: Waiting | None = None, ring: KeyRing | None = None) -> None:
        self._cursor = cursor
        self._waiting = waiting
        self._consumers: list[ConsumerState] = []
        self._ring = ring or KeyRing()
        self._held = HeldEntries()
        self._hashes: dict[int, int] = {}  # of entries held or parked
        self._holders: dict[int, tuple[ConsumerState, int]] = {}  # hash -> who holds entries of it, and how many
        self._parked: dict[int, SortedSet] = {}  # hash -> its parked entries
        self._parked_count = 0
        self._ready: dict[ConsumerState, SortedSet] = {}  # first parked entries that only need a consumer's permits
        self._ready_at: dict[int, tuple[ConsumerState, int]] = {}  # hash -> where it is in ``_ready``
        self._due: set[int] = set()  # their time has come; their hashes are known when they are looked at
        self._due_heap: list[int] = []  # the same, and some that are not due any more
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
        return self._parked_count + len(self._due)

    @property
    def due_count(self) -> int:
        """See Dispatcher. What is parked was looked at, and may stay so for long."""
        return len(self._due)

    @property
    def is_blocked(self) -> bool:
        """See Dispatcher."""
        return self._held.is_blocked

    @property
    def draining_hashes(self) -> int:
        """Hashes held by another consumer than their owner."""
        return sum(holder is not self._ring.owner(key_hash) for key_hash, (holder, _) in self._holders.items())

    def draining_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """(hash, entries held) of what a consumer still holds of others' hashes."""
        return [
            (key_hash, count)
            for key_hash, (holder, count) in self._holders.items()
            if holder is consumer and self._ring.owner(key_hash) is not consumer
        ]

    def ranges_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """The hashes that go to a consumer, both ends included."""
        return self._ring.ranges(consumer)

    def add(self, consumer: ConsumerState) -> None:
        """See Dispatcher. Raises ConflictError when its key ranges cannot be."""
        self._ring.add(consumer)
        self._consumers.append(consumer)
        self._ready[consumer] = SortedSet()
        self._refresh_all()

    def remove(self, consumer: ConsumerState) -> None:
        """See Dispatcher."""
        if consumer not in self._consumers:
            return
        self._consumers.remove(consumer)
        self._ring.remove(consumer)
        if self._consumers:
            self._take_back(list(consumer.held))
            self._refresh_all()
        else:
            self.rewind()
        del self._ready[consumer]

    def next_wanted(self, end: int) -> int | None:
        """See Dispatcher."""
        if self._held.is_blocked:
            return None
        takers = [consumer for consumer in self._consumers if can_take(consumer)]
        if not takers:
            return None
        first = min((self._ready[one][0] for one in takers if self._ready[one]), default=None)
        if first is not None:
            return int(first)
        if self._parked_count >= min(PARKED_MAX, PARKED_PER_CONSUMER_MAX * len(self._consumers)):
            return None
        if self._due:
            while self._due_heap[0] not in self._due:
                heappop(self._due_heap)
            return self._due_heap[0]
        index = next_open(self._cursor, self._waiting, self.read_index)
        self.read_index = min(index, end)  # what waits comes back by make_due
        return index if index < end else None

    def deliver(self, index: int, entry: TopicEntry, messages: int) -> Delivery | None:
        """See Dispatcher."""
        key_hash = sticky_key_hash(entry.sticky_key)
        consumer = self._ring.owner(key_hash)
        if index < self.read_index and index not in self._due:
            assert self._ready_at.get(key_hash) == (consumer, index), "what was parked is wanted when it is ready"
            self._unpark(index, key_hash)
        else:
            if index >= self.read_index:
                self.read_index = index + 1
            else:
                self._due.discard(index)
            if consumer is None or not can_take(consumer) or not self._may_follow(key_hash, consumer):
                self._park(index, key_hash)
                return None
        assert consumer is not None, "a ready entry has an owner"
        holder, count = self._holders.get(key_hash, (consumer, 0))
        assert holder is consumer or consumer.allow_out_of_order, "a key is with one consumer at a time"  # I16
        self._holders[key_hash] = (consumer, count + 1 if holder is consumer else 1)
        self._hashes[index] = key_hash
        self._held.hold(consumer, index, messages)
        return Delivery(consumer, self._held.redeliveries(index))

    def skip(self, index: int) -> None:
        """See Dispatcher."""
        if index >= self.read_index:
            self.read_index = index + 1
        elif index in self._due:
            self._due.discard(index)
        elif index in self._hashes:
            self._unpark(index, self._hashes.pop(index))

    def make_due(self, indexes: Iterable[int]) -> None:
        """See Dispatcher."""
        for index in indexes:
            if index >= self.read_index or index in self._hashes or index in self._due:
                continue
            if not self._cursor.is_acknowledged(index):
                self._due.add(index)
                heappush(self._due_heap, index)

    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """See Dispatcher."""
        self._held.set_limits(per_consumer, per_subscription, self._consumers)

    def acknowledged(self, index: int) -> None:
        """See Dispatcher."""
        self._held.forget(index)
        if self._due:
            self._due.discard(index)
        key_hash = self._hashes.get(index)
        if key_hash is None:
            return
        if not self._release(index, key_hash):
            self._unpark(index, key_hash)
        del self._hashes[index]

    def partly_acknowledged(self, index: int, messages: int) -> None:
        """See Dispatcher."""
        self._held.shrink(index, messages)

    def acknowledged_up_to(self, index: int) -> None:
        """See Dispatcher. Consumers cannot acknowledge so; skipping and expiry can."""
        for known in [known for known in self._hashes if known <= index]:
            self.acknowledged(known)
        self._due = {due for due in self._due if due > index}

    def redeliver(self, consumer: ConsumerState, indexes: Iterable[int] | None) -> None:
        """See Dispatcher."""
        wanted = [index for index in (consumer.held if indexes is None else indexes) if index in consumer.held]
        for index in wanted:
            self._held.count_redelivery(index)
        self._take_back(wanted)

    def rewind(self) -> None:
        """See Dispatcher."""
        self._held.clear(self._consumers)
        self._hashes.clear()
        self._holders.clear()
        self._parked.clear()
        self._parked_count = 0
        self._ready_at.clear()
        self._due.clear()
        self._due_heap.clear()
        for ready in self._ready.values():
            ready.clear()
        self.read_index = self._cursor.mark

    def _may_follow(self, key_hash: int, consumer: ConsumerState) -> bool:
        """Whether a new entry of the hash would be in order, and its key with nobody else."""
        if consumer.allow_out_of_order:
            return True
        return key_hash not in self._parked and self._is_free_for(key_hash, consumer)

    def _is_free_for(self, key_hash: int, consumer: ConsumerState) -> bool:
        holder = self._holders.get(key_hash)
        return holder is None or holder[0] is consumer or consumer.allow_out_of_order  # I16

    def _take_back(self, indexes: list[int]) -> None:
        """Held entries are to be delivered again."""
        for index in indexes:
            key_hash = self._hashes[index]
            self._release(index, key_hash)
            if self._cursor.is_acknowledged(index):
                del self._hashes[index]
            else:
                self._park(index, key_hash)

    def _release(self, index: int, key_hash: int) -> bool:
        """An entry is held no more; False when it was not."""
        consumer = self._held.let_go(index)
        if consumer is None:
            return False
        holder = self._holders.get(key_hash)
        if holder is not None and holder[0] is consumer:
            if holder[1] > 1:
                self._holders[key_hash] = (consumer, holder[1] - 1)
            else:
                del self._holders[key_hash]
                self._refresh(key_hash)
        return True

    def _park(self, index: int, key_hash: int) -> None:
        self._parked.setdefault(key_hash, SortedSet()).add(index)
        self._parked_count += 1
        self._hashes[index] = key_hash
        self._refresh(key_hash)

    def _unpark(self, index: int, key_hash: int) -> None:
        parked = self._parked.get(key_hash)
        if parked is None or index not in parked:
            return
        parked.remove(index)
        self._parked_count -= 1
        if not parked:
            del self._parked[key_hash]
        self._refresh(key_hash)

    def _refresh(self, key_hash: int) -> None:
        """Have the first parked entry of a hash in ``_ready``, if only permits keep it from its consumer."""
        before = self._ready_at.pop(key_hash, None)
        if before is not None:
            self._ready[before[0]].discard(before[1])
        parked = self._parked.get(key_hash)
        owner = self._ring.owner(key_hash)
        if parked and owner is not None and self._is_free_for(key_hash, owner):
            self._ready[owner].add(parked[0])
            self._ready_at[key_hash] = (owner, parked[0])

    def _refresh_all(self) -> None:
        for key_hash in list(self._parked):
            self._refresh(key_hash)
