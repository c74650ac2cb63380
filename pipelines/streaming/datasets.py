"""A topic as a stream of Datasets, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Literal, Unpack

from ray.data import Dataset

from heliograph.client.ray_release import require_node
from heliograph.pipelines.ray_data.dataset import check_schema, ranges_dataset
from heliograph.pipelines.reading.options import ReadOptions, StreamKeywords
from heliograph.pipelines.streaming.source import stream_tables


def stream_datasets(
    topic: str,
    *,
    checkpoint: str | Path,
    schema: Literal["registry"] | None = None,
    **keywords: Unpack[StreamKeywords],
) -> Generator[tuple[int, Dataset], None, None]:
    """Yield ``(batch_id, dataset)`` with all rows of a topic, from its beginning and then as they are published.

    Taking the next batch commits the one before. A batch that was not committed comes again, under its id and with the
    same rows, when the stream is started again with the same checkpoint. The stream owns a durable subscription, as
    ``heliograph.spark.stream`` does, and waits for a cluster that does not answer, up to ten minutes.

    Args:
        checkpoint: a directory that only this stream uses. Credentials are not stored in it.
        schema: as in ``read_topic``.
        keywords: those of ``StreamKeywords``, which says what they mean.

    Raises:
        BadRequestError: there is no such column, condition or schema.
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
        NotFoundError: rows of a planned batch were deleted; says how to continue.
        UnsupportedError: this process uses Ray Client (``ray://``).
    """
    require_node("stream_datasets")
    check_schema(schema)
    options = ReadOptions.of("stream_datasets", StreamKeywords, keywords, schema)
    for batch_id, ranges, schemas in stream_tables(topic, checkpoint, options, keywords):
        yield batch_id, ranges_dataset(ranges, options, schemas)
