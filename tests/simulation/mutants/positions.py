"""Small sabotages of what moves cursors otherwise than acknowledgements, or delays what is delivered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch
from weakref import WeakKeyDictionary

from heliograph.actors.broker.cursor.cursor import Cursor, CursorDelta
from heliograph.actors.broker.delayed.delivery import DelayedDelivery
from heliograph.actors.broker.delayed.index import DelayedIndex, Item
from heliograph.actors.broker.dispatch.multiple_consumers import MultipleConsumersDispatcher
from heliograph.actors.broker.records.position import Position
from tests.simulation.mutants.mutant import TOPIC, mutant

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
