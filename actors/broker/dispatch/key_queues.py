"""The messages of a Key_Shared subscription that wait for their consumers (pure).

A message whose consumer asks for nothing now waits in the consumer's queue. A message of a *draining* hash, of which
another consumer still holds messages, waits with the others of its hash. Both keep messages as bits by entry.
"""

from __future__ import annotations

from heapq import heappop, heappush

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState


class MessageQueue:
    """Messages that wait for one consumer or one hash: the oldest entry first, its messages in order."""

    __slots__ = ("_heap", "bits", "offered")

    def __init__(self) -> None:
        self.bits: dict[int, int] = {}  # by entry, never 0
        self._heap: list[int] = []  # the entries, and perhaps some that are gone
        self.offered = -1  # the entry with which it is among the offers of ``KeyQueues``, -1 for none

    def head(self) -> int:
        """Return the first entry, -1 if nothing waits."""
        heap, bits = self._heap, self.bits
        while heap and heap[0] not in bits:
            heappop(heap)
        return heap[0] if heap else -1

    def add(self, index: int, bits: int) -> None:
        before = self.bits.get(index)
        if before is None:
            heappush(self._heap, index)
            self.bits[index] = bits
        else:
            assert not before & bits, "a message waits once"
            self.bits[index] = before | bits


class KeyQueues:
    """The queues of all consumers and hashes.

    Attributes:
        count: the messages in all of them.
        draining: hashes -> the consumers other than the owner that hold messages of it; none if it has no owner.
    """

    def __init__(self) -> None:
        self.count = 0
        self.draining: dict[int, set[ConsumerState]] = {}
        self._of_consumers: dict[ConsumerState, MessageQueue] = {}
        self._of_hashes: dict[int, MessageQueue] = {}  # of draining ones
        self._places: dict[int, set[MessageQueue]] = {}  # by entry: where messages of it wait
        self._waiting: dict[int, int] = {}  # of the same entries: the messages in all queues, bits
        self._offers: list[tuple[int, int, ConsumerState]] = []  # heap: first entry, key and name of who can take it

    def __contains__(self, index: int) -> bool:
        """Return whether a message of an entry waits."""
        return index in self._places

    def join(self, consumer: ConsumerState) -> None:
        """Add an empty queue."""
        self._of_consumers[consumer] = MessageQueue()

    def leave(self, consumer: ConsumerState) -> None:
        """Remove a queue that is empty."""
        assert not self._of_consumers[consumer].bits, "its waiting messages wait for others"
        del self._of_consumers[consumer]

    def is_empty(self, consumer: ConsumerState) -> bool:
        """Return whether nothing waits for a consumer."""
        return not self._of_consumers[consumer].bits

    def add(self, consumer: ConsumerState, index: int, bits: int) -> None:
        """Let messages of an entry wait for a consumer."""
        self._add(self._of_consumers[consumer], index, bits)
        self.offer(consumer)

    def hold(self, key_hash: int, index: int, bits: int) -> None:
        """Let messages of an entry wait until their hash does not drain any more."""
        assert key_hash in self.draining, "only draining consumers delay messages"
        if key_hash not in self._of_hashes:
            self._of_hashes[key_hash] = MessageQueue()
        self._add(self._of_hashes[key_hash], index, bits)

    def release(self, key_hash: int) -> dict[int, int]:
        """End the draining of a hash. Remove and return the messages that waited for it, as bits by entry."""
        self.draining.pop(key_hash, None)
        queue = self._of_hashes.pop(key_hash, None)
        return {} if queue is None else self._empty(queue)

    def take(self, consumer: ConsumerState) -> dict[int, int]:
        """Remove and return all that waits for a consumer, as bits by entry."""
        return self._empty(self._of_consumers[consumer])

    def waiting(self, consumer: ConsumerState) -> dict[int, int]:
        """Return a copy of what waits for a consumer, as bits by entry."""
        return dict(self._of_consumers[consumer].bits)

    def bits(self, consumer: ConsumerState, index: int) -> int:
        """Return the messages of an entry that wait for a consumer."""
        return self._of_consumers[consumer].bits.get(index, 0)

    def remove(self, consumer: ConsumerState, index: int, bits: int) -> None:
        """Remove messages of an entry from the queue of a consumer."""
        self._remove(self._of_consumers[consumer], index, bits)
        self.offer(consumer)

    def discard(self, index: int, bits: int = -1) -> None:
        """Remove the waiting messages in ``bits`` (all) of an entry."""
        if not self._waiting.get(index, 0) & bits:  # as with most acknowledgements; there may be thousands of queues
            return
        for queue in list(self._places[index]):
            if gone := queue.bits[index] & bits:
                self._remove(queue, index, gone)

    def offer(self, consumer: ConsumerState) -> None:
        """Note that a consumer may be able to take what waits for it."""
        queue = self._of_consumers[consumer]
        if queue.bits and consumer.can_take and (head := queue.head()) != queue.offered:
            queue.offered = head
            heappush(self._offers, (head, consumer.key, consumer))

    def first(self) -> tuple[int, ConsumerState] | None:
        """Return the first entry of which messages wait for a consumer that can take them, and that consumer."""
        offers = self._offers
        while offers:
            index, _, consumer = offers[0]
            queue = self._of_consumers.get(consumer)
            if queue is not None and consumer.can_take and queue.head() == index:
                return index, consumer
            heappop(offers)
            if queue is not None:
                if queue.offered == index:
                    queue.offered = -1
                self.offer(consumer)
        return None

    def clear(self) -> None:
        """Forget everything but the consumers."""
        for consumer in self._of_consumers:
            self._of_consumers[consumer] = MessageQueue()
        self.draining.clear()
        self._of_hashes.clear()
        self._places.clear()
        self._waiting.clear()
        self._offers.clear()
        self.count = 0

    def _add(self, queue: MessageQueue, index: int, bits: int) -> None:
        queue.add(index, bits)
        self.count += bits.bit_count()
        if index in self._places:
            self._places[index].add(queue)
            self._waiting[index] |= bits
        else:
            self._places[index] = {queue}
            self._waiting[index] = bits

    def _remove(self, queue: MessageQueue, index: int, bits: int) -> None:
        gone = queue.bits[index] & bits
        self.count -= gone.bit_count()
        if left := queue.bits[index] ^ gone:
            queue.bits[index] = left
            self._waiting[index] ^= gone
        else:
            del queue.bits[index]
            self._leave(queue, index, gone)

    def _empty(self, queue: MessageQueue) -> dict[int, int]:
        taken, queue.bits = queue.bits, {}
        self.count -= sum(map(int.bit_count, taken.values()))
        for index, bits in taken.items():
            self._leave(queue, index, bits)
        return taken

    def _leave(self, queue: MessageQueue, index: int, bits: int) -> None:
        places = self._places[index]
        places.discard(queue)
        self._waiting[index] ^= bits
        if not places:
            del self._places[index], self._waiting[index]
