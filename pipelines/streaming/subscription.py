"""The durable subscription of a stream: retention waits for it, and its backlog is the unhandled messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from heliograph.base.errors import SubscriptionExistsError, SubscriptionNotFoundError, TopicNotFoundError
from heliograph.client.admin.admin import AdminSync
from heliograph.pipelines.planning.ranges import Position
from heliograph.protocol.topic_name import TopicName

log = logging.getLogger(__name__)


class StreamSubscription:
    """A subscription without consumers, positioned at the end of the last committed batch.

    Args:
        topic: a topic or partitioned topic.
        name: of the subscription.
    """

    def __init__(self, admin: AdminSync, topic: str, name: str) -> None:
        self._admin = admin
        self._topic = TopicName.parse(topic)
        self.name = name

    def open(self, positions: Mapping[int, Position]) -> None:
        """Create the subscription at the beginning of the topic unless it exists; acknowledge up to ``positions``.

        Raises:
            TopicNotFoundError: there is no such topic.
        """
        try:
            self._admin.create_subscription(str(self._topic), self.name, "earliest")
        except SubscriptionExistsError:
            pass
        else:
            log.info("stream of %s: created the subscription %s", self._topic, self.name)
        self._acknowledge(positions)

    def acknowledge(self, positions: Mapping[int, Position]) -> None:
        """Acknowledge everything before ``positions``, by partition. A subscription that was deleted is made again."""
        try:
            self._acknowledge(positions)
        except SubscriptionNotFoundError:
            log.warning("stream of %s: the subscription %s was deleted; it is created again", self._topic, self.name)
            self.open(positions)

    def _acknowledge(self, positions: Mapping[int, Position]) -> None:
        for partition, (ledger_id, entry_id) in positions.items():
            if entry_id == 0:
                continue  # nothing of this ledger was read
            name = self._topic if partition < 0 else self._topic.of_partition(partition)
            try:
                self._admin.cursors.expire_to(str(name), self.name, f"{ledger_id}:{entry_id - 1}")
            except TopicNotFoundError as error:  # the next plan tells what is missing
                log.warning("stream of %s: partition %d is not acknowledged: %s", self._topic, partition, error)
