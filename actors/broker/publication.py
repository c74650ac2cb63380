"""An entry on its way into a topic's ledger: who hears of its fate, and what the ledger does with it meanwhile."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Protocol

from actors.broker.position import Position
from actors.broker.topic_entry import TopicEntry
from heliograph.errors import HeliographError


class Publication(Protocol):
    """Who published an entry, and hears of its fate. Called in publish order."""

    def confirmed(self, position: Position) -> None:
        """The entry is durable at ``position``."""

    def failed(self, error: HeliographError) -> None:
        """The entry's outcome is unknown, and the publisher has to try again or give up."""


class WriteState(enum.Enum):
    """WRITING: adds go to the writer. DRAINING: they wait for a new ledger. RECOVERING: they wait for a verdict on the
    failed one. TERMINATED: there are none for good. CLOSED: they fail."""

    WRITING = "writing"
    DRAINING = "draining"
    RECOVERING = "recovering"
    TERMINATED = "terminated"
    CLOSED = "closed"


@dataclass(slots=True)
class PendingAdd:
    """An entry that is not confirmed yet."""

    entry: TopicEntry
    publication: Publication
