"""The topic of a cell: its messages, its ledgers, and what was trimmed and compacted of it."""

from __future__ import annotations

from random import Random
from typing import Any

import pulsar
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.clients.support.stack import ClientsStack
from tests.clients.tables.cells import Cell
from tests.cluster.support.broker_cluster import wait_for

MESSAGES = 30  # of each of three parts
LONG_BYTES = 150_000  # of a message in chunks: three of them, for the limit below
MESSAGE_BYTES_MAX = 64_000  # of an entry, in the brokers of these tests
CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}
_BATCH = {"batching_enabled": True, "batching_max_messages": 7, "batching_max_publish_delay_ms": 60_000}
BATCHING: dict[str, dict[str, Any]] = {
    "single": {},
    "batch": _BATCH,
    "by-key": {**_BATCH, "batching_type": pulsar.BatchingType.KeyBased},
    "of-one": _BATCH,  # flushed after each message
    "chunks": {"chunking_enabled": True},
}


class Reading(Record):  # type: ignore[misc]  # the library has no types
    """A record of the topics with schemas."""

    number = Integer()
    text = String()


SCHEMAS: dict[str, Any] = {
    "bytes": BytesSchema(),
    "string": StringSchema(),
    "json": JsonSchema(Reading),
    "avro": AvroSchema(Reading),
}

PARTS = 3


def begin(stack: ClientsStack, cell: Cell, topic: str) -> None:
    """Create the topic of a cell, with a subscription that holds its messages."""
    stack.cluster.run(stack.cluster.admin.create_topic(topic, int(cell.partitions)))
    stack.cluster.run(stack.cluster.admin.create_subscription(topic, "hold", "earliest"))


def end_part(stack: ClientsStack, cell: Cell, topic: str, part: int) -> None:
    """Do what comes after a part was written. Each part has ledgers of its own.

    The first one is trimmed in the end, or stays because the subscription holds it; the first two are compacted.
    """
    run, admin = stack.cluster.run, stack.cluster.admin
    if part == 0 and cell.trimmed == "yes":
        run(admin.cursors.skip_all(topic, "hold"))
    if part == 1 and cell.compacted == "yes":
        run(admin.compact_topic(topic))
        wait_for(lambda: run(admin.compaction_status(topic))["status"] != "RUNNING", "the end of a compaction")
        assert run(admin.compaction_status(topic))["status"] == "SUCCESS"
    if part < PARTS - 1:
        run(admin.unload_topic(topic))
    elif cell.trimmed == "yes":
        run(admin.trim_topic(topic))


def write_by_python_client(client: pulsar.Client, cell: Cell, topic: str, part: int) -> None:
    """Publish the messages of a part with the stock Python client."""
    producer = client.create_producer(
        topic,
        producer_name=f"writer-{part}",
        schema=SCHEMAS[cell.schema],
        compression_type=CODECS[cell.codec],
        block_if_queue_full=True,
        **BATCHING[cell.batching],
    )
    failures: list[object] = []

    def done(result: pulsar.Result, _: object) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)

    for number in range(part * MESSAGES, (part + 1) * MESSAGES):
        producer.send_async(value_of(cell, number), done, **fields_of(cell, number))
        if cell.batching == "of-one":
            producer.flush()
    producer.flush()
    producer.close()
    assert not failures


def value_of(cell: Cell, number: int) -> Any:
    """Return the value of a message; every eleventh is null, and every ninth is empty."""
    is_empty = number % 9 == 8
    if cell.codec == "zlib":
        is_empty = False  # the Python client throws away empty messages that it has compressed by ZLIB
    elif number % 11 == 10:
        return None
    if cell.schema in ("json", "avro"):
        return Reading(number=number, text="" if is_empty else f"reading {number} \N{SNOWMAN}")
    if cell.schema == "string":
        return "" if is_empty else f"text {number} \N{SNOWMAN}" * (1 + number % 5)
    if cell.batching == "chunks" and number % 5 == 3:
        return Random(number).randbytes(LONG_BYTES)
    return b"" if is_empty else b"\x00\xff value %d" % number * (1 + number % 5)


def fields_of(cell: Cell, number: int) -> dict[str, Any]:
    """Return what a message has beside its value."""
    found: dict[str, Any] = {}
    if cell.keys in ("text", "ordering") or (cell.keys == "some" and number % 3):
        found["partition_key"] = f"key \N{SNOWMAN} {number % 7}"
    if cell.keys == "ordering" and number % 2:
        found["ordering_key"] = f"order {number % 4}"
    if number % 4 == 1:
        found["properties"] = {"number": str(number), "empty": ""}
    if number % 5 == 2:
        found["event_timestamp"] = 1_600_000_000_000 + number
    return found
