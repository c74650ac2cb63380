"""Topics as Spark DataFrames through RayDP, on a real cluster."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from datetime import time as datetime_time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import heliograph
from heliograph.base.errors import BadRequestError, IncompatibleSchemaError, TopicNotFoundError
from heliograph.client.admin.admin import AdminSync
from heliograph.client.schemas.records import AvroSchema
from heliograph.pipelines.reading.columns import ALL_COLUMNS
from heliograph.pipelines.spark.dataframe import topic_count, topic_dataframe, write_dataframe
from heliograph.pipelines.streaming.stream import stream
from heliograph.protocol.message_id import MessageId
from tests.waits import block_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # warnings of Spark and Ray themselves
]

ROWS = 2_000
KEYS = 20


@pytest.fixture(scope="module")
def topic(spark: SparkSession) -> str:
    AdminSync().create_topic("sold", 2)
    publish("sold", range(ROWS))
    return "sold"


def publish(topic: str, rows: range) -> None:
    with heliograph.connect() as client, client.producer(topic, batch_messages=100) as producer:
        values = [json.dumps({"row": row, "price": row / 4, "shop": f"s{row % 3}"}) for row in rows]
        producer.send_many(values, keys=[f"k{row % KEYS}" for row in rows])


def test_every_message_is_a_row_with_pulsars_columns(spark: SparkSession, topic: str) -> None:
    frame = topic_dataframe(spark, topic)
    assert tuple(frame.columns) == ALL_COLUMNS
    types = [field.dataType.simpleString() for field in frame.schema.fields]
    assert types == ["binary", "binary", "string", "binary", "timestamp", "timestamp", "map<string,string>"]
    rows = frame.collect()
    assert sorted(json.loads(bytes(row.value))["row"] for row in rows) == list(range(ROWS))
    row = rows[0]
    number = json.loads(bytes(row.value))["row"]
    message_id = MessageId.from_bytes(bytes(row["__messageId"]))
    assert bytes(row["__key"]) == b"k%d" % (number % KEYS)
    assert row["__topic"].endswith(f"sold-partition-{message_id.partition}")
    assert row["__publishTime"] is not None
    assert row["__eventTime"] is None
    assert row["__messageProperties"] == {}


def test_json_becomes_columns_and_spark_agrees_with_python(spark: SparkSession, topic: str) -> None:
    from pyspark.sql import functions as f

    frame = topic_dataframe(spark, topic, schema="row long, price double, shop string", columns=("value", "__key"))
    assert frame.columns == ["row", "price", "shop", "__key"]
    counted = frame.groupBy("shop").agg(f.count("*").alias("count"), f.sum("price").alias("sum"))
    totals = {row["shop"]: (row["count"], row["sum"]) for row in counted.collect()}
    assert totals == {
        f"s{shop}": (len(range(shop, ROWS, 3)), sum(row / 4 for row in range(shop, ROWS, 3))) for shop in range(3)
    }


def test_the_registry_gives_the_columns_of_a_frame(spark: SparkSession, topic: str) -> None:
    admin = AdminSync()
    admin.create_topic("typed")
    fields = [{"name": "row", "type": "long"}, {"name": "price", "type": "double"}]
    definition = {"type": "record", "name": "Sale", "fields": fields}
    admin.schemas.put("typed", {"type": "JSON", "schema": json.dumps(definition)})
    publish("typed", range(10))
    with heliograph.connect() as client, client.producer("typed") as producer:
        producer.send(b"no json")
    frame = topic_dataframe(spark, "typed", schema="registry", columns=("value", "__key"), on_unreadable="null")
    assert frame.columns == ["row", "price", "__key", "__error", "__badValue"]
    assert frame.where("row >= 0").selectExpr("sum(price)").collect()[0][0] == sum(row / 4 for row in range(10))
    (bad,) = frame.where("__error is not null").collect()
    assert bytes(bad["__badValue"]) == b"no json"


def test_the_times_of_avro_are_columns_of_a_frame(spark: SparkSession, topic: str) -> None:
    """Spark takes timestamps in microseconds only, and has no type for a time of day."""

    def told(base: str, kind: str) -> dict[str, str]:
        return {"type": base, "logicalType": kind}

    kinds = {
        "tms": told("int", "time-millis"),
        "tus": told("long", "time-micros"),
        "sms": told("long", "timestamp-millis"),
        "sus": told("long", "timestamp-micros"),
        "lms": told("long", "local-timestamp-millis"),
        "lus": told("long", "local-timestamp-micros"),
    }
    fields: list[dict[str, object]] = [{"name": name, "type": ["null", kind]} for name, kind in kinds.items()]
    fields.append({"name": "days", "type": {"type": "array", "items": kinds["sms"]}})
    fields.append({"name": "hours", "type": {"type": "map", "values": kinds["tms"]}})
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "at", "type": kinds["lms"]}]}
    fields.append({"name": "inner", "type": inner})
    moment, hour = datetime(2026, 1, 31, 12, 30, 15, 123_000), datetime_time(12, 30, 15, 123_000)
    with_zone = moment.replace(tzinfo=UTC)
    full = dict(zip(kinds, (hour, hour, with_zone, with_zone, moment, moment), strict=True))
    others = {"days": [with_zone], "hours": {"h": hour}, "inner": {"at": moment}}
    AdminSync().create_topic("avro-times")
    schema = AvroSchema({"type": "record", "name": "Times", "fields": fields})
    with heliograph.connect() as client, client.producer("avro-times", schema=schema) as producer:
        producer.send({**full, **others})
        producer.send({**dict.fromkeys(kinds), **others})
    frame = topic_dataframe(spark, "avro-times", schema="registry", columns=("value",))
    assert frame.count() == 2
    types = dict(frame.dtypes)
    assert [types[name] for name in kinds] == ["int", "bigint", *["timestamp"] * 2, *["timestamp_ntz"] * 2]
    first, second = frame.collect()
    ms = ((12 * 60 + 30) * 60 + 15) * 1000 + 123
    assert (first["tms"], first["tus"], first["lms"], first["lus"]) == (ms, ms * 1000, moment, moment)
    assert frame.selectExpr("unix_millis(sms)", "unix_micros(sus)").collect()[0] == (
        round(with_zone.timestamp() * 1000),
        round(with_zone.timestamp() * 1000) * 1000,
    )
    assert (first["hours"], first["inner"]["at"]) == ({"h": ms}, moment)
    assert frame.selectExpr("unix_millis(days[0])").collect()[0][0] == round(with_zone.timestamp() * 1000)
    assert [second[name] for name in kinds] == [None] * 6


def test_a_frame_is_a_moment_of_the_topic(spark: SparkSession, topic: str) -> None:
    AdminSync().create_topic("moment")
    publish("moment", range(10))
    frame = topic_dataframe(spark, "moment", columns=("__messageId",))
    publish("moment", range(10, 15))
    first, second = frame.collect(), frame.collect()
    assert len(first) == 10
    assert sorted(first) == sorted(second)  # a second computation gives the same rows
    assert topic_dataframe(spark, "moment").count() == 15


def test_the_latest_rows_are_the_state_of_a_topic(spark: SparkSession) -> None:
    AdminSync().create_topic("state", 2)
    publish("state", range(100))
    with heliograph.connect() as client, client.producer("state") as producer:
        producer.send(None, key="k0")
    frame = topic_dataframe(spark, "state", schema="row long", columns=("value", "__key"), latest=True)
    found = {bytes(row["__key"]): row["row"] for row in frame.collect()}
    assert found == {b"k%d" % (row % KEYS): row for row in range(100) if row % KEYS}
    assert topic_count(spark, "state", latest=True) == KEYS - 1


def test_a_frame_goes_into_a_topic_and_back(spark: SparkSession, topic: str) -> None:
    AdminSync().create_topic("written", 2)
    source = spark.range(500).selectExpr("id", "concat('n', id % 5) as name")
    AdminSync().namespaces.set_topic_policies("written", {"deduplication": True})
    block_until(lambda: AdminSync().topic_stats("written-partition-0")["deduplicationStatus"] == "Enabled")
    for _ in range(2):  # the second time finds all rows stored
        assert write_dataframe(source, "written", value=None, key="name", query="copy", batch_id=5) == 500
    frame = topic_dataframe(spark, "written", schema="id long, name string")
    rows = frame.collect()
    assert sorted(row.id for row in rows) == list(range(500))
    assert all(bytes(row["__key"]).decode() == row.name == f"n{row.id % 5}" for row in rows)
    with pytest.raises(BadRequestError, match="nonsense"):
        write_dataframe(source, "written", value="nonsense")


def test_rows_name_their_topics_and_have_a_schema(spark: SparkSession, topic: str) -> None:
    for name in ("of-0", "of-1"):
        AdminSync().create_topic(name)
    frame = spark.range(100).selectExpr("id", "timestamp_millis(id) at", "concat('of-', id % 2) __where")
    written = write_dataframe(
        frame, ["of-0", "of-1"], value=None, event_time="at", topic_column="__where", schema="avro"
    )
    assert written == 100
    found = topic_dataframe(spark, "of-1", schema="registry", columns=("value", "__eventTime")).collect()
    assert sorted(row.id for row in found) == list(range(1, 100, 2))
    assert all(row["__eventTime"] == row["at"] for row in found)
    with pytest.raises(IncompatibleSchemaError):
        write_dataframe(spark.sql("select 'text' id"), "of-1", value=None, schema="avro")
    with pytest.raises(Exception, match="column 'at', row 0 of its task: -1 ms"):
        write_dataframe(spark.sql("select 'x' value, -1L at"), "of-1", event_time="at")


def test_wrong_names_are_refused(spark: SparkSession) -> None:
    with pytest.raises(TopicNotFoundError):
        topic_dataframe(spark, "nowhere")
    with pytest.raises(BadRequestError):
        topic_dataframe(spark, "nowhere", columns=("nonsense",))


def test_an_empty_topic_is_an_empty_frame(spark: SparkSession) -> None:
    AdminSync().create_topic("nothing")
    assert topic_dataframe(spark, "nothing", schema="a int").collect() == []


def test_a_stream_that_crashed_handles_the_same_batch_again(spark: SparkSession, topic: str, tmp_path: Path) -> None:
    AdminSync().create_topic("ticks", 2)
    publish("ticks", range(1000))
    seen: dict[int, list[int]] = {}

    def handle(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(row.row for row in frame.collect())
        assert seen.setdefault(batch_id, rows) == rows, "an id stands for the same rows for ever"
        if batch_id == 1 and not crashed:
            crashed.append(True)
            raise ConnectionError("the sink went away")

    def run() -> int:
        return stream(
            spark,
            "ticks",
            handle,
            checkpoint=tmp_path,
            schema="row long",
            columns=("value",),
            entries_per_batch=6,
            until_caught_up=True,
        )

    crashed: list[bool] = []
    with pytest.raises(ConnectionError):
        run()
    publish("ticks", range(1000, 1100))
    run()
    assert sorted(row for rows in seen.values() for row in rows) == list(range(1100))
    assert sorted(seen) == list(range(len(seen)))
    assert run() == 0
    (subscription,) = AdminSync().subscriptions("ticks")
    backlog = AdminSync().topic_stats("ticks")["subscriptions"][subscription]["msgBacklog"]
    assert backlog == 0  # everything is committed, so retention waits for nothing


def test_a_stream_begins_where_it_is_told_in_batches_of_some_bytes(spark: SparkSession, tmp_path: Path) -> None:
    AdminSync().create_topic("starts", 2)
    publish("starts", range(300))
    time.sleep(0.005)  # so that no row before has the same millisecond
    now_ms = int(time.time() * 1000)

    def rows(name: str, **keywords: Any) -> list[list[int]]:
        batches: list[list[int]] = []
        handled = stream(
            spark,
            "starts",
            lambda frame, _: batches.append([row.row for row in frame.collect()]),
            checkpoint=tmp_path / name,
            schema="row long",
            until_caught_up=True,
            **keywords,
        )
        assert handled == len(batches)
        return batches

    def flat(batches: list[list[int]]) -> list[int]:
        return sorted(row for batch in batches for row in batch)

    assert rows("latest", start="latest") == []
    for first in range(300, 600, 100):
        publish("starts", range(first, first + 100))
    (whole,) = rows("latest")
    assert sorted(whole) == list(range(300, 600))
    small = rows("time", start=now_ms, bytes_per_batch=1)  # one entry in each batch
    assert flat(small) == list(range(300, 600))
    assert len(small) >= 6
    with pytest.raises(BadRequestError, match="stream with start"):
        rows("time", start="earliest")
    assert flat(rows("all", start="earliest")) == list(range(600))
