"""A topic as a stream of Datasets, each under an id that always stands for the same rows."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from importlib import import_module
from typing import Any, Literal, Unpack, cast

import numpy as np
from ray.data import Dataset
from typing_extensions import override

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.client.ray_release import require_node
from heliograph.pipelines.ray_data.dataset import check_schema, in_order, ranges_dataset
from heliograph.pipelines.reading.options import ReadOptions, StreamKeywords
from heliograph.pipelines.streaming.checkpoint import Batch
from heliograph.pipelines.streaming.source import StreamSource
from heliograph.pipelines.streaming.storage import CheckpointPlace

BATCH_ROWS = 256

Columns = dict[str, np.ndarray[Any, Any]]


def stream_datasets(
    topic: str,
    *,
    checkpoint: CheckpointPlace,
    schema: Literal["registry"] | None = None,
    **keywords: Unpack[StreamKeywords],
) -> DatasetStream:
    """Yield ``(batch_id, dataset)`` with all rows of a topic, from its start and then as they are published.

    Taking the next batch commits the one before. A batch that was not committed comes again, under its id and with the
    same rows, when the stream is started again with the same checkpoint. The stream owns a durable subscription, as
    ``heliograph.spark.stream`` does, and waits for a cluster that does not answer, up to ten minutes.

    Args:
        checkpoint: where only this stream stores its plans: a directory, a URI such as ``s3://bucket/name``, or a file
            system of pyarrow or fsspec with a path in it, as a pair. Credentials are not stored in it.
        schema: as in ``read_topic``.
        keywords: see ``StreamKeywords``.

    Raises:
        BadRequestError: there is no such column, condition, schema, start or bound.
        UnsupportedError: this process uses Ray Client (``ray://``), or nothing that is installed knows the file system.

    Taking a batch raises:
        BadRequestError: the checkpoint is of another topic, start or conditions.
        ConflictError: another stream runs on this checkpoint.
        ResourceError: the checkpoint cannot be written.
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries that were not planned yet were deleted, or the topic was deleted and created again.
        NotFoundError: rows of a planned batch were deleted; says how to continue.
    """
    require_node("stream_datasets")
    check_schema(schema)
    options = ReadOptions.of("stream_datasets", StreamKeywords, keywords, schema)
    return DatasetStream(StreamSource(topic, checkpoint, options, keywords))


class DatasetStream(Iterator[tuple[int, Dataset]]):
    """The batches of a topic, as Datasets or as their rows in batches for a training loop.

    Rows of ``iter_batches`` and ``iter_torch_batches`` come in the order of the plan, so that ``state_dict`` can say
    how many of a batch were handed out. A stream is used in one of the three ways.
    """

    def __init__(self, source: StreamSource) -> None:
        self._source = source
        self._batches: Generator[Batch, None, None] = source.batches()
        self._rows = 0  # of the batch in hand that were handed out
        self._unfinished: Batch | None = None  # the batch in hand, while rows of it may be left
        self._skipped = 0  # first rows of the next batch that were handed out before

    @override
    def __next__(self) -> tuple[int, Dataset]:
        batch = next(self._batches)
        self._rows, self._skipped, self._unfinished = 0, 0, None
        return batch.batch_id, self._dataset(batch)

    def close(self) -> None:
        """End the stream. The batch in hand is not committed, and the checkpoint is free for another stream."""
        self._batches.close()

    def iter_batches(self, batch_size: int = BATCH_ROWS) -> Iterator[Columns]:
        """Yield the rows as numpy arrays by column, at most ``batch_size`` of them; the last ones of a micro-batch may
        be fewer. The next loop goes on where one was left. Errors are those of taking a batch.

        Raises:
            BadRequestError: ``batch_size`` is no positive integer.
        """
        if not isinstance(batch_size, int) or batch_size < 1:
            raise BadRequestError(f"batch_size is {batch_size!r}", field="batch_size", limit="an integer of 1 or more")
        return self._row_batches(batch_size)

    def iter_torch_batches(
        self,
        batch_size: int = BATCH_ROWS,
        *,
        dtypes: Mapping[str, Any] | None = None,
        device: Any = None,
        collate_fn: Callable[[Columns], Any] | None = None,
    ) -> Iterator[Any]:
        """Yield the rows as tensors by column, as ``iter_batches`` yields arrays.

        Args:
            dtypes: of columns, where torch shall not choose them by the column.
            device: that the tensors are moved to.
            collate_fn: makes what is yielded of a batch of arrays, in place of tensors of all columns; for columns that
                are no numbers, such as bytes.

        Raises:
            UnsupportedError: torch is not installed.
            BadRequestError: a column is none of numbers; names it.
        """
        try:
            torch = import_module("torch")
        except ImportError as error:
            raise UnsupportedError("iter_torch_batches needs the Python package 'torch'", field="torch") from error
        arrays = self.iter_batches(batch_size)
        if collate_fn is not None:
            return map(collate_fn, arrays)
        return (_tensors(torch, columns, dtypes or {}, device) for columns in arrays)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the stream, to be stored with the model: everything that was yielded counts as used.

        It can be stored as JSON. Retention keeps what the newest two states may need; store each before the next.
        """
        return self._source.state(self._rows)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin at a state: the checkpoint goes back, or forward, to it when the first batch is taken.

        Datasets begin with the whole batch that was in hand; rows of a batch begin behind those that were yielded.

        Raises:
            BadRequestError: it is no state, or one of another topic, or a batch was taken already.
        """
        self._skipped = self._source.load_state(state)
        self._rows = self._skipped

    def _row_batches(self, batch_size: int) -> Iterator[Columns]:
        while True:
            if self._unfinished is None:
                self._unfinished = next(self._batches, None)
                self._rows, self._skipped = self._skipped, 0
            if self._unfinished is None:
                return
            skip = self._rows
            dataset = self._dataset(self._unfinished)
            with in_order(dataset, needed=True):
                for given in dataset.iter_batches(batch_size=batch_size, batch_format="numpy"):
                    columns = cast("Columns", given)
                    rows = len(next(iter(columns.values()), ()))
                    left_out = min(skip, rows)
                    skip -= left_out
                    if left_out < rows:
                        self._rows += rows - left_out
                        yield {name: column[left_out:] for name, column in columns.items()}
            self._unfinished = None

    def _dataset(self, batch: Batch) -> Dataset:
        return ranges_dataset(batch.ranges, self._source.options, self._source.schemas())


def _tensors(torch: Any, columns: Columns, dtypes: Mapping[str, Any], device: Any) -> dict[str, Any]:
    found = {}
    for name, column in columns.items():
        if column.dtype.kind not in "biufc":
            raise BadRequestError(
                f"column {name} has {column.dtype} values, of which torch makes no tensor: choose columns, decode the "
                "values by schema='registry', or pass collate_fn",
                field=name,
            )
        writable = column if column.flags.writeable else column.copy()  # torch warns of others
        found[name] = torch.as_tensor(writable, dtype=dtypes.get(name), device=device)
    return found
