"""A topic as Spark micro-batches, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from heliograph.base.errors import NotFoundError
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.planning.ranges import LedgerRange, Position
from heliograph.pipelines.spark.dataframe import ranges_dataframe
from heliograph.pipelines.streaming.checkpoint import ENTRIES_PER_BATCH, StreamCheckpoint, batches

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
    **credentials: Unpack[IdentityOptions],
) -> int:
    """Call ``handle(frame, batch_id)`` with all rows of a topic, from its beginning and then as they are published.

    A batch whose handler was interrupted, or raised, is handled again under its id by the next call with the same
    checkpoint; no row is left out and no row is in two batches.

    Args:
        checkpoint: a directory that only this stream uses.
        schema, columns: as in ``topic_dataframe``.
        entries_per_batch: bound of one batch; an entry holds up to a producer's batch of messages.
        credentials: as in ``topic_dataframe``; they are not stored in the checkpoint.
        until_caught_up: return when all available rows were handled; otherwise run without end.

    Returns:
        The number of batches handled.

    Raises:
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        NotFoundError: retention deleted rows of a planned batch; says how to continue.
        Exception: any error that ``handle`` raised.
    """
    identity = Identity.of(credentials)
    handled = 0

    def planner(start: Mapping[int, Position]) -> list[LedgerRange]:
        return plan_topic(topic, start=start, namespace=namespace, identity=identity)

    for batch in batches(
        StreamCheckpoint(Path(checkpoint)), planner, entries_max=entries_per_batch, until_caught_up=until_caught_up
    ):
        try:
            ranges = refresh_addresses(batch.ranges, namespace=namespace, identity=identity)
        except NotFoundError as error:
            raise NotFoundError(
                f"batch {batch.batch_id} was planned and not handled, and some of its rows were deleted since "
                f"({error}): to skip the batch, create the file {Path(checkpoint) / f'commit-{batch.batch_id}'}",
                field="checkpoint",
            ) from error
        handle(ranges_dataframe(spark, ranges, schema=schema, columns=columns), batch.batch_id)
        handled += 1
    return handled
