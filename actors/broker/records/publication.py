"""An entry that is published and not confirmed yet, and the interface that hears its outcome."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import HeliographError


class Publication(Protocol):
    """The publisher of one entry. A ledger reports outcomes in publish order, one for each entry."""

    __slots__ = ()

    def confirmed(self, position: Position) -> None:
        """Report that the entry is durable at ``position``."""

    def failed(self, error: HeliographError) -> None:
        """Report that the outcome of the entry is unknown: the publisher sends it again or abandons it."""

    def delayed(self, error: HeliographError) -> None:
        """Report why the outcome of the entry cannot be told now. ``confirmed`` or ``failed`` follows in any case."""


# An entry that is not confirmed yet. It is a plain tuple, because one is made for each message.
PendingPublish = tuple[TopicEntry, Publication]
NOTHING_PENDING: deque[PendingPublish] = deque(maxlen=0)  # holds nothing ever: an idle topic has no deque of its own
