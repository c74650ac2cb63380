"""A view of the topic's ledgers and segments, and of the bookies' counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

from heliograph.client import discovery
from heliograph.client.admin.admin import AdminSync


class TopicView:
    """A view of one topic that calls the actors of brokers and bookies."""

    def __init__(self, topic: str, partitions: int, namespace: str) -> None:
        self._topic = topic
        self._partitions = partitions
        self._namespace = namespace
        self._admin = AdminSync(namespace)

    def create(self, persistence: Mapping[str, int]) -> None:
        """Create the topic.

        Raises:
            TopicExistsError: the topic exists.
        """
        self._admin.create_topic(self._topic, self._partitions, persistence)

    def create_side_topic(self, name: str) -> None:
        """Create another topic, with the cluster's default number of copies.

        Raises:
            TopicExistsError: the topic exists.
        """
        self._admin.create_topic(name)

    def ensembles(self) -> list[list[list[str]]]:
        """Return the bookies of each segment, in order, of the newest ledger of each partition."""
        return [segments[max(segments)] for segments in self._ledgers() if segments]

    def segments(self) -> dict[int, int]:
        """Return the number of segments of each ledger."""
        return {ledger: len(segments) for part in self._ledgers() for ledger, segments in part.items()}

    def journal_bytes_fsynced(self) -> int:
        """Return the bytes that the journals of all bookies fsynced since they started."""
        names = [name for name in discovery.actor_names(self._namespace) if name.startswith(discovery.BOOKIE_PREFIX)]
        asked = [discovery.actor(name, self._namespace).statistics.remote() for name in names]
        return sum(int(answer["journal_bytes_fsynced"]) for answer in ray.get(asked))

    def _ledgers(self) -> list[dict[int, list[list[str]]]]:
        """Return the segments' bookies by ledger id, for each partition."""
        return [self._ledgers_of(f"{self._topic}-partition-{index}") for index in range(self._partitions)]

    def _ledgers_of(self, topic: str) -> dict[int, list[list[str]]]:
        ledgers: list[dict[str, Any]] = self._admin.topic_internal_stats(topic)["ledgers"]
        return {
            int(ledger["ledgerId"]): [list(segment["bookies"]) for segment in ledger["ensembles"]] for ledger in ledgers
        }
