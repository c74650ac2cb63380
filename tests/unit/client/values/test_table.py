"""The tables of values in docs/python.md: each row comes back, and fits its column of a table."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from heliograph.client.schemas.models import ModelSchema
from heliograph.client.schemas.records import AvroSchema
from heliograph.pipelines.reading.shapes.values import arrow_type, cells_of
from tests.unit.client.values.table import AVRO_ROWS, MODEL_ROWS, PAGE, model_of, model_of_value, page, record_of


def require_column(schema: ModelSchema | AvroSchema, packed: bytes) -> None:
    cell = cells_of(schema.info, schema.info)(packed)
    assert pa.array([cell], arrow_type(schema.info)).null_count == 0


@pytest.mark.parametrize(("shown", "kind", "value"), MODEL_ROWS, ids=[row[0] for row in MODEL_ROWS])
def test_a_field_of_a_model_comes_back_and_fits_its_column(shown: str, kind: Any, value: Any) -> None:
    schema = ModelSchema(model_of(kind))
    packed = schema.encode(model_of_value(schema, value))
    assert schema.decoder(None)(packed) == model_of_value(schema, value)
    require_column(schema, packed)


@pytest.mark.parametrize(("form", "value", "sent"), AVRO_ROWS, ids=[str(row[0]) for row in AVRO_ROWS])
def test_a_field_of_a_record_comes_back_and_fits_its_column(form: Any, value: Any, sent: Any) -> None:
    schema = AvroSchema(record_of(form))
    packed = schema.encode({"x": value})
    assert schema.decoder(None)(packed) == {"x": value}
    require_column(schema, packed)
    if sent is not None:
        assert schema.encode({"x": sent}) == packed


def test_the_tables_are_in_the_docs() -> None:
    assert page() == PAGE.read_text(), "run `make docs`"
