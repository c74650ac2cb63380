"""Topics as PySpark DataFrames. Executors read bookies and write to brokers by TCP; they need neither Ray nor metadata.

A DataFrame of a topic is lazy and can be computed again: it is a plan of ledger ranges, fixed when the DataFrame was
created, and reading them again gives the same rows (I1, I5). It does not include messages that are published later;
create another DataFrame for those, or use ``heliograph.spark.stream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, Unpack, cast

import pyarrow as pa

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.planning.conditions import Where
from heliograph.pipelines.planning.patience import BATCH_SECONDS
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange, range_from_json, split
from heliograph.pipelines.reading.columns import META_COLUMNS, VALUE, OnUnreadable
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.reading.options import CountKeywords, ReadKeywords, ReadOptions
from heliograph.pipelines.reading.range_reader import count_table, read_table
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.reading.topic_plan import plan_table
from heliograph.pipelines.writing.options import WriteKeywords, WriteOptions
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
    spark: SparkSession, topic: str, *, schema: StructType | str | None = None, **keywords: Unpack[ReadKeywords]
) -> DataFrame:
    """Return all messages of a topic that are acknowledged now, as a DataFrame.

    A cluster that does not answer is waited for, up to two minutes, here and in the tasks.

    Args:
        schema: the schema of JSON in the message's value, as a Spark schema or its text (``row long, name string``);
            its fields replace ``value``. None keeps the bytes. A value that does not match gives nulls. ``registry``
            decodes values by the schemas of the topic, as in ``heliograph.ray_data.read_topic``.
        keywords: see ``ReadKeywords``.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        DataLostError: entries at or after ``start`` were deleted.
        BadRequestError: there is no such column or condition.
        NotFoundError, UnsupportedError: the topic has no schema, or one that cannot be decoded.
    """
    options = ReadOptions.of("topic_dataframe", ReadKeywords, keywords, schema)
    ranges, schemas = plan_table(topic, options, BATCH_SECONDS)
    return ranges_dataframe(spark, ranges, options, schemas, BATCH_SECONDS)


def topic_count(spark: SparkSession, topic: str, **keywords: Unpack[CountKeywords]) -> int:
    """Return how many rows ``topic_dataframe`` has; ``CountKeywords`` explains the keywords. Errors are the same.

    Unlike ``count`` of that DataFrame it decodes no payload, unless there are conditions or unreadable entries are no
    error.
    """
    options = ReadOptions.of("topic_count", CountKeywords, keywords)
    ranges, _ = plan_table(topic, options, BATCH_SECONDS)
    plan, counter = _plan_frame(spark, ranges, options.parallelism), _counter(options.on_unreadable, options.where)
    return sum(row[0] for row in plan.mapInArrow(counter, f"{_COUNTED} long").collect())


def ranges_dataframe(
    spark: SparkSession,
    ranges: Sequence[LedgerRange],
    options: ReadOptions,
    schemas: TopicSchemas | None,
    wait_seconds: float,
) -> DataFrame:
    """Return the rows of planned ranges; raises as ``topic_dataframe`` and ``read_table``.

    Args:
        schemas: what decodes values, if the options ask for the registry.
        wait_seconds: how long a task waits for bookies that do not answer.
    """
    columns, schema = options.columns, options.schema
    if schema is not None and VALUE not in columns:
        raise BadRequestError("a schema decodes the column 'value', which columns does not name", field="columns")
    read = _reader(columns, options.on_unreadable, schemas, options.where, wait_seconds)
    plan = _plan_frame(spark, ranges, options.parallelism)
    if schemas is not None:
        return plan.mapInArrow(read, shape_of(ValueDecoder(schemas, columns, options.on_unreadable)))
    frame = plan.mapInArrow(read, columns_of_spark(columns))
    return frame if schema is None else _decoded(frame, cast("StructType | str", schema), columns)


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

    shape: StructType = from_arrow_schema(_spark_schema(decoder.schema), prefer_timestamp_ntz=True)
    return shape


def as_spark_takes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in the Arrow types that Spark takes: timestamps in microseconds, and times of day, for which
    Spark 3.5 has no type, as numbers of milliseconds or microseconds, as Spark's own reader of Avro gives them."""
    for batch in batches:
        schema = _spark_schema(batch.schema)
        if schema != batch.schema:
            columns = [column.cast(kind) for column, kind in zip(batch.columns, schema.types, strict=True)]
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        yield batch


def _spark_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_type(_spark_type(field.type)) for field in schema])


def _spark_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    if pa.types.is_time(kind):
        return pa.int32() if pa.types.is_time32(kind) else pa.int64()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_spark_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_spark_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_spark_type(kind.item_type)))
    return kind


def _reader(
    columns: tuple[str, ...],
    on_unreadable: OnUnreadable,
    schemas: TopicSchemas | None,
    where: Where | None,
    wait_seconds: float,
) -> BatchFunction:
    def read(plans: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for ranges in _work_of(plans):
            yield from as_spark_takes(read_table(ranges, columns, on_unreadable, schemas, where, wait_seconds))

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
    schema: WrittenSchema = None,
    **keywords: Unpack[WriteKeywords],
) -> int:
    """Publish every row of a DataFrame, from its executors, each Spark partition in its order.

    No row is missing when this returns. Without ``query`` rows can be in the topic more than once: Spark may run a task
    twice, and a call that failed may have published a part. Arguments, result and errors are those of
    ``heliograph.ray_data.write_dataset``, and ``WriteKeywords`` says what the keywords mean.
    """
    options = WriteOptions.of("write_dataframe", keywords, schema)
    options.columns.check(frame.columns, "DataFrame")
    needed = frame.select(*(f"`{name}`" for name in options.columns.needed(frame.columns)))
    writer = TableWriter.create(topic, options, arrow_shape(needed.schema) if schema is not None else None)
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
