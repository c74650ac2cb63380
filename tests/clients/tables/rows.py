"""Rows in one form: as a stock reader finds them in a topic, and as the tables of this project show them."""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pulsar
import pyarrow as pa

from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic, schema_versions
from heliograph.pipelines.planning.ranges import LedgerRange
from heliograph.pipelines.ray_data.source import TableRead, TopicDatasource
from heliograph.pipelines.reading.columns import ALL_COLUMNS, ORDERING_KEY, PRODUCER_NAME, check_columns
from heliograph.pipelines.reading.range_reader import read_ranges, read_table
from heliograph.pipelines.reading.registry import schemas_of
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.topic_name import TopicName

COLUMNS = (*ALL_COLUMNS, ORDERING_KEY, PRODUCER_NAME)
READ_TASKS = 5
WAIT_MS = 60_000


@dataclass(frozen=True)
class Row:
    """What a reader of Pulsar tells of a message."""

    ledger_id: int
    entry_id: int
    batch_index: int  # -1 outside of a batch
    value: bytes | None
    key: bytes  # empty if there is none
    ordering_key: bytes
    properties: tuple[tuple[str, str], ...]
    publish_ms: int
    event_ms: int  # 0 if there is none
    producer: str


Table = dict[str, list[Row]]  # by topic or partition, in its order


def partitions_of(topic: str, count: int) -> list[str]:
    """Return the full names of a topic's partitions, or its own."""
    return [str(name) for name in TopicName.parse(topic).partitions(count)]


def read_by_stock_client(
    client: pulsar.Client,
    names: Iterable[str],
    *,
    compacted: bool = False,
    schema: Any = None,
    binary_keys: bool = False,
) -> tuple[Table, list[Any]]:
    """Return the rows that readers of the stock client find, and their decoded values.

    Args:
        binary_keys: the keys are bytes, which this client shows in base64.
    """
    table: Table = {}
    values: list[Any] = []
    for name in names:
        options = {} if schema is None else {"schema": schema}
        reader = client.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=compacted, **options)
        table[name] = []
        while reader.has_message_available():
            message = reader.read_next(WAIT_MS)
            table[name].append(_of_stock(message, binary_keys))
            values.append(None if message.has_null_value() else message.value())
        reader.close()
    return {name: rows for name, rows in table.items() if rows}, values


def _of_stock(message: pulsar.Message, binary_keys: bool) -> Row:
    place = message.message_id()
    key = message.partition_key()
    return Row(
        place.ledger_id(),
        place.entry_id(),
        place.batch_index(),
        None if message.has_null_value() else message.data(),
        base64.b64decode(key) if binary_keys else key.encode(),
        message.ordering_key().encode(),
        tuple(sorted(message.properties().items())),
        message.publish_timestamp(),
        message.event_timestamp(),
        message.producer_name(),
    )


def plan(topic: str, access: ClusterAccess, *, compacted: bool = False) -> list[LedgerRange]:
    """Return the plan of a whole topic."""
    return plan_topic(topic, compacted=compacted, access=access)


def read_by_range_reader(ranges: Sequence[LedgerRange]) -> Table:
    """Return the rows of a plan, read as one piece."""
    return table_of(read_ranges(ranges, COLUMNS))


def read_by_ray_data(ranges: Sequence[LedgerRange]) -> Table:
    """Return the rows of the read tasks that Ray Data runs."""
    source = TopicDatasource(ranges, TableRead(check_columns(COLUMNS)), task_bytes_min=1)
    return table_of(block for task in source.get_read_tasks(READ_TASKS) for block in task())


def decoded_values(topic: str, ranges: Sequence[LedgerRange], access: ClusterAccess) -> list[dict[str, Any]]:
    """Return the typed values of a plan, by the schemas of the registry."""
    schemas = schemas_of(topic, schema_versions(topic, access))
    return [row for batch in read_table(ranges, ("value",), schemas=schemas) for row in batch.to_pylist()]


def table_of(batches: Iterable[pa.RecordBatch | pa.Table]) -> Table:
    """Return the rows of record batches, of tables or of Ray Data's blocks."""
    table: Table = defaultdict(list)
    for batch in batches:
        for row in batch.to_pylist():
            table[row["__topic"]].append(of_columns(row))
    return dict(table)


def of_columns(row: dict[str, Any]) -> Row:
    """Return a row of a table whose columns have names and types of Arrow."""
    place = MessageId.from_bytes(row["__messageId"])
    return Row(
        place.ledger_id,
        place.entry_id,
        place.batch_index,
        row["value"],
        row["__key"] or b"",
        row["__orderingKey"] or b"",
        tuple(sorted(dict(row["__messageProperties"]).items())),
        _milliseconds(row["__publishTime"]),
        _milliseconds(row["__eventTime"]),
        row["__producerName"],
    )


def _milliseconds(moment: Any) -> int:
    return 0 if moment is None else round(moment.timestamp() * 1000)
