"""Who gets the next entry: what all dispatchers share (pure).

A dispatcher decides; it moves no bytes. The subscription asks ``next_wanted``, finds that entry, and tells the
dispatcher ``deliver``, which names the consumer that gets it. Between the two calls anything may have changed, so the
subscription asks again after every wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from actors.broker.cursor import Cursor
from actors.broker.topic_entry import TopicEntry


@dataclass(slots=True, eq=False)
class ConsumerState:
    """A consumer as dispatchers see it.

    ``permits`` is how many more messages it asked for; it may go below zero, because entries are not split.
    ``is_writable`` is False while its connection has too much to write, ``is_blocked`` while it holds too much
    unacknowledged (I15).
    """

    key: int  # unique in this broker
    name: str
    priority: int = 0  # 0 is served first
    permits: int = 0
    is_writable: bool = True
    key_ranges: tuple[tuple[int, int], ...] | None = None  # Key_Shared: fixed hash ranges, both ends included
    allow_out_of_order: bool = False  # Key_Shared: keys may move while messages are held
    held: dict[int, int] = field(default_factory=dict)  # entries delivered and not acknowledged -> their messages
    held_messages: int = 0
    is_blocked: bool = False


class Delivery(NamedTuple):
    """One entry goes to one consumer."""

    consumer: ConsumerState
    redelivery_count: int


class Waiting(Protocol):
    """Entries that nobody gets before their time; ``count`` of them."""

    count: int

    def next_not_waiting(self, index: int) -> int:
        """The first entry at or above ``index`` that does not wait."""


def next_open(cursor: Cursor, waiting: Waiting | None, index: int) -> int:
    """The first entry at or above ``index`` that is neither acknowledged nor waiting; may be the end of the topic."""
    index = cursor.next_unacknowledged(index)
    if waiting is None or not waiting.count:
        return index
    while (behind := waiting.next_not_waiting(index)) != index:
        index = cursor.next_unacknowledged(behind)
    return index


class Dispatcher(Protocol):
    """Decides for one subscription."""

    @property
    def consumers(self) -> list[ConsumerState]:
        """Everybody connected."""

    @property
    def active(self) -> ConsumerState | None:
        """The one consumer that gets everything, where the type has such."""

    @property
    def read_index(self) -> int:
        """The first entry never delivered since the last rewind."""

    @property
    def replay_count(self) -> int:
        """Entries waiting to be delivered again."""

    @property
    def due_count(self) -> int:
        """Those of them that nobody has looked at since their time came."""

    @property
    def is_blocked(self) -> bool:
        """Whether too many messages are unacknowledged to deliver more."""

    def add(self, consumer: ConsumerState) -> None:
        """A consumer connects. Raises ConsumerBusyError when there is no place for it."""

    def remove(self, consumer: ConsumerState) -> None:
        """A consumer leaves; what it held is delivered again, without a higher redelivery count."""

    def next_wanted(self, end: int) -> int | None:
        """The entry below ``end`` to deliver next, or None when nothing can be delivered now."""

    def deliver(self, index: int, entry: TopicEntry, messages: int) -> Delivery | None:
        """``next_wanted`` said ``index``; choose who gets it. ``messages`` is what it costs in permits.

        None: whoever has to get this entry cannot take it now, and ``next_wanted`` will name it again later.
        """

    def skip(self, index: int) -> None:
        """``next_wanted`` said ``index``, but nobody has to get it, or not now: then ``make_due`` names it again."""

    def make_due(self, indexes: Iterable[int]) -> None:
        """The time of these entries has come."""

    def set_limits(self, per_consumer: int, per_subscription: int) -> None:
        """How many messages may be delivered and not acknowledged; 0 for any number."""

    def acknowledged(self, index: int) -> None:
        """The whole entry is acknowledged."""

    def partly_acknowledged(self, index: int, messages: int) -> None:
        """So many messages of the entry are not acknowledged yet."""

    def acknowledged_up_to(self, index: int) -> None:
        """Every entry up to and with ``index`` is acknowledged."""

    def redeliver(self, consumer: ConsumerState, indexes: Iterable[int] | None) -> None:
        """The consumer wants these entries (None: all it holds) to be delivered again."""

    def rewind(self) -> None:
        """Start over at the cursor's mark (seek)."""
