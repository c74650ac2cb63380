"""Topics as PySpark DataFrames. Executors read bookies and write to brokers by TCP; they need neither Ray nor metadata.

A DataFrame of a topic is lazy and recomputable: it is a plan of ledger ranges, decided when it was made, and reading
them again gives the same rows (I1, I5). It does not see what is published later; make another one for that, or use
``pipelines.stream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from heliograph.errors import BadRequestError
from pipelines.columns import META_COLUMNS, VALUE, check_columns
from pipelines.planning import plan_topic
from pipelines.range_reader import read_ranges
from pipelines.ranges import LedgerRange, Position, range_from_json, split
from pipelines.table_writer import TableWriter, service_address

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
}
_RANGE_COLUMN = "ranges"
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
    parallelism: int | None = None,
    namespace: str | None = None,
) -> DataFrame:
    """Everything acknowledged of a topic now, as a DataFrame.

    Args:
        topic: a topic or partitioned topic.
        schema: what JSON in the message's value looks like, as a Spark schema or its text (``row long, name string``);
            its fields take the place of ``value``. None keeps the bytes. A value that does not fit gives nulls.
        columns: of pulsar-spark's columns (``value``, ``__key``, ``__topic``, ``__messageId``, ``__publishTime``,
            ``__eventTime``, ``__messageProperties``) those wanted, all by default: what is left out is not built.
        start, end: per partition (-1 for a topic without partitions) the first position (ledger id, entry id) wanted,
            and the first no longer wanted.
        parallelism: Spark tasks to cut the work into, at least; None: two for each core.
        namespace: the cluster's Ray namespace; None: as ``heliograph.connect``.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        BadRequestError: there is no such column.
    """
    check_columns(columns)
    ranges = plan_topic(topic, start=start, end=end, namespace=namespace)
    return ranges_dataframe(spark, ranges, schema=schema, columns=columns, parallelism=parallelism)


def ranges_dataframe(
    spark: SparkSession,
    ranges: Sequence[LedgerRange],
    *,
    schema: StructType | str | None = None,
    columns: Sequence[str] | None = None,
    parallelism: int | None = None,
) -> DataFrame:
    """The rows of planned ranges; arguments and errors as ``topic_dataframe``."""
    wanted = check_columns(columns)
    if schema is not None and VALUE not in wanted:
        raise BadRequestError("a schema needs the column 'value' to decode", field="columns")
    tasks = parallelism or 2 * spark.sparkContext.defaultParallelism
    work = split(ranges, tasks)
    rows = [("\n".join(piece.to_json() for piece in pieces),) for pieces in work]
    plan = spark.createDataFrame(spark.sparkContext.parallelize(rows, max(1, len(rows))), f"{_RANGE_COLUMN} string")
    frame = plan.mapInArrow(_reader(wanted), ", ".join(f"`{name}` {_SPARK_TYPES[name]}" for name in wanted))
    return frame if schema is None else _decoded(frame, schema, wanted)


def _reader(columns: tuple[str, ...]) -> BatchFunction:
    def read(plans: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for plan in plans:
            for text in plan.column(0).to_pylist():
                yield from read_ranges([range_from_json(line) for line in text.split("\n")], columns)

    return read


def _decoded(frame: DataFrame, schema: StructType | str, columns: Sequence[str]) -> DataFrame:
    from pyspark.sql.functions import col, from_json

    decoded = frame.withColumn(VALUE, from_json(col(VALUE).cast("string"), schema))
    beside = [name for name in columns if name in META_COLUMNS]
    return decoded.select(f"{VALUE}.*", *beside)


def write_dataframe(
    frame: DataFrame,
    topic: str,
    *,
    value: str | None = VALUE,
    key: str | None = None,
    address: str | None = None,
    namespace: str | None = None,
) -> int:
    """Publish every row of a DataFrame, from its executors, each Spark partition in its order.

    Spark may run a task twice, and a call that failed may have published a part: rows can be in the topic more than
    once, none is missing when this returns.

    Args:
        value: column with the message's value, string or binary; None: the whole row as JSON, key column included.
        key: column with the message's key, string or binary that holds text; None: no keys.
        address: ``pulsar://host:port[,host:port]``; None: found through Ray.

    Returns:
        Rows published and acknowledged.

    Raises:
        BadRequestError: there is no such column.
        ClusterNotFoundError: no address was given and no cluster found.
    """
    from pyspark.sql.functions import col, struct, to_json

    _check_present(frame, value, key)
    payload = to_json(struct("*")) if value is None else col(f"`{value}`")
    selected = [payload.cast("binary").alias("value")]
    if key is not None:
        selected.append(col(f"`{key}`").cast("string").alias("key"))
    writer = TableWriter(address or service_address(namespace), topic)
    written = frame.select(*selected).mapInArrow(_writer(writer), f"{_WRITTEN} long")
    return sum(row[0] for row in written.collect())


def _writer(writer: TableWriter) -> BatchFunction:
    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({_WRITTEN: [writer.write(batches)]})

    return write


def _check_present(frame: DataFrame, *names: str | None) -> None:
    for name in names:
        if name is not None and name not in frame.columns:
            raise BadRequestError(
                f"the DataFrame has no column {name!r}", field="columns", limit=", ".join(frame.columns)
            )
