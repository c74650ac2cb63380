"""Writers of a source, for batches and micro-batches. They are pickled: rows are published by Python workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (  # type: ignore[import-not-found, unused-ignore]
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from heliograph.base.errors import UnsupportedError
from heliograph.pipelines.data_source.options import SourceOptions
from heliograph.pipelines.spark.dataframe import arrow_shape
from heliograph.pipelines.writing.columns import WHOLE_ROW, WrittenColumns
from heliograph.pipelines.writing.fields import DELIVER_AFTER, DELIVER_AT, FIELDS, VALUE
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.table_writer import TableWriter

_BATCH_ID = "streaming.sql.batchId"  # local property of Spark's streaming tasks


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc, unused-ignore]
    """The messages that one task wrote."""

    rows: int


class _Writer:
    """The base of both writers."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        """Check the columns and the topics, and register the schema of the values.

        Raises:
            BadRequestError: there is no such column, or no topic is given.
            IncompatibleSchemaError: a topic has another schema, and its policy does not let it become this one.
            UnsupportedError: a query is named, and a topic does not deduplicate.
        """
        if options.pattern:
            raise UnsupportedError("rows are written to named topics", field="topicsPattern", limit="topic, topics")
        columns = written_columns(options, schema.names)
        self._writer = TableWriter.create(
            options.topics[0] if len(options.topics) == 1 else options.topics or None,
            WriteOptions(
                columns,
                options.access,
                options.address or None,
                WriteIdentity(options.query, options.batch_id, options.writes_in_doubt) if options.query else None,
                options.schema or None,  # type: ignore[arg-type]  # options are checked
                options.read,
            ),
            arrow_shape(schema) if options.schema else None,
        )

    def _written(self, batches: Iterator[pa.RecordBatch], writer: TableWriter) -> Written:
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks"
        return Written(writer.write(batches, context.partitionId()))


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc, unused-ignore]
    """Publishes the rows of a DataFrame."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one task, and wait until they are durable."""
        return self._written(iterator, self._writer)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc, unused-ignore]
    """Publishes the rows of micro-batches; with the option ``query`` each row once, whatever is killed."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Publish the rows of one task, and wait until they are durable."""
        writer = self._writer
        if writer.write_identity is not None:
            context = TaskContext.get()
            batch_id = context.getLocalProperty(_BATCH_ID) if context is not None else None
            assert batch_id is not None, "Spark tells the tasks of a stream their micro-batch"
            writer = replace(writer, write_identity=replace(writer.write_identity, batch_id=int(batch_id)))
        return self._written(iterator, writer)

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:
        """Do nothing: rows are durable when their task ends."""

    def abort(self, messages: Sequence[Written | None], batchId: int) -> None:
        """Do nothing: what was published stays. With ``query``, the next run of the micro-batch completes it."""


def written_columns(options: SourceOptions, present: Sequence[str]) -> WrittenColumns:
    """Return the columns that are written: those that options name, and otherwise those that reading gives.

    Raises:
        BadRequestError: the DataFrame has no such column.
    """
    usual = {one.name: one.usual for one in FIELDS.values() if one.usual in present}
    if DELIVER_AFTER in options.fields:
        usual.pop(DELIVER_AT, None)
    found = usual | dict(options.fields)
    value = found.pop(VALUE, VALUE)
    return WrittenColumns(None if value == WHOLE_ROW else value, found).check(present, "DataFrame")
