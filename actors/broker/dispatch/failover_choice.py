"""The choice of the active consumer of a Failover subscription (pure).

The choice is among the consumers of the best priority, in the order of their names. For partition n it is the n-th of
them, modulo their number, so that the partitions of a topic spread evenly. For a topic without partitions it is the
next one on a ring of hashes, so that a consumer that joins or leaves changes the choice of few topics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState
from heliograph.protocol.hashing import murmur3_hash
from heliograph.protocol.topic_name import TopicName

POINTS_PER_CONSUMER = 100  # on the ring of hashes


@dataclass(frozen=True, slots=True)
class FailoverChoice:
    """The rule of one topic or partition."""

    partition: int  # -1 for a topic without partitions
    topic_hash: int = 0  # where such a topic is on the ring

    @staticmethod
    def of(topic: TopicName) -> FailoverChoice:
        return FailoverChoice(topic.partition, murmur3_hash(str(topic)))

    def choose(self, consumers: Sequence[ConsumerState]) -> ConsumerState | None:
        """Return the active consumer, None without consumers. The order of ``consumers`` does not matter."""
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
        following = [point for point in points if point[0] >= self.topic_hash]
        return candidates[min(following or points)[1]]
