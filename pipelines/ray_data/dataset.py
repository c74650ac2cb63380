"""Topics as Ray Datasets: read tasks fetch ledger ranges from bookies in parallel; write tasks produce."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Unpack

import pyarrow as pa
import ray.data
from ray.data import Dataset

from heliograph.base.errors import BadRequestError
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.client.ray_release import require_node
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import Given, Where, where_of
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.planning.patience import STREAM_SECONDS
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange, Position
from heliograph.pipelines.ray_data.sink import TopicDatasink
from heliograph.pipelines.ray_data.source import TableRead, TopicDatasource
from heliograph.pipelines.reading.columns import OnUnreadable, check_columns
from heliograph.pipelines.reading.registry import GivenDescriptor, RegistryRead, TopicSchemas
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH
from heliograph.pipelines.reading.topic_plan import plan_table
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.fields import VALUE
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.records import WrittenSchema
from heliograph.pipelines.writing.table_writer import TableWriter


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
    where: Iterable[Given] | None = None,
    schema: Literal["registry"] | None = None,
    protobuf_descriptor: GivenDescriptor = None,
    recursion_depth: int = RECURSION_DEPTH,
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> Dataset:
    """Return all messages of a topic that are acknowledged now, as a Dataset.

    The columns are those of ``reading/columns.py``. Within a block, rows are in publish order of their partition. A
    cluster that does not answer is waited for, up to ten minutes, here and in the read tasks.

    Args:
        start, end: the first position (ledger id, entry id) to read, and the first after it, by partition or -1.
        on_data_loss: ``fail`` when entries at or after ``start`` were deleted; ``skip`` logs how many, and goes on.
        columns: the columns to build; None: the first seven.
        parallelism: the minimum number of read tasks; None: Ray Data chooses.
        on_unreadable: ``fail`` when an entry cannot be read (damaged, an unknown codec, a chunk whose message is not
            complete); ``skip`` leaves it out; ``null`` makes a row with a null value and the reason in ``__error``.
            Both log how many. Encrypted messages are passed through as they are.
        compacted: read the compacted form: the latest message of each key up to the last compaction, then all others.
        where: conditions that all rows have to satisfy: triples of a column (``__key``, ``__messageId``,
            ``__publishTime``, ``__eventTime``), an operator (``==``, ``<``, ``<=``, ``>``, ``>=``, ``in``,
            ``not null``) and a value. What cannot match is not planned, or not decoded.
        schema: ``registry`` decodes values by the schemas of the topic: Avro, JSON, Protobuf, primitive ones, and pairs
            of key and value. The fields of the newest version replace ``value``. A value that does not fit is treated
            by ``on_unreadable``; ``null`` also keeps its bytes in ``__badValue``.
        protobuf_descriptor: of messages of type PROTOBUF: a FileDescriptorSet as bytes, or a generated class.
        recursion_depth: how often a record stands in itself as a struct, 1 to 15; deeper ones are JSON.
        namespace: the cluster's Ray namespace; None: the one that ``heliograph.connect`` uses.
        credentials: who reads: ``token``, ``token_file``, or ``user`` and ``password``; else those of the environment.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries at or after ``start`` were deleted.
        BadRequestError: there is no such column.
        NotFoundError: the topic has no schema.
        UnsupportedError: the topic has a schema that cannot be decoded, or this process uses Ray Client (``ray://``).
    """
    require_node("read_topic")
    conditions = where_of(where)
    ranges, schemas = plan_table(
        topic,
        schema,
        columns,
        on_unreadable,
        credentials,
        RegistryRead.of(protobuf_descriptor, recursion_depth),
        STREAM_SECONDS,
        start=start,
        end=end,
        on_data_loss=on_data_loss,
        compacted=compacted,
        where=conditions,
        namespace=namespace,
    )
    return ranges_dataset(
        ranges, columns=columns, parallelism=parallelism, on_unreadable=on_unreadable, schemas=schemas, where=conditions
    )


def ranges_dataset(
    ranges: Sequence[LedgerRange],
    *,
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
    on_unreadable: OnUnreadable = "fail",
    schemas: TopicSchemas | None = None,
    where: Where | None = None,
) -> Dataset:
    """Return the rows of planned ranges; arguments and errors are those of ``read_topic``."""
    wanted = check_columns(columns, on_unreadable)
    table = TableRead(wanted, on_unreadable, schemas, where)
    source = TopicDatasource(ranges, table, 1 if parallelism else TASK_BYTES_MIN)
    dataset: Dataset = ray.data.read_datasource(source, override_num_blocks=parallelism)
    return dataset


def write_dataset(
    dataset: Dataset,
    topic: str | Sequence[str] | None,
    *,
    value: str | None = VALUE,
    key: str | None = None,
    properties: str | None = None,
    event_time: str | None = None,
    ordering_key: str | None = None,
    deliver_at: str | None = None,
    deliver_after: str | None = None,
    topic_column: str | None = None,
    schema: WrittenSchema = None,
    protobuf_descriptor: GivenDescriptor = None,
    query: str | None = None,
    batch_id: int = 0,
    address: str | None = None,
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> int:
    """Publish every row of a Dataset, each block in its order.

    No row is missing when this returns. Without ``query`` rows can be in the topic more than once: Ray may run a write
    task again after a failure. Where it raises, the rows of some tasks are published: there is nothing to take back.
    With ``query``, the same call, by this program or the next, publishes those that are missing and no other.

    Args:
        topic: one; with ``topic_column`` that of rows with none, or a sequence of all that rows may name, or None.
        value: the column with the value, text or bytes, or with a ``schema`` structs; None: the whole row in JSON or by
            the schema, but for columns that begin with ``__``. A null deletes its key from the compacted topic.
        key, ordering_key: the columns with the keys, text or bytes; None: no keys.
        properties, event_time, deliver_at: the columns with a map of text to text, and times or ms since the epoch.
        deliver_after: the column with the delay of delivery from when the row is sent; seconds, or a duration.
        topic_column: the column with the topic of each row; a task writes to at most 256.
        schema: of the values: ``avro`` or ``json``, a record made of the columns, which is registered with the named
            topics before a row is written; ``registry``, the one that the topic has, which needs the
            ``protobuf_descriptor`` of messages of type PROTOBUF; or an AvroSchema or JsonSchema.
        query, batch_id: write every row once, however often tasks run: the topic has to deduplicate, and its rows come
            in the same order when a task runs again within six hours. ``batch_id`` counts the writer's batches up.
        address: ``pulsar://host:port[,host:port]``; None: the cluster's gateway or Ray tells it.
        credentials: as in reading. They go with the tasks.

    Returns:
        The number of rows, all of which are stored.

    Raises:
        BadRequestError: there is no such column, no topic, or a row is not acceptable; names column, row and limit.
        IncompatibleSchemaError: a topic has another schema, and its policy does not let it become this one; no row was
            written.
        UnsupportedError: ``query`` is given, and the topic does not deduplicate.
        ClusterNotFoundError: no address was given and no cluster was found.
    """
    columns = WrittenColumns.named(
        value,
        key=key,
        properties=properties,
        event_time=event_time,
        ordering_key=ordering_key,
        deliver_at=deliver_at,
        deliver_after=deliver_after,
        topic_column=topic_column,
    )
    access = ClusterAccess(namespace, Identity.of(credentials))
    write_identity = WriteIdentity(query, batch_id) if query is not None else None
    read = RegistryRead.of(protobuf_descriptor)
    shape = _shape_of(dataset) if schema is not None else None
    writer = TableWriter.of(topic, columns, access, address, write_identity, schema, shape, read)
    with _same_tasks_each_run(dataset, needed=write_identity is not None):
        dataset.write_datasink(sink := TopicDatasink(writer))
    return sink.rows


@contextmanager
def _same_tasks_each_run(dataset: Dataset, *, needed: bool) -> Iterator[None]:
    """Make write tasks get the blocks in the order of the Dataset, not in the order in which they are ready.

    The number of a task stands for its rows in the topic, in the next run of the program, too.
    """
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = before or needed
    try:
        yield
    finally:
        options.preserve_order = before


def _shape_of(dataset: Dataset) -> pa.Schema:
    """Return the columns of a Dataset, which may run its first task."""
    found = dataset.schema()
    base = None if found is None else found.base_schema
    if not isinstance(base, pa.Schema):
        names, types = ([], []) if found is None else (found.names, found.types)
        if not all(isinstance(kind, pa.DataType) for kind in types):
            raise BadRequestError("the columns of the Dataset have no Arrow types", field="schema")
        base = pa.schema(zip(names, types, strict=True))
    return base
