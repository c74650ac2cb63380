"""The topic from outside: its ledgers and their segments, and what the bookies count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

from heliograph import discovery
from heliograph.admin import AdminSync


class TopicView:
    """Asks brokers and bookies, through their actors."""

    def __init__(self, topic: str, partitions: int, namespace: str) -> None:
        self._topic = topic
        self._partitions = partitions
        self._namespace = namespace
        self._admin = AdminSync(namespace)

    def create(self, persistence: Mapping[str, int]) -> None:
        """Create the topic.

        Raises:
            TopicExistsError: it is there already.
        """
        self._admin.create_topic(self._topic, self._partitions, persistence)

    def create_side_topic(self, name: str) -> None:
        """Create another topic, with the cluster's usual numbers of copies.

        Raises:
            TopicExistsError: it is there already.
        """
        self._admin.create_topic(name)

    def ensembles(self) -> list[list[list[str]]]:
        """Of the newest ledger of each partition, the bookies of each segment, in order."""
        return [segments[max(segments)] for segments in self._ledgers() if segments]

    def segments(self) -> dict[int, int]:
        """How many segments each ledger has."""
        return {ledger: len(segments) for part in self._ledgers() for ledger, segments in part.items()}

    def journal_bytes_fsynced(self) -> int:
        """By all bookies that answer, since they started."""
        names = [name for name in discovery.actor_names(self._namespace) if name.startswith(discovery.BOOKIE_PREFIX)]
        asked = [discovery.actor(name, self._namespace).statistics.remote() for name in names]
        return sum(int(answer["journal_bytes_fsynced"]) for answer in ray.get(asked))

    def _ledgers(self) -> list[dict[int, list[list[str]]]]:
        """For each partition, the segments' bookies by ledger id."""
        return [self._ledgers_of(f"{self._topic}-partition-{index}") for index in range(self._partitions)]

    def _ledgers_of(self, topic: str) -> dict[int, list[list[str]]]:
        ledgers: list[dict[str, Any]] = self._admin.topic_internal_stats(topic)["ledgers"]
        return {
            int(ledger["ledgerId"]): [list(segment["bookies"]) for segment in ledger["ensembles"]] for ledger in ledgers
        }
