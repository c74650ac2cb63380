"""Which consumer of a Failover subscription is the active one (pure).

Among the consumers of the best priority: for a partition the one with its number, counted round, so that the partitions
of a topic spread evenly; for a topic without partitions the next on a ring of hashes, so that somebody who comes or
goes changes the choice only where it concerns him.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.broker.dispatch import ConsumerState
from heliograph.protocol.hashing import murmur3_hash
from heliograph.protocol.topic_name import TopicName

POINTS_PER_CONSUMER = 100  # on the ring


@dataclass(frozen=True, slots=True)
class FailoverChoice:
    """``partition`` is -1 for a topic without partitions, whose place on the ring is ``topic_hash``."""

    partition: int
    topic_hash: int = 0

    @staticmethod
    def of(topic: TopicName) -> FailoverChoice:
        """The choice for a topic or partition."""
        return FailoverChoice(topic.partition, murmur3_hash(str(topic)))

    def choose(self, consumers: Sequence[ConsumerState]) -> ConsumerState | None:
        """The active one, None when there are none. The same for the same consumers, whatever their order."""
        if not consumers:
            return None
        best = min(consumer.priority for consumer in consumers)
        candidates = sorted((c for c in consumers if c.priority == best), key=lambda c: (c.name, c.key))
        if self.partition >= 0 or len(candidates) == 1:
            return candidates[max(self.partition, 0) % len(candidates)]
        points = [
            (murmur3_hash(f"{candidate.name}-{number}"), place)
            for place, candidate in enumerate(candidates)
            for number in range(POINTS_PER_CONSUMER)
        ]
        behind = [point for point in points if point[0] >= self.topic_hash]
        return candidates[min(behind or points)[1]]
