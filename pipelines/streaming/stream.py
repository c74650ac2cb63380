"""A topic as Spark micro-batches, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.planning.patience import STREAM_SECONDS
from heliograph.pipelines.reading.columns import OnUnreadable
from heliograph.pipelines.reading.registry import GivenDescriptor, RegistryRead
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH
from heliograph.pipelines.reading.topic_plan import check_read
from heliograph.pipelines.spark.dataframe import ranges_dataframe
from heliograph.pipelines.streaming.checkpoint import ENTRIES_PER_BATCH
from heliograph.pipelines.streaming.source import StreamSource, stream_access

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
    subscription: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    on_unreadable: OnUnreadable = "fail",
    protobuf_descriptor: GivenDescriptor = None,
    recursion_depth: int = RECURSION_DEPTH,
    namespace: str | None = None,
    gateway: str = "",
    **credentials: Unpack[IdentityOptions],
) -> int:
    """Call ``handle(frame, batch_id)`` with all rows of a topic, from its beginning and then as they are published.

    A batch whose handler was interrupted, or raised, is handled again under its id by the next call with the same
    checkpoint; no row is left out and no row is in two batches.

    The stream has a durable subscription on the topic, which is acknowledged when a batch is committed: retention waits
    for it, and its backlog is what the stream has not handled. Delete it when the stream is given up. A cluster that
    does not answer is waited for, up to ten minutes, for plans as for rows.

    Args:
        checkpoint: a directory that only this stream uses.
        schema, columns: as in ``topic_dataframe``.
        entries_per_batch: bound of one batch; an entry holds up to a producer's batch of messages.
        credentials: as in ``topic_dataframe``; they are not stored in the checkpoint.
        subscription: the name of the stream's subscription; None: ``stream-`` and the id in the checkpoint.
        on_data_loss: ``fail`` when entries that the stream has not handled were deleted; ``skip`` logs how many, and
            goes on with those that are left.
        on_unreadable, protobuf_descriptor, recursion_depth: as in ``topic_dataframe``.
        gateway: ``http://host:port``, which is asked for plans; without it the one that is noted on this machine, or
            the brokers through Ray.
        until_caught_up: return when all available rows were handled; otherwise run without end.

    Returns:
        The number of batches handled.

    Raises:
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
        NotFoundError: rows of a planned batch were deleted; says how to continue.
        Exception: any error that ``handle`` raised.
    """
    access = stream_access(namespace, Identity.of(credentials), gateway)
    read = RegistryRead.of(protobuf_descriptor, recursion_depth)
    check_read(schema, read)
    source = StreamSource(topic, checkpoint, access, subscription=subscription, on_data_loss=on_data_loss, read=read)
    handled = 0
    for batch_id, ranges in source.batches(entries_per_batch, until_caught_up=until_caught_up):
        decoded = source.schemas(schema) or schema
        frame = ranges_dataframe(
            spark,
            ranges,
            schema=decoded,
            columns=columns,
            on_unreadable=on_unreadable,
            wait_seconds=STREAM_SECONDS,
        )
        handle(frame, batch_id)
        handled += 1
    return handled
