"""The values of messages out of a table: a column of text or bytes, or rows in JSON or encoded by a schema."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

import pyarrow as pa

from heliograph.base.errors import BadRequestError
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.conversion import Form, cells_of
from heliograph.pipelines.writing.fields import FIELDS, VALUE, Cells, row_error
from heliograph.pipelines.writing.topic_schema import RowSchema

Piece: TypeAlias = pa.RecordBatch | pa.Table


class RowValues:
    """Makes the values of messages.

    Args:
        columns: that are written.
        schema: of the values; None: they are a column of text or bytes, or JSON.
    """

    def __init__(self, columns: WrittenColumns, schema: RowSchema | None = None) -> None:
        self._columns = columns
        self._schema = schema

    def of(self, piece: Piece, first_row: int) -> Cells:
        """Return the values of some rows.

        Args:
            first_row: the number of the first row in its task, for errors.

        Raises:
            BadRequestError: a row, or the type of a column, is not acceptable; names column, row and limit.
        """
        name, form = self._columns.value, Form.TEXT if self._schema is None else self._schema.form
        if self._schema is None and name is not None:
            return FIELDS[VALUE].cells(piece.column(name), name, first_row)
        if name is None:
            names = self._columns.row(piece.schema.names)
            return self._rows(names, [piece.column(one) for one in names], None, form, first_row)
        records = _whole(piece.column(name))
        names = [one.name for one in records.type]
        # A null deletes its key from the compacted topic.
        nulls = records.is_null().to_pylist() if records.null_count else None
        return self._rows(names, records.flatten(), nulls, form, first_row)

    def _rows(
        self, names: list[str], found: list[Any], nulls: list[bool] | None, form: Form, first_row: int
    ) -> list[bytes | None]:
        if self._schema is not None:
            found = [self._schema.typed(one, _whole(cells), first_row) for one, cells in zip(names, found, strict=True)]
        cells = [cells_of(column, one, form) for one, column in zip(names, found, strict=True)]
        rows = (dict(zip(names, row, strict=True)) for row in zip(*cells, strict=True))
        return [
            None if nulls is not None and nulls[place] else self._encoded(row, first_row + place)
            for place, row in enumerate(rows)
        ]

    def _encoded(self, row: dict[str, Any], number: int) -> bytes:
        try:
            if self._schema is not None:
                return self._schema.encode(row)
            cells = {name: cell for name, cell in row.items() if cell is not None}
            return json.dumps(cells, separators=(",", ":"), ensure_ascii=False).encode()
        except (BadRequestError, ValueError, TypeError) as error:
            field, limit = getattr(error, "field", None) or VALUE, getattr(error, "limit", None)
            raise row_error(f"column {field!r}", number, str(error), field, limit) from error


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
