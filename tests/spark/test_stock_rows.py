"""DataFrames of topics that the stock Python client writes, compared row for row with what its readers find."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from heliograph.client.admin.admin import AdminSync
from heliograph.pipelines.spark.dataframe import topic_count, topic_dataframe
from tests.clients.tables.cells import Cell
from tests.clients.tables.rows import COLUMNS, Table, of_columns, partitions_of, read_by_stock_client
from tests.clients.tables.writing import PARTS, write_by_python_client

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # warnings of Spark and Ray themselves
]

CELLS = [
    Cell("lz4", "batch", "avro", "ordering", "no", "2", "no"),
    Cell("zstd", "by-key", "bytes", "some", "no", "0", "no"),
    Cell("none", "single", "string", "text", "no", "2", "no"),
]


@pytest.fixture(scope="module")
def stock(spark: SparkSession) -> Iterator[pulsar.Client]:
    AdminSync().create_topic("anything")
    url = AdminSync().lookup("anything")["service_url"]
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def table_of(frame: DataFrame) -> Table:
    """Return the rows of each partition in its order, as the stock reader tells them."""
    table: Table = {}
    for row in frame.collect():
        found: dict[str, Any] = {
            name: bytes(value) if isinstance(value, bytearray) else value for name, value in row.asDict().items()
        }
        table.setdefault(found["__topic"], []).append(of_columns(found))
    return {
        name: sorted(rows, key=lambda row: (row.ledger_id, row.entry_id, row.batch_index))
        for name, rows in table.items()
    }


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_a_frame_has_the_rows_of_a_stock_reader(cell: Cell, spark: SparkSession, stock: pulsar.Client) -> None:
    topic = "persistent://public/default/stock-" + "-".join(cell.values)
    AdminSync().create_topic(topic, int(cell.partitions))
    for part in range(PARTS):
        write_by_python_client(stock, cell, topic, part)
    wanted, _ = read_by_stock_client(stock, partitions_of(topic, int(cell.partitions)))
    assert table_of(topic_dataframe(spark, topic, columns=COLUMNS)) == wanted
    assert topic_count(spark, topic) == sum(map(len, wanted.values()))
    keyed = [row for rows in wanted.values() for row in rows if row.key == "key \N{SNOWMAN} 3".encode()]
    chosen = topic_dataframe(spark, topic, where=[("__key", "==", "key \N{SNOWMAN} 3")], columns=("value",))
    assert sorted(str(None if row[0] is None else bytes(row[0])) for row in chosen.collect()) == sorted(
        str(row.value) for row in keyed
    )
