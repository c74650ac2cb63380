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

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.data_source.options import SourceOptions
from heliograph.pipelines.data_source.planner import SourcePlanner
from heliograph.pipelines.reading.columns import EVENT_TIME, KEY, ORDERING_KEY, PROPERTIES, VALUE
from heliograph.pipelines.writing import table_writer
from heliograph.pipelines.writing.table_writer import TableWriter, WriteIdentity, check_deduplicates
from heliograph.protocol.topic_name import TopicName

# Columns with these names are written where no option names another one, so that what was read can be written.
_USUAL = {
    table_writer.VALUE: VALUE,
    table_writer.KEY: KEY,
    table_writer.PROPERTIES: PROPERTIES,
    table_writer.EVENT_TIME: EVENT_TIME,
    table_writer.ORDERING_KEY: ORDERING_KEY,
}
_BATCH_ID = "streaming.sql.batchId"  # local property of Spark's streaming tasks


@dataclass
class Written(WriterCommitMessage):  # type: ignore[misc, unused-ignore]
    """What one task wrote."""

    rows: int


class _Writer:
    """What both writers do."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        """Check the columns and the topic.

        Raises:
            BadRequestError: there is no such column.
            UnsupportedError: a query is named, and the topic does not deduplicate.
        """
        self._columns = _chosen(options, columns)
        identity = WriteIdentity(options.query, options.batch_id) if options.query else None
        self._writer = _table_writer(options, identity)

    def _written(self, batches: Iterator[pa.RecordBatch], writer: TableWriter) -> Written:
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks"
        return Written(writer.write(map(self._selected, batches), context.partitionId()))

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name) for name in self._columns.values()]
        return pa.RecordBatch.from_arrays([_plain(column) for column in columns], list(self._columns))


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


def _chosen(options: SourceOptions, columns: Sequence[str]) -> dict[str, str]:
    """Return the column of each field of a message that is written."""
    chosen = {field: name for field, name in _USUAL.items() if name in columns} | dict(options.fields)
    for name in (chosen.get(table_writer.VALUE, VALUE), *chosen.values()):
        if name not in columns:
            raise BadRequestError(f"the DataFrame has no column {name!r}", field=name, limit=", ".join(columns))
    return chosen


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as messages hold it: Spark hands out texts and maps in several Arrow types."""
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def _table_writer(options: SourceOptions, identity: WriteIdentity | None) -> TableWriter:
    admin, topic = SourcePlanner(options).admin, TopicName.parse(options.only_topic)
    if identity is not None:
        check_deduplicates(admin, topic)
    address = options.address
    if not address:
        owner = admin.lookup(str(topic.partitions(admin.partitions(str(topic), may_create=True))[0]))
        address = owner["service_url_tls" if options.access.tls else "service_url"]
    if not address:
        raise BadRequestError("the brokers speak TLS only: name tlsCaFile", field="tlsCaFile")
    assert options.access.identity is not None, "options name who writes"
    return TableWriter(address, options.only_topic, options.access.identity, options.access.tls, identity)
