"""The names and numbers under which rows are written once.

A task publishes under a name made of the query and its own number, and numbers its rows from the first sequence id of
the batch on. The first ``EARLY_BATCHES`` batches of a query leave 40 bits of a sequence id for rows, as every version
does, so that versions that run the same batch agree. After them a name has an epoch, too: 2^31 batches with 2^31 rows
of a task, and then the next epoch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.client.admin.admin import AdminSync
from heliograph.protocol.topic_name import TopicName

EARLY_BATCHES, EARLY_ROW_BITS = 1 << 22, 40
EPOCH_BITS, ROW_BITS = 31, 31  # of the batch within its epoch, and of the row
BATCH_IDS_MAX = 1 << 40
TASKS_MAX = 10_000  # of a batch: as many producers that left are known to a broker for each partition of a topic
_EPOCH_OF_ANOTHER = re.compile(r"/~\d+$")


@dataclass(frozen=True)
class WriteIdentity:
    """The names that make a write repeatable.

    Args:
        query: the name of the query, which no other query writes to the topic under.
        batch_id: of its batch, growing with each.
        writes_in_doubt: write also where nobody knows whether an earlier run has.
    """

    query: str
    batch_id: int = 0
    writes_in_doubt: bool = False

    def __post_init__(self) -> None:
        if not self.query or not 0 <= self.batch_id < BATCH_IDS_MAX:
            raise BadRequestError(
                f"query {self.query!r}, batch id {self.batch_id}", field="batch_id", limit=f"0 to {BATCH_IDS_MAX - 1}"
            )
        if _EPOCH_OF_ANOTHER.search(self.query):
            raise BadRequestError(f"query {self.query!r} ends like the name of another one", field="query")

    @property
    def prefix(self) -> str:
        """Return the beginning of the names of all tasks; the task follows."""
        return f"{self.query}/" + (f"~{self.batch_id >> EPOCH_BITS}/" if self.batch_id >= EARLY_BATCHES else "")

    def producer_name(self, task: int) -> str:
        return f"{self.prefix}{task}"

    @property
    def first_sequence_id(self) -> int:
        """Return the sequence id of the first row of the batch, in each task and partition of a topic."""
        if self.batch_id < EARLY_BATCHES:
            return self.batch_id << EARLY_ROW_BITS
        return (self.batch_id & ((1 << EPOCH_BITS) - 1)) << ROW_BITS

    @property
    def rows_max(self) -> int:
        """Return how many rows a task of the batch may have: rows of the next batch have other sequence ids."""
        return 1 << (EARLY_ROW_BITS if self.batch_id < EARLY_BATCHES else ROW_BITS)


def writes_in_doubt(on_doubt: object) -> bool:
    """Return whether rows are written that may be stored already.

    Raises:
        BadRequestError: ``on_doubt`` is neither ``fail`` nor ``write``.
    """
    if on_doubt not in ("fail", "write"):
        raise BadRequestError(f"on_doubt is {on_doubt!r}", field="on_doubt", limit="fail or write")
    return on_doubt == "write"


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
