"""Batches and streams of Spark 4, in both directions."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import type_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from pyspark.errors import AnalysisException, PySparkException

from heliograph.client.admin.admin import AdminSync
from tests.unit.pipelines.reading.registered import TYPE

ROWS = 3_000


@pytest.fixture(scope="module")
def topic(client: Any) -> str:
    with client.producer("numbers") as producer:
        producer.send_many(
            [b"%d" % number for number in range(ROWS)],
            keys=[f"k{number % 7}" for number in range(ROWS)],
            properties=[{"odd": str(number % 2)} for number in range(ROWS)],
            event_times_ms=[1_700_000_000_000 + number for number in range(ROWS)],
        )
    return "numbers"


def source(spark: Any, topic: str, **options: str) -> Any:
    reader = spark.read.format("heliograph").option("topic", topic)
    for name, text in options.items():
        reader = reader.option(name, text)
    return reader.load()


def numbers(frame: Any) -> list[int]:
    return [int(bytes(row[0])) for row in frame.select("value").collect()]


def test_all_rows_with_all_columns(spark: Any, topic: str) -> None:
    rows = source(spark, topic).collect()
    assert [int(bytes(row["value"])) for row in rows] == list(range(ROWS))
    last = rows[-1]
    assert bytes(last["__key"]) == f"k{(ROWS - 1) % 7}".encode()
    assert last["__messageProperties"] == {"odd": "1"}
    assert last["__topic"] == "persistent://public/default/numbers"
    moment = datetime.fromtimestamp((1_700_000_000_000 + ROWS - 1) / 1000, UTC)
    assert last["__eventTime"].astimezone(UTC) == moment


def test_sql_and_chosen_columns(spark: Any, topic: str) -> None:
    source(spark, topic, columns="__key, value").createOrReplaceTempView("numbers")
    counted = spark.sql("select cast(__key as string) k, count(*) n from numbers group by k order by k").collect()
    assert [row["k"] for row in counted] == [f"k{number}" for number in range(7)]
    assert sum(row["n"] for row in counted) == ROWS


def test_bounds_by_time(spark: Any, client: Any) -> None:
    with client.producer("timed") as producer:
        producer.send(b"1")
        time.sleep(0.01)
        between = time.time_ns() // 1_000_000
        time.sleep(0.01)
        producer.send(b"2")
    assert numbers(source(spark, "timed", startingTime=str(between))) == [2]
    assert numbers(source(spark, "timed", endingTime=str(between))) == [1]
    assert numbers(source(spark, "timed", startingTime=str(between + 3_600_000))) == []


def test_what_was_read_can_be_written(spark: Any, topic: str) -> None:
    source(spark, topic).write.format("heliograph").option("topic", "copy").mode("append").save()
    wanted, found = (source(spark, name).drop("__topic", "__messageId", "__publishTime") for name in (topic, "copy"))
    assert sorted(map(str, found.collect())) == sorted(map(str, wanted.collect()))
    with pytest.raises((AnalysisException, PySparkException), match="append"):
        source(spark, topic).write.format("heliograph").option("topic", "copy").mode("overwrite").save()


def written(frame: Any, **options: str) -> None:
    writer = frame.write.format("heliograph").mode("append")
    for name, text in options.items():
        writer = writer.option(name, text)
    writer.save()


def test_every_field_can_be_written_and_each_row_names_its_topic(spark: Any, client: Any) -> None:
    for name in ("fields-0", "fields-1"):
        AdminSync().create_topic(name)
    frame = spark.range(10).selectExpr(
        "if(id = 4, null, cast(id as string)) value",
        "cast(id as string) k",
        "map('a', cast(id as string)) p",
        "timestamp_millis(1700000000000 + id) at",
        "cast('o' as binary) o",
        "case when id = 6 then timestamp_millis(1800000000000) end later",
        "concat('fields-', id % 2) where",
    )
    fields = {"key": "k", "properties": "p", "eventTime": "at", "orderingKey": "o", "deliverAt": "later"}
    written(frame, topicColumn="where", topics="fields-0,fields-1", **fields)
    names = "value, __key, __messageProperties, __eventTime, __orderingKey, __deliverAt"
    rows = {bytes(row["__key"]): row for row in source(spark, "fields-0", columns=names).collect()}
    assert sorted(rows) == [b"0", b"2", b"4", b"6", b"8"]
    assert (rows[b"4"]["value"], bytes(rows[b"6"]["value"])) == (None, b"6")
    assert rows[b"2"]["__messageProperties"] == {"a": "2"}
    assert bytes(rows[b"2"]["__orderingKey"]) == b"o"
    assert rows[b"8"]["__eventTime"].astimezone(UTC) == datetime.fromtimestamp(1_700_000_000.008, UTC)
    assert [key for key, row in rows.items() if row["__deliverAt"] is not None] == [b"6"]
    bad = spark.range(1).selectExpr("'x' value", "cast(-7 as long) at")
    with pytest.raises(PySparkException, match="column 'at', row 0 of its task"):
        written(bad, topic="fields-0", eventTime="at")


def test_a_schema_is_registered_and_checked_before_rows_are_written(spark: Any, client: Any) -> None:
    written(spark.sql("select 1L id, 'a' name"), topic="typed", value="*", schema="avro")
    written(spark.sql("select 2L id, 'b' name, timestamp_millis(5) at"), topic="typed", value="*", schema="avro")
    found = source(spark, "typed", schema="registry").orderBy("id").collect()
    assert [(row["id"], row["name"], row["at"] is None) for row in found] == [(1, "a", True), (2, "b", False)]
    with pytest.raises(PySparkException, match=r"[Ii]ncompatible"):
        written(spark.sql("select 'text' id"), topic="typed", value="*", schema="avro")
    assert source(spark, "typed").count() == 2


def test_messages_of_protobuf_are_written_and_read_by_their_definition(spark: Any, client: Any, tmp_path: Path) -> None:
    schema = {"type": "PROTOBUF", "schema": TYPE.data.decode(), "properties": dict(TYPE.properties)}
    AdminSync().create_topic("messages")
    AdminSync().schemas.put("messages", schema)
    files = FileDescriptorSet()
    for file in ("any", "source_context", "type"):
        type_pb2.DESCRIPTOR.pool.FindFileByName(f"google/protobuf/{file}.proto").CopyToProto(files.file.add())
    definition = tmp_path / "type.desc"
    definition.write_bytes(files.SerializeToString())
    given = {"schema": "registry", "protobufDescriptorFile": str(definition)}
    others = "array('a', 'b') oneofs, 'SYNTAX_PROTO3' syntax, struct('f' file_name) source_context"
    frame = spark.sql(f"select 'n' name, {others}")
    written(frame, topic="messages", value="*", **given)
    (row,) = source(spark, "messages", **given).collect()
    assert (row["name"], row["oneofs"], row["syntax"]) == ("n", ["a", "b"], "SYNTAX_PROTO3")
    assert row["source_context"]["file_name"] == "f"
    (plain,) = source(spark, "messages", schema="registry").collect()
    assert (plain["syntax"], bytes(plain["source_context"])) == (1, b"\x0a\x01f")
    with pytest.raises(PySparkException, match="protobuf_descriptor"):
        written(frame, topic="messages", value="*", schema="registry")


def test_options_that_are_wrong_are_told(spark: Any) -> None:
    with pytest.raises((AnalysisException, PySparkException), match="startingOffsets"):
        source(spark, "numbers", startingOffset="latest").count()
    with pytest.raises((AnalysisException, PySparkException), match="absent"):
        source(spark, "absent").count()


def copied(spark: Any, origin: str, copy: str, checkpoint: Path, **options: str) -> Any:
    """Run a stream until it has caught up."""
    reader = spark.readStream.format("heliograph").option("topic", origin)
    for name, text in options.items():
        reader = reader.option(name, text)
    writer = reader.load().writeStream.format("heliograph").option("topic", copy).option("query", "copying")
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert query.exception() is None
    return query


def test_a_stream_copies_each_row_once_and_acknowledges_it(
    spark: Any, client: Any, cluster: Any, tmp_path: Path
) -> None:
    """The last micro-batch runs twice, as it does when the driver was killed before it noted the commit."""
    admin = AdminSync()
    for name in ("origin", "twin"):
        admin.create_topic(name)
    admin.namespaces.set_topic_policies("twin", {"deduplication": True})
    while admin.topic_stats("twin")["deduplicationStatus"] != "Enabled":
        time.sleep(0.1)  # ends by the time-out of the test at the latest
    with client.producer("origin") as producer:
        for first in range(0, 900, 300):
            producer.send_many([b"%d" % number for number in range(first, first + 300)])
    query = copied(spark, "origin", "twin", tmp_path, maxEntriesPerTrigger="1", subscription="stream")
    assert len(query.recentProgress) >= 3
    assert sorted(numbers(source(spark, "twin"))) == list(range(900))
    assert admin.topic_stats("origin")["subscriptions"]["stream"]["msgBacklog"] <= 300, "the last commit may be later"
    newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    newest.unlink()
    (tmp_path / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    with client.producer("origin") as producer:
        producer.send_many([b"%d" % number for number in range(900, 1_000)])
    copied(spark, "origin", "twin", tmp_path, maxEntriesPerTrigger="1", subscription="stream")
    assert sorted(numbers(source(spark, "twin"))) == list(range(1_000))
