"""Topics as Ray Datasets: read tasks fetch ledger ranges from bookies in parallel; write tasks produce."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Unpack

import pyarrow as pa
import ray.data
from ray.data import Dataset
from ray.data.block import Block, BlockAccessor, BlockMetadata
from ray.data.datasource import Datasink, Datasource, ReadTask, WriteResult
from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.client.identity import IdentityOptions
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange, Position, split
from heliograph.pipelines.reading.columns import OnUnreadable, check_columns, schema_of
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.reading.range_reader import read_table
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.reading.topic_plan import plan_table
from heliograph.pipelines.writing.table_writer import TableWriter, WriteIdentity


def read_topic(
    topic: str,
    *,
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
    on_data_loss: OnDataLoss = "fail",
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
    on_unreadable: OnUnreadable = "fail",
    compacted: bool = False,
    schema: Literal["registry"] | None = None,
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> Dataset:
    """Return all messages of a topic that are acknowledged now, as a Dataset.

    The columns are those of ``reading/columns.py``. Within a block, rows are in publish order of their partition.

    Args:
        start, end: per partition (-1 for a topic without partitions) the first position (ledger id, entry id) to
            read, and the first position after the end.
        on_data_loss: ``fail`` when entries at or after ``start`` were deleted; ``skip`` logs how many, and goes on.
        columns: the columns to build; None: the first seven.
        parallelism: the minimum number of read tasks; None: Ray Data chooses.
        on_unreadable: ``fail`` when an entry cannot be read (damaged, an unknown codec, a chunk whose message is not
            complete); ``skip`` leaves it out; ``null`` makes a row with a null value and the reason in ``__error``.
            Both log how many. Encrypted messages are passed through as they are.
        compacted: read the compacted form: the latest message of each key up to the last compaction, then all others.
        schema: ``registry`` decodes values by the schemas of the topic: Avro, JSON, Protobuf, primitive ones, and pairs
            of key and value. The fields of the newest version replace ``value``. A value that does not fit is treated
            by ``on_unreadable``; ``null`` also keeps its bytes in ``__badValue``.
        namespace: the cluster's Ray namespace; None: the one that ``heliograph.connect`` uses.
        credentials: who reads: ``token``, ``token_file``, or ``user`` and ``password``; without any, those of the
            environment.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries at or after ``start`` were deleted.
        BadRequestError: there is no such column.
        NotFoundError, UnsupportedError: the topic has no schema, or one that cannot be decoded.
    """
    ranges, schemas = plan_table(
        topic,
        schema,
        columns,
        on_unreadable,
        credentials,
        start=start,
        end=end,
        on_data_loss=on_data_loss,
        compacted=compacted,
        namespace=namespace,
    )
    return ranges_dataset(
        ranges, columns=columns, parallelism=parallelism, on_unreadable=on_unreadable, schemas=schemas
    )


def ranges_dataset(
    ranges: Sequence[LedgerRange],
    *,
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
    on_unreadable: OnUnreadable = "fail",
    schemas: TopicSchemas | None = None,
) -> Dataset:
    """Return the rows of planned ranges; arguments and errors are those of ``read_topic``."""
    source = TopicDatasource(
        ranges, check_columns(columns, on_unreadable), on_unreadable, schemas, 1 if parallelism else TASK_BYTES_MIN
    )
    dataset: Dataset = ray.data.read_datasource(source, override_num_blocks=parallelism)
    return dataset


def write_dataset(
    dataset: Dataset,
    topic: str,
    *,
    value: str = "value",
    key: str | None = None,
    properties: str | None = None,
    event_time: str | None = None,
    ordering_key: str | None = None,
    query: str | None = None,
    batch_id: int = 0,
    address: str | None = None,
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> None:
    """Publish every row of a Dataset, each block in its order.

    No row is missing when this returns. Without ``query`` rows can be in the topic more than once: Ray may run a write
    task again after a failure, and a call that failed may have published a part.

    Args:
        value: the column with the message's value, string or binary. A null deletes its key from the compacted topic.
        key: the column with the message's key, string or binary; None: no keys.
        properties: the column with the message's properties, a map of text to text.
        event_time: the column with the message's own time, a timestamp or ms since the epoch.
        ordering_key: the column with the message's ordering key, binary.
        query, batch_id: write every row once, however often tasks run: the topic has to deduplicate, and its rows come
            in the same order when a task runs again within six hours. ``query`` names the writer, ``batch_id`` counts
            its batches up.
        address: ``pulsar://host:port[,host:port]``; None: the address is found through Ray.
        credentials: who writes: ``token``, ``token_file``, or ``user`` and ``password``; without any, those of the
            environment. They go with the tasks.

    Raises:
        UnsupportedError: ``query`` is given, and the topic does not deduplicate.
        ClusterNotFoundError: no address was given and no cluster was found.
    """
    write_identity = WriteIdentity(query, batch_id) if query is not None else None
    writer = TableWriter.of(topic, address, namespace, credentials, write_identity)
    dataset.write_datasink(
        TopicDatasink(writer, value, key, properties=properties, event_time=event_time, ordering_key=ordering_key)
    )


class TopicDatasource(Datasource):
    """A Ray Data source that reads planned ranges."""

    def __init__(
        self,
        ranges: Sequence[LedgerRange],
        columns: tuple[str, ...],
        on_unreadable: OnUnreadable = "fail",
        schemas: TopicSchemas | None = None,
        task_bytes_min: int = TASK_BYTES_MIN,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_unreadable: OnUnreadable = on_unreadable
        self._schemas = schemas
        self._task_bytes_min = task_bytes_min
        self._ranges = list(ranges)
        self._columns = columns

    @override
    def get_name(self) -> str:
        return "HeliographTopic"

    @override
    def estimate_inmemory_data_size(self) -> int | None:
        return _bytes_of(self._ranges)

    @override
    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None
    ) -> list[ReadTask]:
        schema = schema_of(self._columns)
        if self._schemas is not None:
            schema = ValueDecoder(self._schemas, self._columns, self._on_unreadable).schema
        tasks = []
        for pieces in split(self._ranges, max(1, parallelism), self._task_bytes_min):
            metadata = BlockMetadata(num_rows=None, size_bytes=_bytes_of(pieces), input_files=None, exec_stats=None)
            tasks.append(
                ReadTask(
                    _read_function(pieces, self._columns, self._on_unreadable, self._schemas),
                    metadata,
                    schema=schema,
                    per_task_row_limit=per_task_row_limit,
                )
            )
        return tasks


def _bytes_of(ranges: Iterable[LedgerRange]) -> int:
    return sum(piece.entry_bytes * piece.entries for piece in ranges)


def _read_function(
    pieces: list[LedgerRange],
    columns: tuple[str, ...],
    on_unreadable: OnUnreadable,
    schemas: TopicSchemas | None,
) -> Callable[[], Iterable[Block]]:
    def read() -> Iterable[Block]:
        for batch in read_table(pieces, columns, on_unreadable, schemas):
            yield pa.Table.from_batches([batch])

    return read


class TopicDatasink(Datasink[int]):
    """A Ray Data sink that publishes rows. A write task that runs again publishes its rows again, unless the writer has
    a write identity.

    Args:
        value, key, others: the columns of the Dataset with the fields of a message.
    """

    def __init__(self, writer: TableWriter, value: str, key: str | None, **others: str | None) -> None:
        self._writer = writer
        fields = {"value": value, "key": key, **others}
        self._columns = {field: name for field, name in fields.items() if name is not None}

    @override
    def write(self, blocks: Iterable[Block], ctx: Any) -> int:
        # An empty block has no columns.
        filled = (block for block in blocks if BlockAccessor.for_block(block).num_rows())
        return self._writer.write((self._selected(block) for block in filled), ctx.task_idx)

    @override
    def on_write_complete(self, write_result: WriteResult[int]) -> None:
        pass

    def _selected(self, block: Block) -> pa.Table:
        table = BlockAccessor.for_block(block).to_arrow()
        for name in self._columns.values():
            if name not in table.column_names:
                raise BadRequestError(
                    f"the Dataset has no column {name!r}", field="columns", limit=", ".join(table.column_names)
                )
        return table.select(list(self._columns.values())).rename_columns(list(self._columns))
