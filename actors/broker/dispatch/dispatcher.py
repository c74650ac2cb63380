"""The interface of all dispatchers, and their state of a consumer (pure).

A dispatcher decides and moves no bytes. The subscription asks ``next_wanted``, fetches that entry, and calls
``deliver``, which names the consumer that gets it. Anything may change between the two calls, so the subscription asks
again after every wait.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.records.topic_entry import TopicEntry

CRASHES_MAX = 10_000  # entries that are counted for one lost connection, which takes 10 ms (I24)
CRASH_PART, CRASH_MESSAGES = 3, 400  # a part counts as 3 entries, and as one more for each 400 messages of its batch


@dataclass(slots=True)
class CrashBudget:
    """The number of messages that all consumers of one lost connection may still count as crashed."""

    left: int = CRASHES_MAX


@dataclass(slots=True, eq=False)
class ConsumerState:
    """A consumer as dispatchers see it.

    ``is_writable`` is False while its connection has too much to write, ``is_blocked`` while it has too many
    unacknowledged messages (I15).
    """

    key: int  # unique in this broker
    name: str
    priority: int = 0  # 0 is served first
    permits: int = 0  # messages it still asks for; below 0 when the last entry had more and was not divided
    takes_parts: bool = False  # it acknowledges single messages of a batch, so it may get a part of one
    asks_exactly: bool = False  # more messages than it asks for would wait behind a busy caller
    returns_skipped: bool = False  # its client asks again for the messages of a batch that were not meant for it
    follows_sets: bool = False  # its client takes what a delivery leaves out for acknowledged, and says so in its ACK
    is_writable: bool = True
    key_ranges: tuple[tuple[int, int], ...] | None = None  # Key_Shared: fixed hash ranges, both ends included
    allow_out_of_order: bool = False  # Key_Shared: a key may change its consumer while messages are unacknowledged
    pending: dict[int, int] = field(default_factory=dict)  # entries delivered and not acknowledged -> its messages
    pending_messages: int = 0  # the sum of the values of ``pending``
    is_blocked: bool = False
    in_hand: tuple[int, int] | None = (
        None  # the one message that callers of its client have: entry, bit; None: not known
    )
    on_able: Callable[[ConsumerState], None] | None = None  # of its dispatcher: it may be able to take again

    @property
    def can_take(self) -> bool:
        """Whether the consumer asks for more, its socket takes it, and it has acknowledged enough."""
        return self.permits > 0 and self.is_writable and not self.is_blocked

    def flow(self, permits: int, *, takes_back: bool = False) -> None:
        """Let the consumer take ``permits`` more messages; if ``takes_back``, these and no others."""
        self.permits = permits if takes_back else self.permits + permits
        self.asks_exactly = takes_back
        self._tell()

    def set_writable(self, is_writable: bool) -> None:
        """Note whether its connection takes more bytes."""
        self.is_writable = is_writable
        self._tell()

    def set_blocked(self, is_blocked: bool) -> None:
        """Note whether it has too many unacknowledged messages."""
        self.is_blocked = is_blocked
        self._tell()

    def _tell(self) -> None:
        if self.on_able is not None and self.can_take:
            self.on_able(self)


class Delivery(NamedTuple):
    """One entry, or some messages of it, goes to one consumer.

    ``bits`` has a bit for each of the ``messages`` that it gets, None for all of the entry. ``left`` messages of the
    entry wait for other consumers.
    """

    consumer: ConsumerState
    redelivery_count: int
    messages: int
    bits: int | None
    left: int = 0
    crashes: int = 0  # how often the messages were lost with a consumer
    lone_crashes: int = 0  # of these, how often it had nothing else in hand


class DelayedEntries(Protocol):
    """The entries of a subscription whose delivery time has not come; ``count`` of them."""

    count: int

    def next_not_waiting(self, index: int) -> int:
        """Return the first entry at or above ``index`` that is not delayed."""


class Dispatcher(ABC):
    """The decisions for one subscription. Methods that are not abstract are for types without the feature."""

    delivers_by_key = False  # whether ``ranges_of`` and ``draining_of`` have something to tell

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.consumers: list[ConsumerState] = []  # the connected ones
        self.active: ConsumerState | None = None  # the one consumer that gets everything, where the type has one
        self.read_index = cursor.mark  # the first entry that was not delivered or skipped since the last rewind

    # -- consumers

    @abstractmethod
    def add(self, consumer: ConsumerState) -> None:
        """Connect a consumer.

        Raises:
            ConsumerBusyError: the type has no place for another consumer.
            ConsumerAssignError: its key ranges are malformed or overlap another consumer's.
        """

    @abstractmethod
    def remove(self, consumer: ConsumerState) -> None:
        """Disconnect a consumer. Its pending entries are delivered again, without a higher redelivery count."""

    def count_crash(self, consumer: ConsumerState, budget: CrashBudget) -> None:
        """Count a consumer's pending messages as lost with it, the oldest deliveries first, up to the budget.
        ``remove`` comes next."""
        for index in consumer.pending:
            if budget.left <= 0:
                return
            bits = self._held_part(consumer, index)
            budget.left -= CRASH_PART + self.messages_of(index).bit_length() // CRASH_MESSAGES if bits else 1
            self._cursor.count_crash(index, bits)
            if consumer.in_hand is not None and consumer.in_hand[0] == index:
                self._count_alone(index, bits, consumer.in_hand[1])

    def _count_alone(self, index: int, held: int, bit: int) -> None:
        """Count a message of an entry, of which a consumer held ``held`` (0: all), as all that it had in hand. Do
        nothing if the message is acknowledged."""
        open_bits = self._cursor.unacknowledged_bits(index)
        if not held and open_bits is None and self.messages_of(index) in (-1, 1):
            self._cursor.count_crash_alone(index)
        elif (held or -1) & (-1 if open_bits is None else open_bits) & self.messages_of(index) & bit:
            self._cursor.count_crash_alone(index, bit)

    def _held_part(self, consumer: ConsumerState, index: int) -> int:
        """Return the messages that a consumer has pending of a divided entry, 0 if it has a whole entry."""
        return 0

    @abstractmethod
    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """Set how many messages may be delivered and not acknowledged; 0 means any number."""

    def hold_off(self) -> None:
        """Deliver nothing until ``resume``: the active consumer has changed, and acknowledgements of the one before it
        may still be on their way. Only a type with an active consumer is asked for this."""
        raise AssertionError("only a type with an active consumer holds off")

    def resume(self) -> bool:
        """End ``hold_off`` and deliver the unacknowledged entries. Return False if none was held off."""
        return False

    # -- delivery

    @abstractmethod
    def next_wanted(self, end: int) -> int | None:
        """Return the entry below ``end`` to deliver next, or None if nothing can be delivered now."""

    def wants_keys(self, index: int) -> bool:
        """Return whether ``deliver`` divides an entry by the keys of its messages, and has to be given them."""
        return False

    @abstractmethod
    def deliver(self, index: int, entry: TopicEntry, messages: int, bits: int | None = None) -> Delivery | None:
        """Choose the consumer of the entry that ``next_wanted`` returned, or of a part of it.

        Args:
            messages: how many messages of the entry are not acknowledged.
            bits: these messages, a bit each; None for all of the entry.

        Returns:
            None if the consumer that has to get this entry cannot take it now; ``next_wanted`` will return it again.
        """

    @abstractmethod
    def skip(self, index: int) -> None:
        """Pass over the entry that ``next_wanted`` returned. Only ``make_due`` or a rewind brings it back."""

    @abstractmethod
    def make_due(self, indexes: Iterable[int]) -> None:
        """Deliver entries that were skipped because their delivery time had not come."""

    @property
    def replay_count(self) -> int:
        """The number of entries below ``read_index`` that wait for delivery."""
        return 0

    @property
    def due_count(self) -> int:
        """The number of those entries that ``next_wanted`` returns as soon as a consumer can take something."""
        return 0

    @property
    def is_blocked(self) -> bool:
        """Whether the subscription has too many unacknowledged messages to deliver more."""
        return False

    # -- acknowledgements

    @abstractmethod
    def acknowledged(self, index: int) -> None:
        """Note that the whole entry is acknowledged."""

    @abstractmethod
    def partly_acknowledged(self, index: int, left: int, by: ConsumerState | None = None) -> None:
        """Note that only the messages of the entry whose bits are in ``left`` are not acknowledged yet, by a consumer
        if that is known."""

    @property
    def divided(self) -> Mapping[int, object]:
        """Return the entries that were delivered in parts and are not acknowledged, by their indexes."""
        return {}

    def left_by(self, index: int, consumer: ConsumerState) -> int:
        """Return the messages that an acknowledgement of a whole entry by a consumer leaves unacknowledged, a bit each:
        all but its part of a divided entry, 0 of another one."""
        return 0

    def messages_of(self, index: int) -> int:
        """Return the messages that a pending entry has, a bit each, perhaps without acknowledged ones; -1 if that is
        not known."""
        return -1

    def left_after(
        self, index: int, bits: int | None, messages: int | None, consumer: ConsumerState | None
    ) -> tuple[int | None, int | None]:
        """Return which messages of an entry an acknowledgement leaves, and how many the entry has, if that is known.

        Args:
            bits: that the consumer leaves; None if it named the whole entry, which may mean its part.
            messages: that are pending at the consumer.
        """
        if bits is not None:
            known = self.messages_of(index)
            bits &= known  # a client may name more than the batch has
            if consumer is not None and consumer.follows_sets:
                bits |= self.left_by(index, consumer)  # what others hold is not its to acknowledge
            return bits, known.bit_count() if known >= 0 else messages
        if consumer is not None and (bits := self.left_by(index, consumer)):
            messages = self.messages_of(index).bit_count()
        return bits, messages

    @abstractmethod
    def acknowledged_up_to(self, index: int) -> None:
        """Note that every entry up to and including ``index`` is acknowledged."""

    @abstractmethod
    def redeliver(
        self, consumer: ConsumerState, entries: Mapping[int, int] | None, *, is_unhandled: bool = False
    ) -> None:
        """Deliver entries again that the consumer gives back: of each the messages whose bits are given, 0 for all that
        it has pending; None for all its pending entries. That is a refusal unless they are ``is_unhandled``."""

    @abstractmethod
    def rewind(self) -> None:
        """Start over at the cursor's mark-delete position, with no entry pending (seek)."""

    # -- what statistics ask

    @property
    def draining_hashes(self) -> int:
        """The number of key hashes whose entries are pending at another consumer than their owner."""
        return 0

    def ranges_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """Return the ranges of key hashes that the consumer owns, both ends included."""
        return []

    def draining_of(self, consumer: ConsumerState) -> list[tuple[int, int]]:
        """Return (hash, pending entries) for the hashes that the consumer does not own any more."""
        return []
