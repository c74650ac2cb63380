"""Topics as Ray Datasets: read tasks fetch ledger ranges from bookies in parallel; write tasks produce."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import ray.data
from ray.data import Dataset
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask, WriteResult

from heliograph.errors import BadRequestError
from pipelines.columns import check_columns, schema_of
from pipelines.planning import plan_topic
from pipelines.range_reader import read_ranges
from pipelines.ranges import LedgerRange, Position, split
from pipelines.table_writer import TableWriter, service_address

ENTRY_BYTES_GUESS = 64 << 10  # of an entry of many small messages, for Ray's estimates alone


def read_topic(
    topic: str,
    *,
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
    namespace: str | None = None,
) -> Dataset:
    """Everything acknowledged of a topic now, as a Dataset with the columns of ``pipelines.columns``.

    Within a block rows are in publish order of their partition.

    Args:
        start, end: per partition (-1 for a topic without partitions) the first position (ledger id, entry id) wanted,
            and the first no longer wanted.
        columns: those wanted, all by default: what is left out is not built.
        parallelism: read tasks, at least; None: as many as Ray Data finds right.
        namespace: the cluster's Ray namespace; None: as ``heliograph.connect``.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        BadRequestError: there is no such column.
    """
    check_columns(columns)
    ranges = plan_topic(topic, start=start, end=end, namespace=namespace)
    return ranges_dataset(ranges, columns=columns, parallelism=parallelism)


def ranges_dataset(
    ranges: Sequence[LedgerRange], *, columns: Sequence[str] | None = None, parallelism: int | None = None
) -> Dataset:
    """The rows of planned ranges; arguments and errors as ``read_topic``."""
    source = TopicDatasource(ranges, check_columns(columns))
    dataset: Dataset = ray.data.read_datasource(source, override_num_blocks=parallelism)
    return dataset


def write_dataset(
    dataset: Dataset,
    topic: str,
    *,
    value: str = "value",
    key: str | None = None,
    address: str | None = None,
    namespace: str | None = None,
) -> None:
    """Publish every row of a Dataset, each block in its order.

    Ray may run a write task again after a failure, and a call that failed may have published a part: rows can be in
    the topic more than once, none is missing when this returns.

    Args:
        value: column with the message's value, string or binary.
        key: column with the message's key, string or binary that holds text; None: no keys.
        address: ``pulsar://host:port[,host:port]``; None: found through Ray.

    Raises:
        ClusterNotFoundError: no address was given and no cluster found.
    """
    writer = TableWriter(address or service_address(namespace), topic)
    dataset.write_datasink(TopicDatasink(writer, value, key))


class TopicDatasource(Datasource):
    """Planned ranges as a source of Ray Data."""

    def __init__(self, ranges: Sequence[LedgerRange], columns: tuple[str, ...]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._ranges = list(ranges)
        self._columns = columns

    def get_name(self) -> str:
        """What Ray's dashboard calls it."""
        return "HeliographTopic"

    def estimate_inmemory_data_size(self) -> int | None:
        """A guess in bytes, from which Ray chooses how many tasks to make."""
        return sum(piece.entries for piece in self._ranges) * ENTRY_BYTES_GUESS

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        """One task for each share of the entries."""
        schema = schema_of(self._columns)
        tasks = []
        for pieces in split(self._ranges, max(1, parallelism)):
            entries = sum(piece.entries for piece in pieces)
            metadata = BlockMetadata(
                num_rows=None, size_bytes=entries * ENTRY_BYTES_GUESS, input_files=None, exec_stats=None
            )
            tasks.append(
                ReadTask(
                    _read_function(pieces, self._columns),
                    metadata,
                    schema=schema,
                    per_task_row_limit=per_task_row_limit,
                )
            )
        return tasks


def _read_function(pieces: list[LedgerRange], columns: tuple[str, ...]) -> Callable[[], Iterable[Block]]:
    def read() -> Iterable[Block]:
        for batch in read_ranges(pieces, columns):
            yield pa.Table.from_batches([batch])

    return read


class TopicDatasink(Datasink[int]):
    """Blocks into messages. A write task that is run again publishes its rows again."""

    def __init__(self, writer: TableWriter, value: str, key: str | None) -> None:
        self._writer = writer
        self._value = value
        self._key = key

    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        """Publish the blocks of one task; the number of rows."""
        full = (
            block for block in blocks if BlockAccessor.for_block(block).num_rows()
        )  # an empty one lacks its columns
        return self._writer.write(self._selected(block) for block in full)

    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        """All tasks are through: every row was acknowledged by the brokers."""

    def _selected(self, block: Block) -> pa.Table:
        table = BlockAccessor.for_block(block).to_arrow()
        names = {"value": self._value} | ({"key": self._key} if self._key is not None else {})
        for name in names.values():
            if name not in table.column_names:
                raise BadRequestError(
                    f"the Dataset has no column {name!r}", field="columns", limit=", ".join(table.column_names)
                )
        return table.select(list(names.values())).rename_columns(list(names))
