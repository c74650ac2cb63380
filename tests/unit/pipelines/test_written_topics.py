"""Tables into topics of a real broker: what is written is read again, and schemas are registered and checked first."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import heliograph
from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    IncompatibleSchemaError,
    NotFoundError,
    UnsupportedError,
)
from heliograph.client.admin.admin import AdminSync
from heliograph.client.schemas.records import AvroSchema
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.conditions import where_of
from heliograph.pipelines.planning.plan import plan_topic, schema_versions
from heliograph.pipelines.planning.ranges import split
from heliograph.pipelines.reading.columns import EVERY_COLUMN
from heliograph.pipelines.reading.range_reader import Fetcher, count_ranges, read_table
from heliograph.pipelines.reading.registry import schemas_of
from heliograph.pipelines.writing import in_flight, row_groups
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.table_writer import TableWriter, Topics
from heliograph.protocol.topic_name import TopicName

ACCESS = ClusterAccess()
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[heliograph.LocalCluster]:
    home = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOGRAPH_HOME", str(home))  # where the gateway is noted
        patch.delenv("RAY_ADDRESS", raising=False)
        with heliograph.local(home) as running:
            yield running


def written(topic: Topics, table: pa.Table, value: str | None = "value", **others: Any) -> int:
    schema, identity = others.pop("schema", None), others.pop("identity", None)
    columns = WrittenColumns.named(value, **others)
    options = WriteOptions(columns, ACCESS, write_identity=identity, schema=schema)
    return TableWriter.create(topic, options, table.schema).write([table])


def rows_of(topic: str, *columns: str) -> list[dict[str, Any]]:
    ranges = plan_topic(topic, access=ACCESS)
    return [row for batch in read_table(ranges, columns or EVERY_COLUMN, "fail", None) for row in batch.to_pylist()]


def records_of(topic: str) -> list[dict[str, Any]]:
    schemas = schemas_of(topic, schema_versions(topic, ACCESS))
    ranges = plan_topic(topic, access=ACCESS)
    return [row for batch in read_table(ranges, ("value",), "fail", schemas) for row in batch.to_pylist()]


def deduplicating(*topics: str) -> None:
    admin = AdminSync()
    for topic in topics:
        admin.create_topic(topic)
        admin.namespaces.set_topic_policies(topic, {"deduplication": True})
        while admin.topic_stats(topic)["deduplicationStatus"] != "Enabled":
            time.sleep(0.01)  # ends by the time-out of the test at the latest


def test_every_field_of_a_message_is_written_and_read() -> None:
    table = pa.table(
        {
            "value": pa.array([b"v", None, b"w"]),
            "key": pa.array([b"\x00\xff", b"k", None]),
            "properties": pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string())),
            "at": pa.array([MOMENT, None, MOMENT], pa.timestamp("us", tz="UTC")),
            "order": pa.array([b"o", None, b"p"]),
            "later": pa.array([None, None, MOMENT], pa.timestamp("us", tz="UTC")),
        }
    )
    fields = {"key": "key", "properties": "properties", "event_time": "at", "ordering_key": "order"}
    assert written("fields", table, deliver_at="later", **fields) == 3
    first, tombstone, delayed = rows_of("fields")
    assert (first["value"], first["__key"], first["__orderingKey"]) == (b"v", b"\x00\xff", b"o")
    assert (first["__messageProperties"], first["__eventTime"]) == ([("a", "b")], MOMENT)
    assert (tombstone["value"], tombstone["__key"], tombstone["__eventTime"]) == (None, b"k", None)
    assert (delayed["value"], delayed["__key"], delayed["__deliverAt"]) == (b"w", None, MOMENT)
    assert written("fields", pa.table({"value": [b"x"], "after": [3600.5]}), deliver_after="after") == 1
    last = rows_of("fields")[-1]
    assert (last["__deliverAt"] - last["__publishTime"]).total_seconds() == pytest.approx(3600.5, abs=60)


def test_the_latest_rows_are_the_state_of_a_topic() -> None:
    """A topic of two partitions is compacted, and then written again: some keys change, and some are deleted."""
    admin = AdminSync()
    admin.create_topic("state", 2)
    rows = [(f"k{row % 100}", b"%d" % row) for row in range(1_000)]
    later = [(f"k{row}", None if row < 10 else b"new %d" % row) for row in range(70)]
    for written_rows in (rows, later):
        keys, values = zip(*written_rows, strict=True)
        assert written("state", pa.table({"value": pa.array(values), "key": keys}), key="key") == len(keys)
        if written_rows is rows:
            assert written("state", pa.table({"value": [b"without a key"]})) == 1
            admin.compact_topic("state")
            while admin.compaction_status("state")["status"] == "RUNNING":
                time.sleep(0.01)  # ends by the time-out of the test at the latest
    state = {key.encode(): value for key, value in dict(rows + later).items() if value is not None}
    ranges = plan_topic("state", latest=True, access=ACCESS)
    found = [row for batch in read_table(ranges, ("value", "__key")) for row in batch.to_pylist()]
    assert len(found) == count_ranges(ranges) == len(state) == 90
    assert {row["__key"]: row["value"] for row in found} == state
    assert len(split(ranges, 64)) == 2
    where = where_of([("__key", "in", [b"k0", b"k10"])])
    assert [row for batch in read_table(ranges, ("value",), where=where) for row in batch.to_pylist()] == [
        {"value": b"new 10"}
    ]
    with pytest.raises(BadRequestError, match="latest"):
        plan_topic("state", latest=True, start={0: (0, 0)}, access=ACCESS)


def test_rows_go_once_to_the_topics_that_they_name() -> None:
    deduplicating("left", "right")
    AdminSync().create_topic("plain")
    with pytest.raises(UnsupportedError, match="plain does not deduplicate"):
        written(["left", "plain"], pa.table({"value": ["1"], "where": ["left"]}), topic_column="where",
                identity=WriteIdentity("q"))  # fmt: skip
    rows = [("left", "right")[row % 3 == 0] for row in range(3_000)]
    table = pa.table({"value": [str(row) for row in range(3_000)], "where": rows})
    for _ in range(2):
        assert written(["left", "right"], table, topic_column="where", identity=WriteIdentity("q")) == 3_000
    found = {topic: [int(row["value"]) for row in rows_of(topic, "value")] for topic in ("left", "right")}
    assert found == {
        "left": [row for row in range(3_000) if row % 3],
        "right": list(range(0, 3_000, 3)),
    }


def test_rows_above_the_bound_in_flight_are_written_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight.InFlight.__init__, "__defaults__", (50_000,))
    monkeypatch.setattr(row_groups, "GROUP_BYTES_MAX", 10_000)
    table = pa.table({"value": [b"%06d" % row * 20 for row in range(5_000)]})
    assert written("bounded", table) == 5_000
    assert [row["value"] for row in rows_of("bounded", "value")] == table.column("value").to_pylist()


def test_a_row_that_the_broker_does_not_take_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.client.aio.producer.producer.LARGE_MESSAGE_BYTES_MAX", 5 << 20)
    table = pa.table({"value": [b"x", bytes(6 << 20), b"y"]})
    with pytest.raises(BadRequestError, match="row 1 of its task"):
        written("large", table)


def test_rows_after_one_that_the_broker_refuses_are_not_stored_without_it() -> None:
    """Otherwise the next run of the task would take the row that was refused for stored."""
    deduplicating("limited")
    admin, late = AdminSync(), MOMENT.replace(year=2100)
    rows = [b"%d" % row for row in range(5_000)]
    later = pa.array([late if row == b"2500" else None for row in rows], pa.timestamp("ms", "UTC"))
    table = pa.table({"value": rows, "later": later})
    admin.namespaces.set_topic_policies("limited", {"delayed_ms_max": 1_000})
    with heliograph.connect() as client, client.producer("limited") as producer, contextlib.suppress(HeliographError):
        while True:  # until the policy is applied
            producer.send(b"probe", deliver_at=int(late.timestamp() * 1000))
    for _ in range(2):
        with pytest.raises(HeliographError, match="delay"):
            written("limited", table, deliver_at="later", identity=WriteIdentity("q"))
    admin.namespaces.set_topic_policies("limited", {"delayed_ms_max": 0})
    while True:
        try:
            assert written("limited", table, deliver_at="later", identity=WriteIdentity("q")) == 5_000
            break
        except HeliographError:
            time.sleep(0.01)  # the policy is not applied yet; ends by the time-out of the test at the latest
    assert [row["value"] for row in rows_of("limited", "value") if row["value"] != b"probe"] == rows


def test_a_schema_evolves_with_the_columns_and_what_is_incompatible_is_refused_first() -> None:
    first = pa.table({"id": [1, 2], "name": ["a", None]})
    assert written("typed", first, None, schema="avro") == 2
    second = pa.table({"id": [3], "name": ["c"], "at": pa.array([MOMENT], pa.timestamp("us", tz="UTC"))})
    assert written("typed", second, None, schema="avro") == 1
    wanted = [
        {"id": 1, "name": "a", "at": None},
        {"id": 2, "name": None, "at": None},
        {"id": 3, "name": "c", "at": MOMENT},
    ]
    assert records_of("typed") == wanted
    assert len(schema_versions("typed", ACCESS)) == 2
    with pytest.raises(IncompatibleSchemaError):
        written("typed", pa.table({"id": ["text"]}), None, schema="avro")
    with pytest.raises(IncompatibleSchemaError):
        written("typed", first, None, schema="json")
    assert written("typed", pa.table({"id": pa.array([4], pa.int16())}), None, schema="registry") == 1
    assert records_of("typed") == [*wanted, {"id": 4, "name": None, "at": None}]
    with pytest.raises(BadRequestError, match="'price'"):
        written("typed", pa.table({"price": [1]}), None, schema="registry")
    assert len(records_of("typed")) == 4


def test_a_count_transfers_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    with heliograph.connect() as client:
        with client.producer("counted", batch_messages=100) as producer:
            producer.send_many([b"x" * 900] * 5_000)
        with client.producer("counted", batch_messages=1) as producer:
            producer.send(b"", properties={"long": "y" * 2_000})  # its metadata is longer than a head
            producer.send(b"", properties={"short": "y"})
    received: list[int] = []
    taken = Fetcher.next_chunk

    async def noted(self: Fetcher) -> Any:
        chunk = await taken(self)
        received.extend(len(entry.payload) for entry in (chunk[1] if chunk else ()))
        return chunk

    monkeypatch.setattr(Fetcher, "next_chunk", noted)
    ranges = plan_topic("counted", access=ACCESS)
    assert count_ranges(ranges) == 5_002
    assert sum(size > 2_000 for size in received) <= 2, "the first entry is whole, and the one with long metadata"
    assert sum(received) < 5_000 * 900 // 5


def test_a_schema_in_json_or_of_the_caller() -> None:
    assert written("json", pa.table({"id": [1], "at": pa.array([MOMENT])}), None, schema="json") == 1
    assert records_of("json") == [{"id": 1, "at": MOMENT}]
    own = {"type": "record", "name": "Sale", "fields": [{"name": "id", "type": "long"}]}
    value = pa.array([{"id": 5}, None], pa.struct([("id", pa.int32())]))
    assert written("own", pa.table({"value": value, "k": ["a", "b"]}), key="k", schema=AvroSchema(own)) == 2
    (version,) = schema_versions("own", ACCESS)
    assert (version["name"], version["type"]) == ("Sale", "AVRO")
    assert [row["value"] for row in rows_of("own", "value")] == [b"\x0a", None]
    with pytest.raises(NotFoundError):
        written("without", pa.table({"id": [1]}), None, schema="registry")
    with pytest.raises(BadRequestError, match="struct"):
        written("without", pa.table({"value": [b"x"]}), schema="avro")


def test_the_address_of_a_broker_is_found_through_the_noted_gateway(cluster: heliograph.LocalCluster) -> None:
    assert ACCESS.brokers([])[0] == cluster.service_url
    by_url = ClusterAccess(gateway=cluster.http_url)
    assert by_url.brokers([TopicName.parse("somewhere")]) == (cluster.service_url, {})
