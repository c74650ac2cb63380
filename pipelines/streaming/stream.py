"""A topic as Spark micro-batches, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from heliograph.pipelines.planning.patience import STREAM_SECONDS
from heliograph.pipelines.reading.options import ReadOptions, StreamKeywords
from heliograph.pipelines.spark.dataframe import ranges_dataframe
from heliograph.pipelines.streaming.source import StreamSource
from heliograph.pipelines.streaming.storage import CheckpointPlace

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def stream(
    spark: SparkSession,
    topic: str,
    handle: Callable[[DataFrame, int], None],
    *,
    checkpoint: CheckpointPlace,
    schema: StructType | str | None = None,
    **keywords: Unpack[StreamKeywords],
) -> int:
    """Call ``handle(frame, batch_id)`` with all rows of a topic, from its start and then as they are published.

    A batch whose handler was interrupted, or raised, is handled again under its id by the next call with the same
    checkpoint; no row is left out and no row is in two batches.

    The stream has a durable subscription on the topic, which is acknowledged when a batch is committed: retention waits
    for it, and its backlog is what the stream has not handled. Delete it when the stream is given up. A cluster that
    does not answer is waited for, up to ten minutes, for plans as for rows.

    Args:
        checkpoint: where only this stream stores its plans: a directory, a URI such as ``s3://bucket/name``, or a file
            system of pyarrow or fsspec with a path in it, as a pair. Credentials are not stored in it.
        schema: as in ``topic_dataframe``.
        keywords: see ``StreamKeywords``.

    Returns:
        The number of batches handled, once the stream has caught up.

    Raises:
        BadRequestError: there is no such column, condition, start or bound; or the checkpoint is of another topic,
            start or conditions.
        UnsupportedError: nothing that is installed knows the file system of the checkpoint.
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
        NotFoundError: rows of a planned batch were deleted; says how to continue.
        Exception: any error that ``handle`` raised.
    """
    options = ReadOptions.of("stream", StreamKeywords, keywords, schema)
    handled = 0
    source = StreamSource(topic, checkpoint, options, keywords)
    for batch in source.batches():
        frame = ranges_dataframe(spark, batch.ranges, source.options, source.schemas(), STREAM_SECONDS)
        handle(frame, batch.batch_id)
        handled += 1
    return handled
