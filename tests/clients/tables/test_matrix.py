"""Tables and stock readers agree row for row, however a topic was written: by Pulsar's own Python, Java and Go clients.

The normal run has cells in which every two values of the axes meet; ``FULL=1`` has those in which every three do.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pulsar
import pytest

from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.reading.range_reader import count_ranges
from tests.clients.support.golang import build_module
from tests.clients.support.maven import build
from tests.clients.support.program import run_program
from tests.clients.support.stack import ClientsStack, running_stack
from tests.clients.tables.cells import Cell, cells
from tests.clients.tables.rows import (
    decoded_values,
    partitions_of,
    plan,
    read_by_range_reader,
    read_by_ray_data,
    read_by_stock_client,
)
from tests.clients.tables.writing import MESSAGE_BYTES_MAX, PARTS, SCHEMAS, begin, end_part, write_by_python_client

FOLDER = Path(__file__).parent
JAVA_VERSION = "4.2.4"
WRITE_SECONDS_MAX = 240.0
FOREIGN_CELLS = cells(2, without={"batching": ("of-one",)})
STRENGTH = 2 if os.environ.get("FULL", "") in ("", "0") else 3

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsStack]:
    """A cluster of its own: its messages are in chunks early."""
    options = {"max_message_bytes": MESSAGE_BYTES_MAX}
    retention = {"retention_seconds": 0, "retention_bytes": 0}
    with running_stack(tmp_path_factory.mktemp("tables"), brokers=1, options=options, **retention) as running:
        yield running


@pytest.fixture(scope="module")
def client(tables: ClientsStack) -> Iterator[pulsar.Client]:
    with tables.cluster.client() as connected:
        yield connected


@pytest.fixture
def access(tables: ClientsStack) -> ClusterAccess:
    return ClusterAccess(gateway=tables.web_url)


@dataclass(frozen=True)
class Found:
    """A topic as the stock reader and the tables show it."""

    topic: str
    cell: Cell
    client: pulsar.Client
    access: ClusterAccess
    has_binary_keys: bool = False

    @property
    def names(self) -> list[str]:
        return partitions_of(self.topic, int(self.cell.partitions))

    @property
    def is_compacted(self) -> bool:
        return self.cell.compacted == "yes"

    def check_rows(self, *, compacted: bool = False) -> None:
        """Compare all ways to read the topic as a table with the stock client's readers."""
        wanted, _ = read_by_stock_client(self.client, self.names, compacted=compacted, binary_keys=self.has_binary_keys)
        assert wanted
        if self.cell.trimmed == "yes" and not compacted:
            assert {row.producer for rows in wanted.values() for row in rows} == {"writer-1", "writer-2"}
        ranges = plan(self.topic, self.access, compacted=compacted)
        assert read_by_range_reader(ranges) == wanted
        assert read_by_ray_data(ranges) == wanted
        assert count_ranges(ranges) == sum(map(len, wanted.values()))

    def decoded(self) -> list[dict[str, Any]]:
        """Return the typed values of the table."""
        return decoded_values(self.topic, plan(self.topic, self.access, compacted=self.is_compacted), self.access)

    def check(self) -> None:
        """Compare all rows, and those that compaction left."""
        self.check_rows()
        if self.is_compacted:
            self.check_rows(compacted=True)


def _fields(cell: Cell, value: Any) -> dict[str, Any]:
    """Return a decoded value as a row of its columns."""
    if cell.schema == "string":
        return {"value": value}
    return {name: None if value is None else getattr(value, name) for name in ("number", "text")}


@pytest.mark.parametrize("cell", cells(STRENGTH), ids=str)
def test_a_topic_of_the_python_client(
    cell: Cell, tables: ClientsStack, client: pulsar.Client, access: ClusterAccess
) -> None:
    topic = "persistent://public/default/python-" + "-".join(cell.values)
    begin(tables, cell, topic)
    for part in range(PARTS):
        write_by_python_client(client, cell, topic, part)
        end_part(tables, cell, topic, part)
    found = Found(topic, cell, client, access)
    found.check()
    if cell.schema != "bytes":
        _, values = read_by_stock_client(client, found.names, compacted=found.is_compacted, schema=SCHEMAS[cell.schema])
        assert found.decoded() == [_fields(cell, value) for value in values]


def _java() -> list[str]:
    return build(FOLDER / "java", pulsar_version=JAVA_VERSION).command("heliograph.tables.Writer")


def _go() -> list[str]:
    return [str(build_module(FOLDER / "go"))]


@pytest.fixture(scope="module", params=[_java, _go], ids=["java", "go"])
def foreign(request: pytest.FixtureRequest, tables: ClientsStack) -> str:
    """The prefix of topics that another language's client wrote, one for each cell."""
    prefix = f"persistent://public/default/{request.param.__name__.strip('_')}-{uuid.uuid4().hex[:6]}-"
    topics = {cell: prefix + "-".join(cell.values) for cell in FOREIGN_CELLS}
    arguments = [
        text for cell, topic in topics.items() for text in (topic, cell.codec, cell.batching, cell.schema, cell.keys)
    ]
    command = request.param()
    for cell, topic in topics.items():
        begin(tables, cell, topic)
    for part in range(PARTS):
        run = run_program(prefix, [*command, tables.service_url, str(part), *arguments], seconds=WRITE_SECONDS_MAX)
        for cell, topic in topics.items():
            run.check(f"{topic}-{part}")
            end_part(tables, cell, topic, part)
    return prefix


@pytest.mark.full
@pytest.mark.parametrize("cell", FOREIGN_CELLS, ids=str)
def test_a_topic_of_another_language(cell: Cell, foreign: str, client: pulsar.Client, access: ClusterAccess) -> None:
    """Its keys are also bytes that are no text, which the Python client shows in base64."""
    has_binary_keys = "/java-" in foreign and cell.keys == "some"
    found = Found(foreign + "-".join(cell.values), cell, client, access, has_binary_keys)
    found.check()
    if cell.schema == "bytes":
        return
    for row in found.decoded():
        text = row["text"] if "text" in row else row["value"]
        assert text is None or text == "" or text.startswith("reading "), row
        if text and "number" in row:
            assert text == f"reading {row['number']}"
    texts = [row["text"] if "text" in row else row["value"] for row in found.decoded()]
    assert any(texts)


def test_a_compaction_that_kept_nothing(tables: ClientsStack, client: pulsar.Client, access: ClusterAccess) -> None:
    """Compaction drops messages without a key, so the compacted form begins after what it read."""
    cell = Cell("none", "batch", "bytes", "none", "yes", "0", "no")
    topic = "persistent://public/default/keyless"
    begin(tables, cell, topic)
    for part in range(PARTS):
        write_by_python_client(client, cell, topic, part)
        end_part(tables, cell, topic, part)
    found = Found(topic, cell, client, access)
    found.check()
    assert {row.producer for row in read_by_range_reader(plan(topic, access, compacted=True))[topic]} == {"writer-2"}
