"""Topics as PySpark DataFrames. Executors read bookies and write to brokers by TCP; they need neither Ray nor metadata.

A DataFrame of a topic is lazy and can be computed again: it is a plan of ledger ranges, fixed when the DataFrame was
created, and reading them again gives the same rows (I1, I5). It does not include messages that are published later;
create another DataFrame for those, or use ``heliograph.spark.stream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from heliograph.base.errors import BadRequestError
from heliograph.client.identity import Identity, IdentityOptions
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import Given, Where, where_of
from heliograph.pipelines.planning.loss import OnDataLoss
from heliograph.pipelines.planning.patience import BATCH_SECONDS
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange, Position, range_from_json, split
from heliograph.pipelines.reading.columns import META_COLUMNS, VALUE, OnUnreadable, check_columns
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.reading.range_reader import count_table, read_table
from heliograph.pipelines.reading.registry import GivenDescriptor, RegistryRead, TopicSchemas
from heliograph.pipelines.reading.shapes.shape import RECURSION_DEPTH
from heliograph.pipelines.reading.topic_plan import plan_table
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.records import WrittenSchema
from heliograph.pipelines.writing.table_writer import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SPARK_TYPES = {
    VALUE: "binary",
    "__key": "binary",
    "__topic": "string",
    "__messageId": "binary",
    "__publishTime": "timestamp",
    "__eventTime": "timestamp",
    "__messageProperties": "map<string,string>",
    "__orderingKey": "binary",
    "__producerName": "string",
    "__sequenceId": "long",
    "__deliverAt": "timestamp",
    "__encryption": "binary",
    "__error": "string",
    "__schemaVersion": "long",
}
_RANGE_COLUMN = "ranges"
_COUNTED = "__counted"
_WRITTEN = "__written"

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def topic_dataframe(
    spark: SparkSession,
    topic: str,
    *,
    schema: StructType | str | None = None,
    columns: Sequence[str] | None = None,
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
    on_data_loss: OnDataLoss = "fail",
    parallelism: int | None = None,
    on_unreadable: OnUnreadable = "fail",
    compacted: bool = False,
    where: Iterable[Given] | None = None,
    protobuf_descriptor: GivenDescriptor = None,
    recursion_depth: int = RECURSION_DEPTH,
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> DataFrame:
    """Return all messages of a topic that are acknowledged now, as a DataFrame.

    A cluster that does not answer is waited for, up to two minutes, here and in the tasks.

    Args:
        schema: the schema of JSON in the message's value, as a Spark schema or its text (``row long, name string``);
            its fields replace ``value``. None keeps the bytes. A value that does not match gives nulls. ``registry``
            decodes values by the schemas of the topic, as in ``heliograph.ray_data.read_topic``.
        columns: the columns to build; None: ``value``, ``__key``, ``__topic``, ``__messageId``, ``__publishTime``,
            ``__eventTime``, ``__messageProperties``, as in pulsar-spark. There are also ``__orderingKey``,
            ``__producerName``, ``__sequenceId``, ``__deliverAt``, ``__encryption`` and ``__error``.
        start, end: per partition (-1 for a topic without partitions) the first position (ledger id, entry id) to
            read, and the first position after the end.
        on_data_loss: ``fail`` when entries at or after ``start`` were deleted; ``skip`` logs how many, and goes on.
        parallelism: the minimum number of Spark tasks; None: two for each core.
        on_unreadable, where: as in ``heliograph.ray_data.read_topic``.
        compacted: read the compacted form: the latest message of each key up to the last compaction, then all others.
        protobuf_descriptor: of messages of type PROTOBUF: a FileDescriptorSet as bytes, or a generated class.
        recursion_depth: how often a record stands in itself as a struct, 1 to 15; deeper ones are JSON.
        namespace: the cluster's Ray namespace; None: the one that ``heliograph.connect`` uses.
        credentials: who reads: ``token``, ``token_file``, or ``user`` and ``password``; else those of the environment.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries at or after ``start`` were deleted.
        BadRequestError: there is no such column.
        NotFoundError, UnsupportedError: the topic has no schema, or one that cannot be decoded.
    """
    conditions = where_of(where)
    ranges, schemas = plan_table(
        topic,
        schema,
        columns,
        on_unreadable,
        credentials,
        RegistryRead.of(protobuf_descriptor, recursion_depth),
        start=start,
        end=end,
        on_data_loss=on_data_loss,
        compacted=compacted,
        where=conditions,
        namespace=namespace,
    )
    return ranges_dataframe(
        spark,
        ranges,
        schema=schemas or schema,
        columns=columns,
        parallelism=parallelism,
        on_unreadable=on_unreadable,
        where=conditions,
    )


def topic_count(
    spark: SparkSession,
    topic: str,
    *,
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
    on_data_loss: OnDataLoss = "fail",
    parallelism: int | None = None,
    on_unreadable: OnUnreadable = "fail",
    compacted: bool = False,
    where: Iterable[Given] | None = None,
    namespace: str | None = None,
    **credentials: Unpack[IdentityOptions],
) -> int:
    """Return how many rows ``topic_dataframe`` has, with the same arguments and errors.

    Unlike ``count`` of that DataFrame it decodes no payload, unless there are conditions or unreadable entries are no
    error.
    """
    conditions = where_of(where)
    ranges, _ = plan_table(
        topic,
        None,
        None,
        on_unreadable,
        credentials,
        start=start,
        end=end,
        on_data_loss=on_data_loss,
        compacted=compacted,
        where=conditions,
        namespace=namespace,
    )
    counts = _plan_frame(spark, ranges, parallelism).mapInArrow(_counter(on_unreadable, conditions), f"{_COUNTED} long")
    return sum(row[0] for row in counts.collect())


def ranges_dataframe(
    spark: SparkSession,
    ranges: Sequence[LedgerRange],
    *,
    schema: StructType | str | TopicSchemas | None = None,
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
    on_unreadable: OnUnreadable = "fail",
    where: Where | None = None,
    wait_seconds: float = BATCH_SECONDS,
) -> DataFrame:
    """Return the rows of planned ranges; arguments and errors are those of ``topic_dataframe`` and ``read_table``."""
    wanted = check_columns(columns, on_unreadable)
    if schema is not None and VALUE not in wanted:
        raise BadRequestError("a schema decodes the column 'value', which columns does not name", field="columns")
    plan = _plan_frame(spark, ranges, parallelism)
    shape: StructType | str = columns_of_spark(wanted)
    if isinstance(schema, TopicSchemas):
        shape = shape_of(ValueDecoder(schema, wanted, on_unreadable))
        return plan.mapInArrow(_reader(wanted, on_unreadable, schema, where, wait_seconds), shape)
    frame = plan.mapInArrow(_reader(wanted, on_unreadable, None, where, wait_seconds), shape)
    return frame if schema is None else _decoded(frame, schema, wanted)


def _plan_frame(spark: SparkSession, ranges: Sequence[LedgerRange], parallelism: int | None) -> DataFrame:
    """Return the work of each task as a row."""
    tasks = parallelism or 2 * spark.sparkContext.defaultParallelism
    work = split(ranges, tasks, 1 if parallelism else TASK_BYTES_MIN)
    rows = [("\n".join(piece.to_json() for piece in pieces),) for pieces in work]
    return spark.createDataFrame(spark.sparkContext.parallelize(rows, max(1, len(rows))), f"{_RANGE_COLUMN} string")


def columns_of_spark(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}` {_SPARK_TYPES[name]}" for name in names)


def shape_of(decoder: ValueDecoder) -> StructType:
    """Return the columns of decoded values in Spark's words."""
    from pyspark.sql.pandas.types import from_arrow_schema

    shape: StructType = from_arrow_schema(decoder.schema)
    return shape


def _reader(
    columns: tuple[str, ...],
    on_unreadable: OnUnreadable,
    schemas: TopicSchemas | None,
    where: Where | None,
    wait_seconds: float,
) -> BatchFunction:
    def read(plans: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ranges in _work_of(plans):
            yield from read_table(ranges, columns, on_unreadable, schemas, where, wait_seconds)

    return read


def _counter(on_unreadable: OnUnreadable, where: Where | None) -> BatchFunction:
    def count(plans: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ranges in _work_of(plans):
            yield pa.RecordBatch.from_pydict({_COUNTED: [count_table(ranges, on_unreadable, where=where)]})

    return count


def _work_of(plans: Iterable[pa.RecordBatch]) -> Iterator[list[LedgerRange]]:
    for plan in plans:
        for text in plan.column(0).to_pylist():
            yield [range_from_json(line) for line in text.split("\n")]


def _decoded(frame: DataFrame, schema: StructType | str, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql.functions import col, from_json

    decoded = frame.withColumn(VALUE, from_json(col(VALUE).cast("string"), schema))
    beside = [name for name in columns if name in META_COLUMNS]
    return decoded.select(f"{VALUE}.*", *beside)


def write_dataframe(
    frame: DataFrame,
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
    """Publish every row of a DataFrame, from its executors, each Spark partition in its order.

    No row is missing when this returns. Without ``query`` rows can be in the topic more than once: Spark may run a task
    twice, and a call that failed may have published a part.

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
    columns.check(frame.columns, "DataFrame")
    needed = frame.select(*(f"`{name}`" for name in columns.needed(frame.columns)))
    access = ClusterAccess(namespace, Identity.of(credentials))
    write_identity = WriteIdentity(query, batch_id) if query is not None else None
    read = RegistryRead.of(protobuf_descriptor)
    shape = arrow_shape(needed.schema) if schema is not None else None
    writer = TableWriter.of(topic, columns, access, address, write_identity, schema, shape, read)
    written = needed.mapInArrow(_writer(writer), f"{_WRITTEN} long")
    return sum(row[0] for row in written.collect())


def arrow_shape(schema: StructType) -> pa.Schema:
    """Return the columns of a DataFrame in Arrow's words."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Spark 4 asks for the time zone that its timestamps are shown in; the one of Spark 3.5 is UTC.
    options: Any = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **options)


def _writer(writer: TableWriter) -> BatchFunction:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        task = context.partitionId() if context is not None else 0
        yield pa.RecordBatch.from_pydict({_WRITTEN: [writer.write(batches, task)]})

    return write
