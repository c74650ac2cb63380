"""The consumers of a subscription that may be able to take something, in the order of their turns (pure).

Thousands of busy consumers cost nothing here: a consumer that cannot take is dropped when its turn comes, and comes
back when it can (``ConsumerState.on_able``).
"""

from __future__ import annotations

from collections import OrderedDict

from sortedcontainers import SortedDict

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState


class Takers:
    """Every connected consumer that can take is here. Others may be."""

    def __init__(self) -> None:
        self._levels: SortedDict[int, OrderedDict[ConsumerState, None]] = SortedDict()  # by priority, none empty

    def add(self, consumer: ConsumerState) -> None:
        """Add a consumer behind the others of its priority. Do nothing if it is there."""
        level = self._levels.get(consumer.priority)
        if level is None:
            level = self._levels[consumer.priority] = OrderedDict()
        level.setdefault(consumer)

    def remove(self, consumer: ConsumerState) -> None:
        """Remove a consumer if it is there."""
        level = self._levels.get(consumer.priority)
        if level is not None and consumer in level:
            self._drop(consumer, level)

    def first(self) -> ConsumerState | None:
        """Return the consumer of the best priority that can take, whose turn is first; None if no consumer can."""
        while self._levels:
            _, level = self._levels.peekitem(0)
            consumer: ConsumerState = next(iter(level))
            if consumer.can_take:
                return consumer
            self._drop(consumer, level)
        return None

    def to_end(self, consumer: ConsumerState) -> None:
        """Put the consumer that ``first`` returned behind the others of its priority."""
        self._levels[consumer.priority].move_to_end(consumer)

    def _drop(self, consumer: ConsumerState, level: OrderedDict[ConsumerState, None]) -> None:
        del level[consumer]
        if not level:
            del self._levels[consumer.priority]
