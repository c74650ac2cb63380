"""A topic as Spark micro-batches, each handled under an id that stands for the same rows for ever."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from heliograph.errors import NotFoundError
from metadata.errors import NoNodeError
from pipelines.checkpoint import ENTRIES_PER_BATCH, Checkpoint, batches
from pipelines.dataframe import ranges_dataframe
from pipelines.planning import plan_topic, refresh_addresses
from pipelines.ranges import LedgerRange, Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def stream(
    spark: SparkSession,
    topic: str,
    handle: Callable[[DataFrame, int], None],
    *,
    checkpoint: str | Path,
    schema: StructType | str | None = None,
    columns: Sequence[str] | None = None,
    entries_per_batch: int = ENTRIES_PER_BATCH,
    until_caught_up: bool = False,
    namespace: str | None = None,
) -> int:
    """Have ``handle(frame, batch_id)`` called with all rows of a topic, from its beginning and as they come.

    A batch whose handler was interrupted, or raised, is handled again under its id by the next call with the same
    checkpoint; nothing is left out and no row is in two batches.

    Args:
        checkpoint: a directory for this stream alone.
        schema, columns: as in ``topic_dataframe``.
        entries_per_batch: bound of one batch; an entry holds up to a producer's batch of messages.
        until_caught_up: return when everything that is there was handled; otherwise run for ever.

    Returns:
        Batches handled.

    Raises:
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        NotFoundError: a batch that was planned has lost rows to the topic's retention; says how to go on.
        Exception: whatever ``handle`` raised.
    """
    handled = 0

    def planner(start: Mapping[int, Position]) -> list[LedgerRange]:
        return plan_topic(topic, start=start, namespace=namespace)

    for batch in batches(
        Checkpoint(Path(checkpoint)), planner, entries_max=entries_per_batch, until_caught_up=until_caught_up
    ):
        try:
            ranges = refresh_addresses(batch.ranges, namespace=namespace)
        except NoNodeError as error:
            raise NotFoundError(
                f"batch {batch.batch_id} was planned and not handled, and rows of it were deleted since ({error}): to "
                f"go on without all of it, create the file {Path(checkpoint) / f'commit-{batch.batch_id}'}",
                field="checkpoint",
            ) from error
        handle(ranges_dataframe(spark, ranges, schema=schema, columns=columns), batch.batch_id)
        handled += 1
    return handled
