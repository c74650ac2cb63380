"""The source of a Dataset: read tasks that fetch ledger ranges from bookies, as far as Ray Data needs their rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from ray.data.block import Block, BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from typing_extensions import override

from heliograph.base.errors import BadRequestError
from heliograph.client.ray_release import has_pushdown
from heliograph.pipelines.planning.conditions import TIMES, Given, Where, both, where_of
from heliograph.pipelines.planning.patience import STREAM_SECONDS
from heliograph.pipelines.planning.ranges import TASK_BYTES_MIN, LedgerRange, split
from heliograph.pipelines.reading.columns import EVERY_COLUMN, OnUnreadable, schema_of
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.reading.range_reader import count_table, read_table
from heliograph.pipelines.reading.registry import TopicSchemas

COUNTED = "__rows"  # the column of nulls that stands for rows of which no column is wanted
_SIGNS = {"eq": "==", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_MIRRORED = {"==": "==", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def where_of_expression(expression: Any) -> Where | None:
    """Return the conditions of a predicate of Ray Data; None if it is not a conjunction of such conditions."""
    try:
        return where_of(list(_conditions(expression)))
    except BadRequestError:
        return None


def _conditions(expression: Any) -> Iterator[Given]:
    from ray.data.expressions import BinaryExpr, ColumnExpr, LiteralExpr

    if not isinstance(expression, BinaryExpr):
        raise _no_condition(expression)
    left, right, name = expression.left, expression.right, expression.op.value
    if name == "and":
        yield from _conditions(left)
        yield from _conditions(right)
        return
    sign = _SIGNS.get(name)
    if sign is not None and isinstance(left, ColumnExpr) and isinstance(right, LiteralExpr):
        yield left.name, sign, _constant(left.name, right.value)
    elif sign is not None and isinstance(left, LiteralExpr) and isinstance(right, ColumnExpr):
        yield right.name, _MIRRORED[sign], _constant(right.name, left.value)
    else:
        raise _no_condition(expression)


def _constant(column: str, value: Any) -> Any:
    """Return a constant with which Ray Data would compare in the same way."""
    fits = isinstance(value, datetime) and value.tzinfo is not None if column in TIMES else isinstance(value, bytes)
    if not fits:
        raise _no_condition(value)
    return value


def _no_condition(part: Any) -> BadRequestError:
    return BadRequestError(f"no condition stands for {part!r:.200}", field="filter")


@dataclass(frozen=True)
class TableRead:
    """The conversion of a task's ranges to rows. Picklable.

    Args:
        columns: that are built, as ``check_columns`` returns them.
        chosen: of those that come out; None: all.
    """

    columns: tuple[str, ...]
    on_unreadable: OnUnreadable = "fail"
    schemas: TopicSchemas | None = None
    where: Where | None = None
    chosen: tuple[str, ...] | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the columns that come out, and their types."""
        whole = schema_of(self.columns)
        if self.schemas is not None:
            whole = ValueDecoder(self.schemas, self.columns, self.on_unreadable).schema
        return whole if self.chosen is None else pa.schema([whole.field(name) for name in self.chosen])

    def blocks(self, pieces: Sequence[LedgerRange]) -> Iterator[Block]:
        """Yield the rows of ranges. Without any column they are counted, for which no payload is decoded."""
        if self.chosen == ():
            yield pa.table({COUNTED: pa.nulls(self._count(pieces))})
            return
        columns = self.columns
        if self.schemas is None and self.chosen is not None:
            columns = self.chosen
        for batch in read_table(pieces, columns, self.on_unreadable, self.schemas, self.where, STREAM_SECONDS):
            table = pa.Table.from_batches([batch])
            yield table if self.chosen is None else table.select(list(self.chosen))

    def _count(self, pieces: Sequence[LedgerRange]) -> int:
        return count_table(pieces, self.on_unreadable, self.schemas, self.where, STREAM_SECONDS)


class TopicDatasource(Datasource):
    """A Ray Data source that reads planned ranges."""

    def __init__(self, ranges: Sequence[LedgerRange], table: TableRead, task_bytes_min: int = TASK_BYTES_MIN) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table
        self._task_bytes_min = task_bytes_min
        self._ranges = list(ranges)

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
        schema = self._table.schema
        # A Ray that has no limits, as 2.49, asks for none, and does not know the argument.
        limits: dict[str, Any] = {} if per_task_row_limit is None else {"per_task_row_limit": per_task_row_limit}
        tasks = []
        for pieces in split(self._ranges, max(1, parallelism), self._task_bytes_min):
            metadata = BlockMetadata(num_rows=None, size_bytes=_bytes_of(pieces), input_files=None, exec_stats=None)
            read = _read_function(pieces, self._table)
            tasks.append(ReadTask(read, metadata, schema=schema, **limits))
        return tasks

    @override
    def supports_projection_pushdown(self) -> bool:
        return has_pushdown()

    @override
    def get_projection_map(self) -> dict[str, str] | None:
        chosen = self._table.chosen
        return None if chosen is None else {name: name for name in chosen}

    @override
    def apply_projection(self, projection_map: Mapping[str, str] | None) -> TopicDatasource:
        if projection_map is None:
            return self._with(self._table)
        before = self._table.schema.names
        return self._with(replace(self._table, chosen=tuple(name for name in projection_map if name in before)))

    @override
    def supports_predicate_pushdown(self) -> bool:
        return has_pushdown()

    @override
    def apply_predicate(self, predicate_expr: Any) -> TopicDatasource:
        """Return this source itself, which keeps the filter in Ray Data, unless it is understood as a whole."""
        where = where_of_expression(predicate_expr)
        if where is None or not set(where.columns) <= set(EVERY_COLUMN):
            return self
        return self._with(replace(self._table, where=both(self._table.where, where)))

    def _with(self, table: TableRead) -> TopicDatasource:
        made = copy.copy(self)
        made._table = table
        return made


def _bytes_of(ranges: Iterable[LedgerRange]) -> int:
    return sum(piece.entry_bytes * piece.entries for piece in ranges)


def _read_function(pieces: list[LedgerRange], table: TableRead) -> Callable[[], Iterable[Block]]:
    def read() -> Iterable[Block]:
        return table.blocks(pieces)

    return read
