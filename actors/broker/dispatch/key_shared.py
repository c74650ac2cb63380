"""Key_Shared: all messages of a key go to one consumer at a time, in order (pure, I16).

The key ranges name the owner of each hash of keys. A hash may get a new owner when a consumer joins or leaves. While
messages of it are pending at the old owner, the hash is *draining*: the new owner gets none of its messages until the
old one has acknowledged them, has given them back or is gone.

A batch is divided by the keys of its messages. A message that its owner cannot take now waits in the owner's queue, and
so do its later messages, so the order of a key holds. The dispatcher looks ahead for messages of others, up
to a bound (I15).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, compress

from typing_extensions import override

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.return_counts import least_refused, refused_alike
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, DelayedEntries, Delivery
from heliograph.actors.broker.dispatch.key_queues import KeyQueues
from heliograph.actors.broker.dispatch.key_ring import FixedRanges, KeyRanges, KeyRing, Moved
from heliograph.actors.broker.dispatch.key_split import KeySplit
from heliograph.actors.broker.dispatch.message_bits import bits_of, chosen, lowest, places_of
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import ConsumerAssignError
from heliograph.protocol.hashing import KEY_HASH_RANGE, sticky_key_hash

PARKED_PER_CONSUMER_MAX = 4_000  # messages looked at and not delivered, for each consumer
PARKED_MAX = 20_000  # the same over the subscription: a consumer that joins may have all of them looked at again (I24)


class KeySharedDispatcher(MultipleConsumersDispatcher):
    """Delivers by key. The priorities of consumers are ignored.

    While a consumer that takes no parts is connected, entries that come are delivered as a whole, by the key of their
    first message. So is a batch whose messages cannot be told apart. Entries that came before it and have its keys go
    to a consumer that takes parts, and until they are acknowledged it gets nothing of these keys. Whether the order of
    a key matters is said by the first consumer for all.
    """

    delivers_by_key = True

    def __init__(self, cursor: Cursor, delayed: DelayedEntries | None = None, *, splits_keys: bool = False) -> None:
        super().__init__(cursor, delayed)
        self._splits_keys = splits_keys
        self._ranges: KeyRanges = KeyRing()
        self._is_ordered = True
        self._queues = KeyQueues()
        # Of entries that are pending or in a queue: the hash of each message, or one hash for all of them.
        self._hashes: dict[int, int | Sequence[int]] = {}
        self._whole: set[int] = set()  # of these, batches that are not divided
        # Entries that came before the first connected consumer that takes no parts: their unacknowledged messages, or 1
        # for one with one hash; and how many of these each hash has.
        self._earlier: dict[int, int] = {}
        self._owed: Counter[int] = Counter()
        self._held: dict[ConsumerState, dict[int, int]] = {}  # the pending messages of each hash, never 0
        self._due: set[int] = set()  # entries whose delivery time has come; their hashes are not known yet
        self._due_heap: list[int] = []  # the same and perhaps some that are not due any more

    @property
    @override
    def replay_count(self) -> int:
        return self._queues.count + len(self._due)

    @property
    @override
    def due_count(self) -> int:
        return len(self._due)  # what is in a queue may have to stay there for long

    @property
    @override
    def draining_hashes(self) -> int:
        return sum(bool(holders) for holders in self._queues.draining.values())

    @override
    def draining_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        held = self._held[consumer]
        return [(one, held[one]) for one, holders in self._queues.draining.items() if consumer in holders]

    @override
    def ranges_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        return self._ranges.ranges(consumer)

    @override
    def wants_keys(self, index: int) -> bool:
        return index not in self._hashes

    @override
    def add(self, consumer: ConsumerState) -> None:
        has_fixed = consumer.key_ranges is not None
        if not self.consumers:
            self._ranges = FixedRanges() if has_fixed else KeySplit() if self._splits_keys else KeyRing()
            self._is_ordered = not consumer.allow_out_of_order
        elif has_fixed != isinstance(self._ranges, FixedRanges):
            raise ConsumerAssignError("consumers with and without fixed key ranges cannot share a subscription")
        moved = self._ranges.add(consumer)
        super().add(consumer)
        if not consumer.takes_parts and self._whole_takers == 1:
            self._note_earlier()
        self._queues.join(consumer)
        self._held[consumer] = {}
        self._after_move(moved, is_for_all=not consumer.takes_parts)

    @override
    def remove(self, consumer: ConsumerState) -> None:
        if consumer not in self.consumers:
            return
        moved = self._ranges.remove(consumer)
        self._chunks.leave(consumer)  # before what it held and what waited for it is given to others
        super().remove(consumer)
        if not self._whole_takers:
            self._earlier.clear()
            self._owed.clear()
        for index, bits in self._queues.take(consumer).items():
            self._enqueue(index, bits)
        self._queues.leave(consumer)
        assert not self._held[consumer], "a consumer's messages are taken back when it leaves"
        del self._held[consumer]
        self._after_move(moved, is_for_all=not consumer.takes_parts)

    @override
    def _able(self, consumer: ConsumerState) -> None:
        super()._able(consumer)
        self._queues.offer(consumer)

    @override
    def next_wanted(self, end: int) -> int | None:
        if self._pending.is_blocked:
            return None
        if (first := self._queues.first()) is not None:
            return first[0]
        if self._takers.first() is None:
            return None
        if self._queues.count >= min(PARKED_MAX, PARKED_PER_CONSUMER_MAX * len(self.consumers)):
            return None
        if self._due:
            while self._due_heap[0] not in self._due:
                heappop(self._due_heap)
            return self._due_heap[0]
        return self._next_new(end)

    @override
    def deliver(self, index: int, entry: TopicEntry, messages: int, bits: int | None = None) -> Delivery | None:
        open_bits = (1 << entry.messages) - 1 if bits is None else bits
        if index >= self.read_index or index in self._due:
            self.skip(index)
            hashes, free = self._note(index, entry), open_bits & ~self._pending.held(index)
            if not free:
                return None  # its last message was acknowledged meanwhile
            if type(hashes) is int:
                consumer = self._target(hashes, index)
                if consumer is not None and consumer.can_take:
                    assert self._queues.is_empty(consumer), "a ready consumer's waiting messages go first"  # I16
                    return self._give(consumer, index, entry, free, open_bits, 0)
            self._enqueue(index, free)
        first = self._queues.first()
        if first is None or first[0] != index:
            return None
        consumer = first[1]
        waiting = self._queues.bits(consumer, index)
        if not waiting & open_bits:  # the batch has fewer messages than an acknowledgement named
            self._queues.remove(consumer, index, waiting)
            return None
        return self._give(consumer, index, entry, waiting & open_bits, open_bits, waiting)

    @override
    def skip(self, index: int) -> None:
        if index >= self.read_index:
            self.read_index = index + 1
        elif index in self._due:
            self._due.discard(index)
        else:
            self._queues.discard(index)

    @override
    def make_due(self, indexes: Iterable[int]) -> None:
        for index in indexes:
            if (
                index < self.read_index
                and index not in self._due
                and index not in self._queues
                and self._is_free(index)
            ):
                self._due.add(index)
                heappush(self._due_heap, index)

    @override
    def acknowledged(self, index: int) -> None:
        self._chunks.forget(index)
        if self._due:
            self._due.discard(index)
        released, hashes = self._pending.release(index), self._hashes.pop(index, None)
        if hashes is None:
            return
        self._whole.discard(index)
        self._queues.discard(index)
        for consumer, bits, count in released:
            self._released(consumer, hashes, bits, count)
        if index in self._earlier:
            self._settle(index, hashes, 0)

    @override
    def partly_acknowledged(self, index: int, left: int, by: ConsumerState | None = None) -> None:
        hashes = self._hashes.get(index)
        if hashes is not None:
            self._queues.discard(index, ~left)
            for consumer, bits, count in self._pending.shrink(index, left, by):
                self._released(consumer, hashes, bits, count)
            if type(hashes) is not int and index in self._earlier:
                self._settle(index, hashes, left)

    @override
    def acknowledged_up_to(self, index: int) -> None:
        # Consumers of a shared subscription cannot acknowledge cumulatively; skipping and expiry can.
        for known in [*self._pending.up_to(index), *(known for known in self._hashes if known <= index)]:
            self.acknowledged(known)
        self._due = {due for due in self._due if due > index}
        self._chunks.forget_up_to(index)

    @override
    def rewind(self) -> None:
        super().rewind()
        self._hashes.clear()
        self._whole.clear()
        self._earlier.clear()
        self._owed.clear()
        self._queues.clear()
        for held in self._held.values():
            held.clear()
        self._due.clear()
        self._due_heap.clear()

    def _note(self, index: int, entry: TopicEntry) -> int | Sequence[int]:
        """Note the hashes of an entry that comes to the dispatcher, unless it came before. Return them."""
        if entry.chunk_uuid is not None:
            self._chunks.note(index, entry.chunk_uuid)
        if (known := self._hashes.get(index)) is not None:
            return known
        of_messages = entry.key_hashes
        hashes: int | Sequence[int] = of_messages or sticky_key_hash(
            entry.sticky_key if entry.key is None else entry.key
        )
        if of_messages and (self._whole_takers or of_messages.count(of_messages[0]) == len(of_messages)):
            hashes = of_messages[0]
        if type(hashes) is int and entry.messages > 1 and (self._whole_takers or not of_messages):
            self._whole.add(index)
        self._hashes[index] = hashes
        return hashes

    def _note_earlier(self) -> None:
        self._earlier = dict.fromkeys(self._hashes, 1)
        owed: list[Iterable[int]] = [[hashes for hashes in self._hashes.values() if type(hashes) is int]]
        for index, hashes in self._hashes.items():
            if not isinstance(hashes, int):
                open_bits = self._cursor.unacknowledged_bits(index)
                self._earlier[index] = (1 << len(hashes)) - 1 if open_bits is None else open_bits
                owed.append(hashes if open_bits is None else chosen(hashes, open_bits))
        self._owed.update(chain.from_iterable(owed))  # one call: there may be 200,000 messages

    def _settle(self, index: int, hashes: int | Sequence[int], left: int) -> None:
        """Note that only ``left`` of an earlier entry is unacknowledged. Deliver messages that waited for the rest."""
        before = self._earlier.pop(index)
        if before & left:
            self._earlier[index] = before & left
        for place in places_of(before & ~left):
            key_hash = hashes if isinstance(hashes, int) else hashes[place]
            self._owed[key_hash] -= 1
            if not self._owed[key_hash]:
                del self._owed[key_hash]
                if self._queues.draining.get(key_hash) == set():
                    self._drained(key_hash)

    def _target(self, key_hash: int, index: int) -> ConsumerState | None:
        """Return the consumer that gets a message, None if it has to wait for another one to release its hash."""
        owner = self._ranges.owner(key_hash)
        if owner is None:  # it waits for a consumer with these hashes
            self._queues.draining.setdefault(key_hash, set())
            return None
        is_earlier = index in self._earlier
        if is_earlier and not owner.takes_parts:
            other = next((one for one in self.consumers if one.takes_parts), owner)
            if other is not owner and self._is_ordered and key_hash in self._held[owner]:
                self._queues.draining.setdefault(key_hash, set()).add(owner)
            owner = other
        if (begun := self._chunks.owner_of(index)) is not None:
            return begun
        if self._owed and self._is_ordered and not (is_earlier or owner.takes_parts) and key_hash in self._owed:
            self._queues.draining.setdefault(key_hash, set())
            return None  # I16
        if self._queues.draining and self._queues.draining.get(key_hash, _NOBODY) - {owner}:
            return None  # I16
        return owner

    def _enqueue(self, index: int, bits: int) -> None:
        """Let messages of an entry wait for their consumers."""
        hashes, queues = self._hashes[index], self._queues
        if type(hashes) is int:
            consumer = self._target(hashes, index)
            if consumer is None:
                queues.hold(hashes, index, bits)
            else:
                queues.add(consumer, index, bits)
            return
        assert not isinstance(hashes, int), "each message has its hash"
        is_plain = not (self._whole_takers or isinstance(self._ranges, FixedRanges))
        found, draining = [*chosen(hashes, bits)], queues.draining if is_plain else {}
        owners = self._ranges.owners(found) if is_plain else [self._target(key_hash, index) for key_hash in found]
        parts: dict[ConsumerState, list[int]] = {}
        for place, key_hash, consumer in zip(places_of(bits), found, owners, strict=True):
            if consumer is None or (key_hash in draining and draining[key_hash] - {consumer}):  # I16
                queues.hold(key_hash, index, 1 << place)
            elif consumer in parts:
                parts[consumer].append(place)
            else:
                parts[consumer] = [place]
        for consumer, places in parts.items():
            queues.add(consumer, index, bits_of(places, len(hashes)))

    def _give(
        self, consumer: ConsumerState, index: int, entry: TopicEntry, bits: int, open_bits: int, waiting: int
    ) -> Delivery:
        """Deliver messages of an entry: as many of the first ones as the consumer asks for and as were refused equally
        often, because a delivery has one redelivery count (I22). The others wait in its queue, which has ``waiting``.
        """
        pending, hashes = self._pending, self._hashes[index]
        takes_part = consumer.takes_parts and index not in self._whole
        part, counts = self._alike(index, bits, takes_part)
        count = part.bit_count()
        if takes_part and count > consumer.permits and self._takes_less(consumer, count):
            count = consumer.permits
            part = lowest(part, count)
        if waiting:
            self._queues.remove(consumer, index, waiting & part)
        elif part != bits:
            self._queues.add(consumer, index, bits & ~part)
        if type(hashes) is int:
            held = self._held[consumer]
            held[hashes] = held.get(hashes, 0) + count
            given: Sequence[int] = (hashes,)
            is_whole = part == open_bits and index not in pending.divided
        else:
            assert not isinstance(hashes, int), "each message has its hash"
            given = list(chosen(hashes, part))
            held = self._held[consumer]
            for key_hash in given:
                held[key_hash] = held.get(key_hash, 0) + 1
            is_whole = False  # what is held is known by message
        if is_whole:
            pending.add(consumer, index, count)
        else:
            pending.add_part(consumer, index, part, entry.messages)
        if entry.chunk_uuid is not None:
            assert isinstance(hashes, int), "a chunk is one message"
            self._chunks.delivered(index, consumer, is_last=entry.is_last_chunk)
        if self._is_ordered and (entry.chunk_uuid is not None or index in self._earlier):  # not always to the owner
            self._note_holder(consumer, given)
        left = 0 if is_whole else (open_bits & ~pending.held(index)).bit_count()
        sent = None if part == (1 << entry.messages) - 1 else part
        return Delivery(consumer, counts[0], count, sent, left, *counts[1:])

    def _alike(self, index: int, bits: int, takes_part: bool) -> tuple[int, list[int]]:
        """Return which messages in ``bits`` go out together, and their redelivery count and crashes. To a consumer that
        takes no part go all of them, with the least counts."""
        part, counts = bits, []
        for entry_count, refusals in self._cursor.counts_of(index):
            alike, times = (refused_alike if takes_part else least_refused)(refusals, part) if refusals else (part, 0)
            counts.append(entry_count + times)
            if takes_part:
                part = alike
        return part, counts

    def _note_holder(self, consumer: ConsumerState, hashes: Iterable[int]) -> None:
        """Let hashes drain whose messages went to a consumer that does not own them."""
        for key_hash in hashes:
            if self._ranges.owner(key_hash) is not consumer:
                self._queues.draining.setdefault(key_hash, set()).add(consumer)  # I16

    @override
    def _take_back(self, consumer: ConsumerState, entries: Mapping[int, int]) -> None:
        pending, back = self._pending, []
        for index, bits in entries.items():
            open_bits = self._cursor.unacknowledged_bits(index)
            held, count = pending.part_of(consumer, index, open_bits)
            if bits:
                held, count = bits, bits.bit_count()
                pending.release_messages(consumer, index, bits, open_bits)
            else:
                pending.release_at(consumer, index)
            self._released(consumer, self._hashes[index], held, count)
            back.append((index, held if open_bits is None else held & open_bits))
        for index, bits in back:
            if bits and not self._cursor.is_acknowledged(index):
                self._enqueue(index, bits)

    def _released(self, consumer: ConsumerState, hashes: int | Sequence[int], bits: int, count: int) -> None:
        """Note that ``count`` messages of an entry, those in ``bits``, are not pending at a consumer any more."""
        held, draining = self._held[consumer], self._queues.draining
        if isinstance(hashes, int):
            counted: Iterable[int] = (hashes,)
        else:
            counted, count = chosen(hashes, bits), 1
        free: list[int] = []
        for key_hash in counted:
            if left := held[key_hash] - count:
                held[key_hash] = left
            else:
                del held[key_hash]
                free.append(key_hash)
        if draining:
            for key_hash in free:
                if consumer in draining.get(key_hash, _NOBODY):
                    draining[key_hash].discard(consumer)
                    if not draining[key_hash]:
                        self._drained(key_hash)

    def _drained(self, key_hash: int) -> None:
        """Let the messages of a hash that no other consumer holds wait for its owner."""
        for index, bits in self._queues.release(key_hash).items():
            self._enqueue(index, bits)

    def _after_move(self, moved: list[Moved], *, is_for_all: bool) -> None:
        """Queue messages of hashes with a new owner for it, after the messages that the previous owner holds.

        Args:
            is_for_all: entries are divided from now on, or not any more, which may change the consumer of any hash.
        """
        for first, last, before in moved:
            self._drain(range(first, last + 1), before)
        if not self._queues.count:
            return
        if is_for_all or self._whole_takers:
            for one in self.consumers:
                self._enqueue_again(one, None)
            return
        has_moved = bytearray(KEY_HASH_RANGE)
        for first, last, _ in moved:
            has_moved[first : last + 1] = b"\1" * (last + 1 - first)
        for one in {before for _, _, before in moved if before is not None and before in self._held}:
            self._enqueue_again(one, has_moved)

    def _drain(self, hashes: range, before: ConsumerState | None) -> None:
        """Let hashes drain if ``before``, their owner until now, holds messages of them. Messages that only their new
        owner holds back are delivered."""
        draining = self._queues.draining
        held = self._held.get(before) if before is not None and self._is_ordered else None
        if not held and not draining:
            return
        for key_hash in hashes:
            if held and key_hash in held and before is not None:
                draining.setdefault(key_hash, set()).add(before)
            if draining and (holders := draining.get(key_hash)) is not None:
                if (owner := self._ranges.owner(key_hash)) is not None:
                    holders.discard(owner)
                if not holders:
                    self._drained(key_hash)

    def _enqueue_again(self, consumer: ConsumerState, has_moved: bytearray | None) -> None:
        """Let messages in the queue of a consumer wait for the owners of their hashes: if the hash has moved, or all of
        them if None."""
        for index, bits in self._queues.waiting(consumer).items():
            if again := bits if has_moved is None else self._among(index, bits, has_moved):
                self._queues.remove(consumer, index, again)
                self._enqueue(index, again)

    def _among(self, index: int, bits: int, has_moved: bytearray) -> int:
        """Return the messages in ``bits`` of an entry whose hash has moved."""
        hashes = self._hashes[index]
        if isinstance(hashes, int):
            return bits if has_moved[hashes] else 0
        flags = [*map(has_moved.__getitem__, chosen(hashes, bits))]
        return bits_of(compress(places_of(bits), flags), len(hashes)) if any(flags) else 0


_NOBODY: frozenset[ConsumerState] = frozenset()
