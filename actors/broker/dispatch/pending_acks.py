"""The pending acknowledgements of one subscription, with their bounds (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState

PENDING_MESSAGES_PER_CONSUMER_MAX = 50_000  # delivered and not acknowledged, where policies set no limit
PENDING_MESSAGES_MAX = 200_000  # the same over the subscription; delivery goes on at half of it
UNLIMITED = 1 << 62
ALL = -1

# Messages of an entry that are not pending any more, and whose: as bits, ``ALL`` if only their number is known; and
# their number. It is a plain tuple, because one is made for each entry.
Released = tuple[ConsumerState, int, int]


@dataclass(slots=True)
class DividedEntry:
    """An entry with ``messages`` messages that was delivered in parts. It may be that none of them is pending now."""

    messages: int
    parts: dict[ConsumerState, int] = field(default_factory=dict)  # bits, never 0; those of two consumers are disjoint
    held: int = 0  # the bits of all parts; a message of a batch costs no look at all its consumers

    def left_by(self, consumer: ConsumerState) -> int:
        """Return the messages that are not pending at a consumer, a bit each."""
        return ((1 << self.messages) - 1) & ~self.parts.get(consumer, 0)


class PendingAcks:
    """The messages that were delivered and not acknowledged. Each is pending at one consumer.

    Almost every entry is pending as a whole, so an entry is kept without bits until it is divided.

    Attributes:
        is_blocked: True from the limit of the subscription until half of it is reached (I15).
        divided: entries that were delivered in parts, until they are acknowledged: an acknowledgement of one may come
            when nothing of it is pending, and means a part. Other messages are delivered again before new entries,
            so the limit of the subscription bounds them, too (I15).
    """

    def __init__(self) -> None:
        self.is_blocked = False
        self.divided: dict[int, DividedEntry] = {}
        self._consumer_max = PENDING_MESSAGES_PER_CONSUMER_MAX
        self._messages_max = PENDING_MESSAGES_MAX
        self._consumers: dict[int, ConsumerState] = {}  # entry that is not divided -> the consumer it is pending at
        self._messages = 0  # 0 <= messages, the sum over the consumers

    def set_limits(self, per_consumer: int, per_subscription: int, consumers: list[ConsumerState]) -> None:
        """Set how many messages may be pending; 0 means any number. A consumer above its limit is blocked at once."""
        assert per_consumer >= 0, "a limit is a number of messages"
        assert per_subscription >= 0, "a limit is a number of messages"
        self._consumer_max = per_consumer or UNLIMITED
        self._messages_max = per_subscription or UNLIMITED
        self.is_blocked = self._messages >= self._messages_max
        for consumer in consumers:
            consumer.set_blocked(consumer.pending_messages >= self._consumer_max)

    def __contains__(self, index: int) -> bool:
        return index in self._consumers or self.held(index) > 0

    def add(self, consumer: ConsumerState, index: int, messages: int) -> None:
        """Note the delivery of an entry, which costs the consumer ``messages`` permits."""
        assert index not in self._consumers, "an entry is pending at one consumer at a time"  # I22
        assert not (self.divided and index in self.divided), "an entry that was divided is delivered in parts"
        assert messages > 0, "an entry has messages"
        self._consumers[index] = consumer
        consumer.pending[index] = messages
        self._burden(consumer, messages)

    def add_part(self, consumer: ConsumerState, index: int, bits: int, messages: int) -> None:
        """Note the delivery of some of the ``messages`` messages of an entry, each of which costs a permit."""
        assert index not in self._consumers, "an entry is divided before it is pending"
        assert 0 < bits < 1 << messages, "a part has messages of its entry"
        divided = self.divided.setdefault(index, DividedEntry(messages))
        assert not bits & divided.held, "a message is pending at one consumer at a time"  # I22
        parts = divided.parts
        parts[consumer] = parts.get(consumer, 0) | bits
        divided.held |= bits
        consumer.pending[index] = parts[consumer].bit_count()
        self._burden(consumer, bits.bit_count())

    def held(self, index: int) -> int:
        """Return the messages of a divided entry that are pending, a bit each; 0 for an entry that is not divided."""
        divided = self.divided.get(index)
        return 0 if divided is None else divided.held

    def part_of(self, consumer: ConsumerState, index: int, open_bits: int | None) -> tuple[int, int]:
        """Return the messages of an entry that a consumer has pending, as bits, and their number; ``open_bits`` as
        ``given_back``."""
        if self._consumers.get(index) is consumer:
            return self._held_as_whole(consumer, index, open_bits), consumer.pending[index]
        bits = self.divided[index].parts[consumer]
        return bits, bits.bit_count()

    def messages_of(self, index: int, open_bits: int | None) -> int:
        """Return the messages of an entry, as ``Dispatcher.messages_of`` does; ``open_bits`` as ``given_back``."""
        if (divided := self.divided.get(index)) is not None:
            return (1 << divided.messages) - 1
        consumer = self._consumers.get(index)
        return -1 if consumer is None or open_bits is not None else (1 << consumer.pending[index]) - 1

    def release(self, index: int) -> list[Released]:
        """End the pending acknowledgements of an entry that is acknowledged."""
        consumer = self._consumers.pop(index, None)
        if consumer is not None:
            count = consumer.pending.pop(index)
            self._lighten(consumer, count)
            return [(consumer, ALL, count)]
        if not self.divided or (divided := self.divided.pop(index, None)) is None:
            return []
        for one in divided.parts:
            self._lighten(one, one.pending.pop(index))
        return [(one, bits, bits.bit_count()) for one, bits in divided.parts.items()]

    def release_at(self, consumer: ConsumerState, index: int) -> None:
        """Remove a consumer's pending messages of an entry; others may have messages of it pending."""
        if self._consumers.get(index) is consumer:
            self.release(index)
            return
        divided = self.divided[index]
        divided.held ^= divided.parts.pop(consumer)
        assert divided.parts or not divided.held, "pending messages are in a part"
        self._lighten(consumer, consumer.pending.pop(index))

    def given_back(self, consumer: ConsumerState, index: int, bits: int, open_bits: int | None) -> int | None:
        """Return a consumer's pending messages of an entry, a bit each, out of ``bits`` (0: all).

        Args:
            open_bits: the messages of the entry that are not acknowledged; None for all.

        Returns:
            0 for all of an entry that is not divided, None for none.
        """
        if self._consumers.get(index) is not consumer:
            held = self.divided[index].parts[consumer]
            return (held & bits if bits else held) or None
        held = self._held_as_whole(consumer, index, open_bits)
        if not bits or held.bit_count() != consumer.pending[index]:  # more is open than the entry has
            return 0
        some = held & bits
        return (0 if some == held else some) if some else None

    def release_messages(self, consumer: ConsumerState, index: int, bits: int, open_bits: int | None) -> None:
        """End the pending acknowledgement of what ``given_back`` returned, if that is not 0."""
        if self._consumers.get(index) is consumer:
            held = self._held_as_whole(consumer, index, open_bits)
            del self._consumers[index]
            self.divided[index] = DividedEntry(held.bit_length(), {consumer: held}, held)
        self._reduce(self.divided[index], consumer, index, bits)

    def _held_as_whole(self, consumer: ConsumerState, index: int, open_bits: int | None) -> int:
        return (1 << consumer.pending[index]) - 1 if open_bits is None else open_bits

    def shrink(self, index: int, left: int, by: ConsumerState | None = None) -> list[Released]:
        """Release the messages of an entry whose bits are not in ``left``.

        Args:
            by: the consumer that acknowledged them. It may be that others have some of them pending.
        """
        consumer = self._consumers.get(index)
        if consumer is not None:
            messages = left.bit_count()
            gone = consumer.pending[index] - messages
            if gone <= 0:
                return []
            assert messages > 0, "an entry without open messages is acknowledged as a whole"
            consumer.pending[index] = messages
            self._lighten(consumer, gone)
            return [(consumer, ALL, gone)]
        released: list[Released] = []
        divided = self.divided.get(index)
        if divided is not None:
            gone = divided.held & ~left
            while gone:  # of others, the part that was delivered first is acknowledged first
                bits = 0 if by is None else divided.parts.get(by, 0) & gone
                one = by if bits else None
                if one is None:
                    one, bits = next((one, bits & gone) for one, bits in divided.parts.items() if bits & gone)
                self._reduce(divided, one, index, bits)
                released.append((one, bits, bits.bit_count()))
                gone &= ~bits
        return released

    def up_to(self, index: int) -> list[int]:
        return [pending for pending in (*self._consumers, *self.divided) if pending <= index]

    def clear(self, consumers: list[ConsumerState]) -> None:
        """Release and forget every entry (seek, or the last consumer left)."""
        for consumer in consumers:
            consumer.pending.clear()
            consumer.pending_messages = 0
            consumer.set_blocked(False)
        self._consumers.clear()
        self.divided.clear()
        self._messages = 0
        self.is_blocked = False

    def _reduce(self, divided: DividedEntry, consumer: ConsumerState, index: int, bits: int) -> None:
        before = divided.parts[consumer]
        left = before & ~bits
        if not left:
            self.release_at(consumer, index)
        elif left != before:
            divided.parts[consumer] = left
            divided.held ^= before ^ left
            consumer.pending[index] = left.bit_count()
            self._lighten(consumer, (before ^ left).bit_count())

    def _burden(self, consumer: ConsumerState, messages: int) -> None:
        consumer.permits -= messages
        consumer.pending_messages += messages
        self._messages += messages
        if consumer.pending_messages >= self._consumer_max:
            consumer.is_blocked = True
        if self._messages >= self._messages_max:
            self.is_blocked = True

    def _lighten(self, consumer: ConsumerState, messages: int) -> None:
        consumer.pending_messages -= messages
        self._messages -= messages
        assert self._messages >= consumer.pending_messages >= 0, "only pending messages are released"
        if consumer.is_blocked and consumer.pending_messages <= self._consumer_max // 2:
            consumer.set_blocked(False)
        if self.is_blocked and self._messages <= self._messages_max // 2:
            self.is_blocked = False
