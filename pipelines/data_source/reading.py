"""Readers of a source, for batches and micro-batches. They are pickled: planning and reading run in Python workers."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (  # type: ignore[import-not-found, unused-ignore]
    DataSourceReader,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.streaming.datasource import (  # type: ignore[import-not-found, unused-ignore]
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.data_source.offsets import (
    Offsets,
    of_topic,
    offsets_after,
    offsets_from_json,
    offsets_to_json,
)
from heliograph.pipelines.data_source.options import SourceOptions
from heliograph.pipelines.data_source.planner import SourcePlanner
from heliograph.pipelines.planning.conditions import COLUMNS, IN, NOT_NULL, TIMES, Where, both, where_of
from heliograph.pipelines.planning.patience import BATCH_SECONDS, STREAM_SECONDS, Patience
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange, limited, range_from_json, split
from heliograph.pipelines.reading.range_reader import read_table
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.spark.dataframe import as_spark_takes

PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
TASKS = 64  # of one query or micro-batch, unless the data needs more or the option ``parallelism`` says otherwise

_Stored = dict[str, str]  # offsets as Spark stores them

_SIGNS = {
    EqualTo: "==",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    In: IN,
}


def where_of_filter(one: Filter, columns: Sequence[str]) -> Where | None:
    """Return the condition that stands for a filter of Spark, None if there is none.

    Args:
        columns: of the table. Fields of decoded values may have names of columns that it does not have.
    """
    path: tuple[str, ...] = one.attribute if hasattr(one, "attribute") else ()
    if len(path) != 1 or path[0] not in COLUMNS or path[0] not in columns:
        return None
    (column,) = path
    if isinstance(one, IsNotNull):
        return where_of([(column, NOT_NULL, None)])
    sign = _SIGNS.get(type(one))
    values = list(one.value) if sign == IN else [getattr(one, "value", None)]
    if sign is None or not all(_fits(column, value) for value in values):
        return None
    try:
        return where_of([(column, sign, values if sign == IN else values[0])])
    except BadRequestError:
        return None  # Spark compares what is no message id, or message ids by their order


def _fits(column: str, value: Any) -> bool:
    if column in TIMES:
        return isinstance(value, datetime) and value.tzinfo is not None
    return isinstance(value, bytes | bytearray)


class RangesPartition(InputPartition):  # type: ignore[misc, unused-ignore]
    """The work of one task."""

    def __init__(self, pieces: Sequence[LedgerRange]) -> None:
        self.pieces = [piece.to_json() for piece in pieces]


class _Rows:
    """The base of both readers: it splits plans into tasks, and reads the rows of one task.

    They wait for a cluster that does not answer, with a line in the log for each attempt.
    """

    _wait_seconds = BATCH_SECONDS

    def __init__(self, options: SourceOptions, schemas: TopicSchemas | None) -> None:
        self._options = options
        self._schemas = schemas
        self._where = options.where

    def _partitions(self, ranges: Sequence[LedgerRange]) -> list[RangesPartition]:
        tasks = self._options.parallelism
        return [RangesPartition(one) for one in split(ranges, tasks or TASKS, 1 if tasks else TASK_BYTES_MIN)]

    def read(self, partition: RangesPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        # Where there is no work at all, Spark makes up a partition of its own.
        ranges = [range_from_json(text) for text in getattr(partition, "pieces", ())]
        options = self._options
        yield from as_spark_takes(
            read_table(ranges, options.columns, options.on_unreadable, self._schemas, self._where, self._wait_seconds)
        )


class BatchReader(_Rows, DataSourceReader):  # type: ignore[misc, unused-ignore]
    """Reads what is acknowledged when the query is planned."""

    def partitions(self) -> list[RangesPartition]:
        """Return the work of each task."""
        planner = SourcePlanner(self._options)
        patience = Patience(self._wait_seconds)
        planned = patience.call("planning a read", lambda: planner.plan(planner.start(), planner.end(), self._where))
        return self._partitions(planned)


class FilteringReader(BatchReader):
    """A reader that takes filters over from Spark. Spark refuses it while its filters are not to be pushed down."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take over the filters that conditions stand for, and return the others."""
        for one in filters:
            where = where_of_filter(one, self._options.columns)
            if where is None:
                yield one
            else:
                self._where = both(self._where, where)


def takes_filters() -> bool:
    """Return whether this process is the worker of Spark that hands filters to a reader."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    return PUSHDOWN_WORKER in sys.modules or (main is not None and main.name == PUSHDOWN_WORKER)


class StreamReader(_Rows, SupportsTriggerAvailableNow, DataSourceStreamReader):  # type: ignore[misc, unused-ignore]
    """Reads a topic in micro-batches, whose offsets Spark stores in its checkpoint."""

    _wait_seconds = STREAM_SECONDS

    def __init__(self, options: SourceOptions, schemas: TopicSchemas | None) -> None:
        super().__init__(options, schemas)
        self._patience = Patience()
        self._planner = SourcePlanner(options)
        self._until: _Stored | None = None  # of Trigger.AvailableNow

    def initialOffset(self) -> _Stored:
        """Return where a new query begins, and open its subscription there."""
        offsets = self._patience.call("looking for the start of a stream", self._planner.start)
        self._patience.call("opening the subscription of a stream", lambda: self._open(offsets))
        return offsets_to_json(offsets)

    def _open(self, offsets: Offsets) -> None:
        for topic, subscription in self._planner.subscriptions():
            subscription.open(of_topic(offsets, topic))

    def prepareForTriggerAvailableNow(self) -> None:
        """End the query at what is acknowledged now."""
        self._until = self.reportLatestOffset()

    def latestOffset(self, start: _Stored, limit: ReadLimit) -> _Stored:
        """Return the end of the next micro-batch."""
        offsets = offsets_from_json(start)
        until = None if self._until is None else offsets_from_json(self._until)
        ranges = limited(self._planned(offsets, until), *_limits(limit))
        return offsets_to_json(offsets_after(offsets, ranges))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set."""
        if self._options.entries_max is not None:
            return ReadMaxRows(self._options.entries_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def reportLatestOffset(self) -> _Stored:
        """Return the end of the topic, which Spark shows as progress and lag."""
        return offsets_to_json(self._patience.call("looking for the end of a stream", self._planner.latest))

    def partitions(self, start: _Stored, end: _Stored) -> list[RangesPartition]:
        """Return the work of each task of a micro-batch: the same rows however often it runs."""
        return self._partitions(self._planned(offsets_from_json(start), offsets_from_json(end)))

    def _planned(self, start: Offsets, end: Offsets | None) -> list[LedgerRange]:
        return self._patience.call("planning a micro-batch", lambda: self._planner.plan(start, end))

    def commit(self, end: _Stored) -> None:
        """Acknowledge what the query has handled, so that retention need not keep it."""
        offsets = offsets_from_json(end)
        self._patience.call("acknowledging a micro-batch", lambda: self._acknowledge(offsets))

    def _acknowledge(self, offsets: Offsets) -> None:
        for topic, subscription in self._planner.subscriptions():
            subscription.acknowledge(of_topic(offsets, topic))


def _limits(limit: ReadLimit) -> tuple[int | None, int | None]:
    """Return the most entries and the most bytes. An entry has at least one row, so rows are counted as entries."""
    return getattr(limit, "max_rows", None), getattr(limit, "max_bytes", None)
