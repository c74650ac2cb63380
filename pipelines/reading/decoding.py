"""Values of messages into typed columns, by the schemas of the registry. No I/O.

A message is decoded with the version it was written with, and shown with the fields of the newest: fields that are new
are null or have their default, and fields that were removed are gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from heliograph.base.errors import HeliographError, ProtocolError
from heliograph.client.schemas.decoding import Decode, decoder_of
from heliograph.pipelines.reading.columns import ERROR, KEY, SCHEMA, SCHEMA_VERSION, VALUE, OnUnreadable
from heliograph.pipelines.reading.registry import TopicSchemas
from heliograph.pipelines.reading.shapes.values import cells_of

BAD_VALUE = "__badValue"  # the bytes of a value that its schema does not fit


class ValueDecoder:
    """Decodes the column ``value`` of record batches.

    Args:
        schemas: of the topic.
        columns: the other columns wanted, without ``value``.
        on_unreadable: what becomes of a row whose value its schema does not fit: ``fail`` raises, ``skip`` leaves it
            out, ``null`` has nulls, the reason in ``__error`` and the bytes in ``__badValue``.

    Attributes:
        schema: of the batches that come out: the fields of a record, or ``value``; then the other columns.
        reads: the columns that batches need to have.
        unreadable: rows whose value does not fit.
    """

    def __init__(self, schemas: TopicSchemas, columns: Sequence[str], on_unreadable: OnUnreadable = "fail") -> None:
        self._schemas = schemas
        self._type = schemas.kind
        self._beside = [name for name in columns if name not in (VALUE, ERROR)]
        self._on_unreadable = on_unreadable
        self._cells = partial(cells_of, recursion_depth=schemas.recursion_depth)
        self._decoders: dict[int | None, Decode] = {}
        own = list(self._type) if pa.types.is_struct(self._type) else [pa.field(VALUE, self._type)]
        bad = [pa.field(ERROR, pa.string()), pa.field(BAD_VALUE, pa.binary())] if on_unreadable == "null" else []
        self.schema = pa.schema([*own, *(SCHEMA.field(name) for name in self._beside), *bad])
        reads = [VALUE, KEY, SCHEMA_VERSION, *([ERROR] if bad else []), *self._beside]
        self.reads = tuple(dict.fromkeys(reads))
        self.unreadable = 0

    def decoded(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches with typed columns.

        Raises:
            ProtocolError: a value does not fit its schema, and ``on_unreadable`` is ``fail``.
        """
        for batch in batches:
            yield self._batch(batch)

    def _batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name).to_pylist() for name in (VALUE, KEY, SCHEMA_VERSION)]
        found: list[Any] = []
        errors: list[str | None] = batch.column(ERROR).to_pylist() if ERROR in self.reads else [None] * batch.num_rows
        for row, (value, key, version) in enumerate(zip(*columns, strict=True)):
            try:
                found.append(None if value is None else self._decoder(version)(value, key))
            except HeliographError as error:
                found.append(None)
                errors[row] = str(error)
        typed = self._typed(found, errors)
        bad = [error is not None and value is not None for error, value in zip(errors, columns[0], strict=True)]
        self.unreadable += sum(bad)
        if self._on_unreadable == "fail" and any(bad):
            raise ProtocolError(
                f"a value does not fit its schema: {errors[bad.index(True)]}; on_unreadable='skip' or 'null' goes on",
                field="schema",
            )
        arrays = list(typed.flatten()) if pa.types.is_struct(self._type) else [typed]
        arrays += [batch.column(name) for name in self._beside]
        if self._on_unreadable == "null":
            values = [value if is_bad else None for value, is_bad in zip(columns[0], bad, strict=True)]
            arrays += [pa.array(errors, pa.string()), pa.array(values, pa.binary())]
        made = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        return made.filter(pa.array([not one for one in bad])) if self._on_unreadable == "skip" and any(bad) else made

    def _typed(self, values: list[Any], errors: list[str | None]) -> pa.Array:
        """Return the values as an Arrow array. Values of other types than the schema's become null."""
        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError):
            return pa.concat_arrays([self._typed_alone(row, value, errors) for row, value in enumerate(values)])

    def _typed_alone(self, row: int, value: Any, errors: list[str | None]) -> pa.Array:
        try:
            if pa.types.is_struct(self._type) and not isinstance(value, dict | None):
                raise TypeError(f"{type(value).__name__} instead of a record")
            return pa.array([value], self._type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError, AttributeError) as error:
            errors[row] = str(error)
            return pa.nulls(1, self._type)

    def _decoder(self, version: int | None) -> Decode:
        found = self._decoders.get(version)
        if found is None:
            written = self._schemas.written_with(version)
            found = self._decoders[version] = decoder_of(written, self._schemas.newest, self._cells)
        return found
