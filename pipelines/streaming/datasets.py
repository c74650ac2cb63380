"""A topic as a stream of Datasets, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Literal, Unpack

from ray.data import Dataset

from heliograph.client.identity import Identity, IdentityOptions
from heliograph.client.ray_release import require_node
from heliograph.pipelines.planning.conditions import Given, where_of
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.ray_data.dataset import ranges_dataset
from heliograph.pipelines.reading.columns import OnUnreadable, check_columns
from heliograph.pipelines.reading.registry import GivenDescriptor, RegistryRead
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH
from heliograph.pipelines.reading.topic_plan import check_read
from heliograph.pipelines.streaming.checkpoint import ENTRIES_PER_BATCH
from heliograph.pipelines.streaming.source import StreamSource, stream_access


def stream_datasets(
    topic: str,
    *,
    checkpoint: str | Path,
    columns: Sequence[str] | None = None,
    schema: Literal["registry"] | None = None,
    where: Iterable[Given] | None = None,
    entries_per_batch: int = ENTRIES_PER_BATCH,
    until_caught_up: bool = False,
    subscription: str | None = None,
    on_data_loss: OnDataLoss = "fail",
    on_unreadable: OnUnreadable = "fail",
    protobuf_descriptor: GivenDescriptor = None,
    recursion_depth: int = RECURSION_DEPTH,
    parallelism: int | None = None,
    namespace: str | None = None,
    gateway: str = "",
    **credentials: Unpack[IdentityOptions],
) -> Generator[tuple[int, Dataset], None, None]:
    """Yield ``(batch_id, dataset)`` with all rows of a topic, from its beginning and then as they are published.

    Taking the next batch commits the one before. A batch that was not committed comes again, under its id and with the
    same rows, when the stream is started again with the same checkpoint. The stream owns a durable subscription, as
    ``heliograph.spark.stream`` does, and waits for a cluster that does not answer, up to ten minutes.

    Args:
        checkpoint: a directory that only this stream uses.
        columns, schema, where, on_unreadable, protobuf_descriptor, recursion_depth, parallelism, namespace,
            credentials: as in ``read_topic``.
        entries_per_batch: bound of one batch; an entry holds up to a producer's batch of messages.
        until_caught_up: end when all available rows were handled; otherwise run without end.
        subscription: the name of the stream's subscription; None: ``stream-`` and the id in the checkpoint.
        on_data_loss: ``fail`` when entries that the stream has not handled were deleted; ``skip`` logs how many, and
            goes on with those that are left.
        gateway: ``http://host:port``, which is asked for plans; without it the one that is noted on this machine, or
            the brokers through Ray.

    Raises:
        BadRequestError: there is no such column or condition.
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
        NotFoundError: rows of a planned batch were deleted; says how to continue.
        UnsupportedError: this process uses Ray Client (``ray://``).
    """
    require_node("stream_datasets")
    check_columns(columns, on_unreadable)
    conditions = where_of(where)
    access = stream_access(namespace, Identity.of(credentials), gateway)
    read = RegistryRead.of(protobuf_descriptor, recursion_depth)
    check_read(schema, read)
    source = StreamSource(topic, checkpoint, access, subscription=subscription, on_data_loss=on_data_loss, read=read)
    for batch_id, ranges in source.batches(entries_per_batch, until_caught_up=until_caught_up):
        yield (
            batch_id,
            ranges_dataset(
                ranges,
                columns=columns,
                parallelism=parallelism,
                on_unreadable=on_unreadable,
                schemas=source.schemas(schema),
                where=conditions,
            ),
        )
