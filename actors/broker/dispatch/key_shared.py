"""Key_Shared: all messages of a key go to one consumer at a time, in order (pure, I16).

The key ring names the owner of each hash of keys. A hash may get a new owner when a consumer joins or leaves. While
entries of it are pending at the old owner, the hash is *draining*: the new owner gets none of its entries until the old
one has acknowledged them, has given them back or is gone.

An entry that its owner cannot take now is *parked*, together with all later entries of the same hash, so the order of a
key holds. The dispatcher looks ahead for entries of other hashes, up to a bound (I15).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from sortedcontainers import SortedSet
from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, DelayedEntries, Delivery
from heliograph.actors.broker.dispatch.key_ring import KeyRing
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.protocol.hashing import sticky_key_hash

PARKED_PER_CONSUMER_MAX = 4_000  # entries looked at and not delivered, for each consumer
PARKED_MAX = 40_000  # the same over the subscription
_NO_HOLDER: tuple[ConsumerState | None, int] = (None, 0)


class KeySharedDispatcher(MultipleConsumersDispatcher):
    """Delivers by key. The priorities of consumers are ignored."""

    delivers_by_key = True

    def __init__(self, cursor: Cursor, delayed: DelayedEntries | None = None, ring: KeyRing | None = None) -> None:
        super().__init__(cursor, delayed)
        self._ring = ring or KeyRing()
        self._hashes: dict[int, int] = {}  # of entries that are pending or parked
        self._holders: dict[int, tuple[ConsumerState, int]] = {}  # hash -> where its entries are pending, and how many
        self._parked: dict[int, SortedSet] = {}  # hash -> its parked entries, at least one
        self._parked_count = 0  # the sum of their sizes
        self._ready: dict[ConsumerState, SortedSet] = {}  # first parked entries that only need a consumer's permits
        self._ready_at: dict[int, tuple[ConsumerState, int]] = {}  # hash -> where it is in ``_ready``
        self._due: set[int] = set()  # entries whose delivery time has come; their hashes are not known yet
        self._due_heap: list[int] = []  # the same and perhaps some that are not due any more

    @property
    @override
    def replay_count(self) -> int:
        return self._parked_count + len(self._due)

    @property
    @override
    def due_count(self) -> int:
        return len(self._due)  # parked entries may have to stay so for long

    @property
    @override
    def draining_hashes(self) -> int:
        return sum(holder is not self._ring.owner(key_hash) for key_hash, (holder, _) in self._holders.items())

    @override
    def draining_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        return [
            (key_hash, count)
            for key_hash, (holder, count) in self._holders.items()
            if holder is consumer and self._ring.owner(key_hash) is not consumer
        ]

    @override
    def ranges_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        return self._ring.ranges(consumer)

    @override
    def add(self, consumer: ConsumerState) -> None:
        self._ring.add(consumer)
        super().add(consumer)
        self._ready[consumer] = SortedSet()
        self._refresh_all()

    @override
    def remove(self, consumer: ConsumerState) -> None:
        if consumer not in self.consumers:
            return
        self._ring.remove(consumer)
        super().remove(consumer)
        self._refresh_all()
        assert not self._ready[consumer], "no hash belongs to a consumer that left"
        del self._ready[consumer]

    @override
    def next_wanted(self, end: int) -> int | None:
        if self._pending.is_blocked:
            return None
        if self._ready_at:  # most entries are delivered without having been parked
            ready = self._ready
            first = min((ready[one][0] for one in self.consumers if one.can_take and ready[one]), default=None)
            if first is not None:
                return int(first)
        for consumer in self.consumers:
            if consumer.can_take:
                break
        else:
            return None
        if self._parked_count >= min(PARKED_MAX, PARKED_PER_CONSUMER_MAX * len(self.consumers)):
            return None
        if self._due:
            while self._due_heap[0] not in self._due:
                heappop(self._due_heap)
            return self._due_heap[0]
        return self._next_new(end)

    @override
    def deliver(self, index: int, entry: TopicEntry, messages: int, bits: int | None = None) -> Delivery | None:
        key_hash = sticky_key_hash(entry.sticky_key if entry.key is None else entry.key)
        consumer = self._ring.owner(key_hash)
        holder, count = self._holders.get(key_hash, _NO_HOLDER)
        if index < self.read_index and index not in self._due:
            assert self._ready_at.get(key_hash) == (consumer, index), "a parked entry is wanted when it is ready"
            self._unpark(index, key_hash)
        else:
            if index >= self.read_index:
                self.read_index = index + 1
            else:
                self._due.discard(index)
            if consumer is None or not consumer.can_take or not self._may_follow(key_hash, consumer, holder):
                self._park(index, key_hash)
                return None
        assert consumer is not None, "a ready entry has an owner"
        assert holder is consumer or holder is None or consumer.allow_out_of_order, "one consumer has a key"  # I16
        self._holders[key_hash] = (consumer, count + 1 if holder is consumer else 1)
        self._hashes[index] = key_hash
        self._pending.add(consumer, index, messages)
        refused, crashed = self._cursor.refused.of(index), self._cursor.crashed.of(index)
        return Delivery(consumer, refused.entry, messages, bits, crashes=crashed.entry)

    @override
    def skip(self, index: int) -> None:
        if index >= self.read_index:
            self.read_index = index + 1
        elif index in self._due:
            self._due.discard(index)
        elif index in self._hashes:
            self._unpark(index, self._hashes.pop(index))

    @override
    def make_due(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            if index >= self.read_index or index in self._hashes or index in self._due:
                continue
            if not self._cursor.is_acknowledged(index):
                self._due.add(index)
                heappush(self._due_heap, index)

    @override
    def acknowledged(self, index: int) -> None:
        if self._due:
            self._due.discard(index)
        key_hash = self._hashes.pop(index, None)
        if key_hash is not None and not self._release(index, key_hash):
            self._unpark(index, key_hash)

    @override
    def acknowledged_up_to(self, index: int) -> None:
        # Consumers of a shared subscription cannot acknowledge cumulatively; skipping and expiry can.
        for known in [known for known in self._hashes if known <= index]:
            self.acknowledged(known)
        self._due = {due for due in self._due if due > index}

    @override
    def rewind(self) -> None:
        super().rewind()
        self._hashes.clear()
        self._holders.clear()
        self._parked.clear()
        self._parked_count = 0
        self._ready_at.clear()
        self._due.clear()
        self._due_heap.clear()
        for ready in self._ready.values():
            ready.clear()

    def _may_follow(self, key_hash: int, consumer: ConsumerState, holder: ConsumerState | None) -> bool:
        """Return whether an entry of the hash can be delivered in order, with none pending at another consumer."""
        if consumer.allow_out_of_order:
            return True
        return (holder is None or holder is consumer) and key_hash not in self._parked  # I16

    def _is_free_for(self, key_hash: int, consumer: ConsumerState) -> bool:
        holder = self._holders.get(key_hash)
        return holder is None or holder[0] is consumer or consumer.allow_out_of_order  # I16

    @override
    def _given_back(self, consumer: ConsumerState, index: int, bits: int) -> int:
        return 0  # an entry is delivered as a whole

    @override
    def _take_back(self, consumer: ConsumerState, entries: Mapping[int, int]) -> None:
        for index in entries:
            key_hash = self._hashes[index]
            self._release(index, key_hash)
            if self._cursor.is_acknowledged(index):
                del self._hashes[index]
            else:
                self._park(index, key_hash)

    def _release(self, index: int, key_hash: int) -> bool:
        """End the pending acknowledgement of an entry. Return False if it was not pending."""
        consumer = self._pending.release(index)
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
        parked = self._parked.setdefault(key_hash, SortedSet())
        assert index not in parked, "an entry is parked once"
        parked.add(index)
        self._parked_count += 1
        self._hashes[index] = key_hash
        self._refresh(key_hash)

    def _unpark(self, index: int, key_hash: int) -> None:
        parked = self._parked.get(key_hash)
        if parked is None or index not in parked:
            return
        parked.remove(index)
        self._parked_count -= 1
        assert self._parked_count >= 0, "what is unparked was counted"
        if not parked:
            del self._parked[key_hash]
        self._refresh(key_hash)

    def _refresh(self, key_hash: int) -> None:
        """Put the first parked entry of a hash into ``_ready`` if it only lacks its owner's permits, else remove it."""
        if self._ready_at and (before := self._ready_at.pop(key_hash, None)) is not None:
            self._ready[before[0]].discard(before[1])
        parked = self._parked.get(key_hash)
        if not parked:
            return
        owner = self._ring.owner(key_hash)
        if owner is not None and self._is_free_for(key_hash, owner):
            self._ready[owner].add(parked[0])
            self._ready_at[key_hash] = (owner, parked[0])

    def _refresh_all(self) -> None:
        for key_hash in list(self._parked):
            self._refresh(key_hash)
