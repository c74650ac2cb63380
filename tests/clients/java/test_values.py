"""Generated models, records and values: Pulsar's Java client reads what ours wrote, and ours reads what Java wrote."""

from __future__ import annotations

import io
import json
import math
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
from hypothesis import strategies as st

import heliograph
from heliograph.client.schemas.models import ModelSchema
from heliograph.client.schemas.records import AvroSchema
from heliograph.protocol.schema import without_logical_types
from tests.clients.support.maven import build
from tests.clients.support.program import run_program
from tests.clients.support.stack import ClientsStack
from tests.unit.client.values.strategies import PLAIN, are_equal, generated, kinds, models, some
from tests.unit.client.values.test_avro import KINDS

VALUES = 3  # of each schema
SCHEMAS = 150 if os.environ.get("FULL", "") not in ("", "0") else 8  # of each kind
SECONDS = 60
PROGRAM_SECONDS_MAX = 480.0


@dataclass
class Case:
    """A schema, and values that it took."""

    schema: Any  # a ModelSchema or an AvroSchema
    values: list[Any]
    topic: str


def cases() -> Iterator[Case]:
    made = models(kinds(PLAIN)).flatmap(lambda kind: st.tuples(st.just(kind.type), some(kind.values, VALUES)))
    for model, values in generated(made, 27, SCHEMAS):
        yield Case(ModelSchema(model), values, f"values-{uuid.uuid4().hex}")
    records = KINDS.flatmap(lambda kind: st.tuples(st.just(kind[0]), some(kind[1], VALUES)))
    for definition, values in generated(records, 27, SCHEMAS):
        yield Case(AvroSchema(definition), values, f"values-{uuid.uuid4().hex}")


def as_stored(schema: Any, payload: bytes) -> Any:
    """Return a value without the types of Python, as the Java program tells it."""
    if isinstance(schema, ModelSchema):
        return json.loads(payload)
    plain = fastavro.parse_schema(without_logical_types(json.loads(schema.info.data)))
    return _told(fastavro.schemaless_reader(io.BytesIO(payload), plain, None))


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'-' if value < 0 else ''}Infinity"
    if isinstance(value, dict):
        return {name: _told(each) for name, each in value.items()}
    return [_told(each) for each in value] if isinstance(value, list) else value


def test_java_and_this_client_read_each_others_values(stack: ClientsStack, tmp_path: Path) -> None:
    project = build(Path(__file__).parent, pulsar_version="4.2.4")
    made = list(cases())
    assert len(made) == 2 * SCHEMAS
    topics, out = tmp_path / "topics", tmp_path / "values"
    topics.write_text("".join(f"{len(case.values)} {case.topic}\n" for case in made))
    with heliograph.connect(stack.service_url) as client:
        for case in made:
            with client.producer(case.topic, schema=case.schema) as producer:
                producer.send_many(case.values)
        command = project.command("heliograph.clients.Values", stack.service_url, str(topics), str(out))
        run = run_program("Values", command, seconds=PROGRAM_SECONDS_MAX)
        run.check_end()
        lines = iter(out.read_bytes().split(b"\n"))
        for case in made:
            for value in case.values:
                assert json.loads(next(lines)) == as_stored(case.schema, case.schema.encode(value)), case
            with client.reader(f"{case.topic}-back", "earliest", schema=case.schema) as reader:
                for value in case.values:
                    assert are_equal(value, reader.receive(SECONDS).value), case
    assert list(lines) == [b""]
