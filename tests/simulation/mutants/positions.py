"""Small sabotages of what moves cursors without acknowledgements, delays what is delivered, or counts messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from heliograph.actors.broker.cursor.cursor import Cursor, CursorDelta
from heliograph.actors.broker.delayed.delivery import DelayedDelivery
from heliograph.actors.broker.delayed.index import DelayedIndex, Item
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.position import Position
from tests.simulation.mutants.mutant import TOPIC, changed, edit, mutant, replaced

BROKER = "heliograph.actors.broker"

# -- seeks


@changed(Cursor, "take_delta", start=57, world=TOPIC)
def store_a_seek_as_an_acknowledgement(real: Callable[..., CursorDelta | None], self: Cursor) -> CursorDelta | None:
    """A seek back is stored as a mark that may only go forward: the next owner does not know it (I11)."""
    delta = real(self)
    return None if delta is None else delta._replace(reset=False)


@mutant(world=TOPIC)
def confirm_a_seek_before_it_is_stored() -> Iterator[None]:
    """A seek is confirmed when the cursor moved in memory (I11)."""

    async def at_once(future: asyncio.Future[None]) -> None:
        return None

    with patch("heliograph.actors.broker.subscription.subscription.shielded", at_once):
        yield


@mutant(start=2, world=TOPIC)
def seek_without_a_rewind() -> Iterator[None]:
    """The dispatcher of a Shared or Key_Shared subscription stays where it was when the cursor is moved (liveness)."""
    real, seen = MultipleConsumersDispatcher.rewind, WeakKeyDictionary[MultipleConsumersDispatcher, int]()

    def rewind(self: MultipleConsumersDispatcher) -> None:
        resets = self._cursor.resets
        if seen.setdefault(self, resets) == resets:
            real(self)
        seen[self] = resets

    with patch.object(MultipleConsumersDispatcher, "rewind", rewind):
        yield


@mutant(start=25, world=TOPIC)
def forget_redelivery_counts_in_a_failover() -> Iterator[None]:
    """A new owner counts the redeliveries of each entry from 0 again (I11)."""
    with patch.object(Cursor, "restore_counts", lambda self, index, number, restore: None):
        yield


# -- delays


@changed(DelayedDelivery, "hold_back", world=TOPIC)
def round_times_of_delivery_down(
    real: Callable[..., bool], self: DelayedDelivery, index: int, due_ms: int, tick_ms: int = 0
) -> bool:
    """Messages are delivered at the tick before their time (delay)."""
    return real(self, index, due_ms // tick_ms * tick_ms if tick_ms else due_ms, tick_ms)


@replaced(DelayedIndex, "stored", start=26, world=TOPIC)
def forget_a_stored_run(self: DelayedIndex, key: Position, items: list[Item]) -> None:
    """Entries whose times were stored are never looked at again (liveness)."""
    storing, self._storing = self._storing, {}
    self._heap = [item for item in self._heap if item[1] not in storing]


# -- permits, crashes of consumers, backlogs


@mutant(world=TOPIC)
def deliver_a_whole_batch_for_one_permit() -> Iterator[None]:
    """A consumer gets all messages of a batch that it may have, however few it asks for (I15)."""
    with patch.object(MultipleConsumersDispatcher, "_takes_less", lambda self, consumer, count: False):
        yield


@mutant(world=TOPIC)
def deliver_without_permits() -> Iterator[None]:
    """A consumer whose connection takes bytes is sent entries that it does not ask for (I15)."""
    able = property(lambda self: self.permits > -3 and self.is_writable and not self.is_blocked)
    with patch.object(ConsumerState, "can_take", able):
        yield


@changed(Cursor, "count_crash", world=TOPIC, start=66)
def count_the_crash_of_a_part_for_its_batch(real: Callable[..., None], self: Cursor, index: int, bits: int = 0) -> None:
    """What a lost consumer held of a batch raises the count of crashes of all its messages (I22)."""
    real(self, index)


@edit(
    f"{BROKER}.dispatch.dispatcher:Dispatcher.count_crash",
    "consumer.in_hand[0] == index",
    "consumer.in_hand[0] != index",
    world=TOPIC,
)
def count_what_waits_as_all_that_callers_had() -> None:
    """The messages that waited in the queue of a lost consumer count as lost alone, and become dead letters (I22)."""


@changed(Cursor, "restore_counts", world=TOPIC)
def forget_crashes_in_a_failover(
    real: Callable[..., None], self: Cursor, index: int, number: int, restored: Any
) -> None:
    """The next owner of a topic counts the crashes of each message from 0 (I11)."""
    if restored.__self__ is self.refused:
        real(self, index, number, restored)


@edit(f"{BROKER}.cursor.cursor:Cursor.acknowledge_messages", "messages - left.bit_count()", "messages", world=TOPIC)
def count_a_part_as_its_batch() -> None:
    """The acknowledgement of a message of a batch takes all of the batch from the backlog (counts)."""


@edit(f"{BROKER}.cursor.cursor:Cursor.skip_to", "self._messages_since = None", "pass", world=TOPIC)
def count_on_over_a_jump_of_the_mark() -> None:
    """A cursor that passes entries whose messages it did not count keeps its number (counts)."""
