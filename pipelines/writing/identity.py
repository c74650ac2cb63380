"""The names under which rows are written once."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.client.admin.admin import AdminSync
from heliograph.protocol.topic_name import TopicName

ROW_BITS = 40  # of a sequence id; the bits above are the batch
BATCH_IDS_MAX = 1 << 22


@dataclass(frozen=True)
class WriteIdentity:
    """The names that make a write repeatable.

    Args:
        query: the name of the query, which no other query writes to the topic under.
        batch_id: of its batch, growing with each.
    """

    query: str
    batch_id: int = 0

    def __post_init__(self) -> None:
        if not self.query or not 0 <= self.batch_id < BATCH_IDS_MAX:
            raise BadRequestError(
                f"query {self.query!r}, batch id {self.batch_id}", field="batch_id", limit=f"0 to {BATCH_IDS_MAX - 1}"
            )

    @property
    def first_sequence_id(self) -> int:
        """Return the sequence id of the first row of the batch, in each task and partition of a topic."""
        return self.batch_id << ROW_BITS


def check_deduplicates(admin: AdminSync, topic: TopicName) -> None:
    """Do nothing if rows can be written once to a topic, which is created if topics create themselves.

    Raises:
        UnsupportedError: the topic does not deduplicate.
    """
    first = topic.partitions(admin.partitions(str(topic), may_create=True))[0]
    stats = admin.topic_stats(str(first))
    if stats.get("deduplicationStatus") != "Enabled":
        raise UnsupportedError(
            f"{topic} does not deduplicate, so rows cannot be written exactly once: set its policy deduplication, or "
            "leave query out",
            field="query",
        )
