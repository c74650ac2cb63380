"""Small sabotages of what moves cursors without acknowledgements, delays what is delivered, or counts messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

from heliograph.actors.broker.cursor.cursor import Cursor, CursorDelta
from heliograph.actors.broker.delayed.delivery import DelayedDelivery
from heliograph.actors.broker.delayed.index import DelayedIndex, Item
from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.position import Position
from tests.sabotage import sabotaged
from tests.simulation.mutants.mutant import TOPIC, mutant

BROKER = "heliograph.actors.broker"

# -- seeks


@mutant(start=57, world=TOPIC)
def store_a_seek_as_an_acknowledgement() -> Iterator[None]:
    """A seek back is stored as a mark that may only go forward: the next owner does not know it (I11)."""
    real = Cursor.take_delta

    def take_delta(self: Cursor) -> CursorDelta | None:
        delta = real(self)
        return None if delta is None else replace(delta, reset=False)

    with patch.object(Cursor, "take_delta", take_delta):
        yield


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


@mutant(world=TOPIC)
def round_times_of_delivery_down() -> Iterator[None]:
    """Messages are delivered at the tick before their time (delay)."""
    real = DelayedDelivery.hold_back

    def hold_back(self: DelayedDelivery, index: int, due_ms: int, tick_ms: int = 0) -> bool:
        return real(self, index, due_ms // tick_ms * tick_ms if tick_ms else due_ms, tick_ms)

    with patch.object(DelayedDelivery, "hold_back", hold_back):
        yield


@mutant(start=26, world=TOPIC)
def forget_a_stored_run() -> Iterator[None]:
    """Entries whose times were stored are never looked at again (liveness)."""

    def stored(self: DelayedIndex, key: Position, items: list[Item]) -> None:
        storing, self._storing = self._storing, {}
        self._heap = [item for item in self._heap if item[1] not in storing]

    with patch.object(DelayedIndex, "stored", stored):
        yield


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


@mutant(world=TOPIC, start=66)
def count_the_crash_of_a_part_for_its_batch() -> Iterator[None]:
    """What a lost consumer held of a batch raises the count of crashes of all its messages (I22)."""
    real = Cursor.count_crash

    def count(self: Cursor, index: int, bits: int = 0) -> None:
        real(self, index)

    with patch.object(Cursor, "count_crash", count):
        yield


@mutant(world=TOPIC)
def count_what_waits_as_all_that_callers_had() -> Iterator[None]:
    """The messages that waited in the queue of a lost consumer count as lost alone, and become dead letters (I22)."""
    where = f"{BROKER}.dispatch.dispatcher:Dispatcher.count_crash"
    with sabotaged(where, "consumer.in_hand[0] == index", "consumer.in_hand[0] != index"):
        yield


@mutant(world=TOPIC)
def forget_crashes_in_a_failover() -> Iterator[None]:
    """The next owner of a topic counts the crashes of each message from 0 (I11)."""
    real = Cursor.restore_counts

    def restore(self: Cursor, index: int, number: int, restored: Any) -> None:
        if restored.__self__ is self.refused:
            real(self, index, number, restored)

    with patch.object(Cursor, "restore_counts", restore):
        yield


@mutant(world=TOPIC)
def count_a_part_as_its_batch() -> Iterator[None]:
    """The acknowledgement of a message of a batch takes all of the batch from the backlog (counts)."""
    where = f"{BROKER}.cursor.cursor:Cursor.acknowledge_messages"
    with sabotaged(where, "messages - left.bit_count()", "messages"):
        yield


@mutant(world=TOPIC)
def count_on_over_a_jump_of_the_mark() -> Iterator[None]:
    """A cursor that passes entries whose messages it did not count keeps its number (counts)."""
    with sabotaged(f"{BROKER}.cursor.cursor:Cursor.skip_to", "self._messages_since = None", "pass"):
        yield
