"""Operators of Spark that keep state over micro-batches, on streams of topics: watermarks, joins and duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heliograph.client.admin.admin import AdminSync
from heliograph.errors import ConnectionLostError
from heliograph.pipelines.data_source.options import parse_options
from heliograph.pipelines.data_source.reading import StreamReader

START_MS = 1_700_000_000_000
SECONDS = 60


@pytest.fixture(scope="module")
def topics(client: Any) -> tuple[str, str]:
    """Orders, of which each second has one that comes twice, and payments of every other one."""
    for name in ("orders", "payments"):
        AdminSync().create_topic(name)
    times = [START_MS + 1000 * second for second in range(SECONDS)]
    with client.producer("orders", batch_messages=20) as producer:
        for twice in (False, True):
            values = [b"%d" % number for number in range(SECONDS)]
            producer.send_many(values, keys=["again" if twice else "first"] * SECONDS, event_times_ms=times)
    with client.producer("payments", batch_messages=10) as producer:
        values = [b"%d" % number for number in range(0, SECONDS, 2)]
        producer.send_many(values, event_times_ms=times[::2])
    for name in ("orders", "payments"):
        with client.producer(name) as producer:  # moves the watermark behind all of them
            producer.send(b"-1", event_time_ms=START_MS + 3_600_000)
    return "orders", "payments"


def stream_of(spark: Any, topic: str) -> Any:
    reader = spark.readStream.format("heliograph").option("topic", topic).option("maxEntriesPerTrigger", "2")
    frame = reader.load().selectExpr("cast(cast(value as string) as int) number", "__eventTime time", "__key")
    return frame.withWatermark("time", "10 seconds")


def rows_of(spark: Any, frame: Any, name: str, checkpoint: Path, mode: str = "append") -> list[Any]:
    writer = frame.writeStream.format("memory").queryName(name).outputMode(mode)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(300)
    assert query.exception() is None
    return list(spark.table(name).collect())


def test_windows_are_closed_by_the_watermark(spark: Any, topics: tuple[str, str], tmp_path: Path) -> None:
    from pyspark.sql.functions import window

    firsts = stream_of(spark, topics[0]).where("cast(__key as string) = 'first' or number = -1")
    windows = firsts.groupBy(window("time", "20 seconds")).count()
    found = rows_of(spark, windows, "windows", tmp_path)
    assert sorted(row["count"] for row in found) == [20, 20, 20]


def test_duplicates_are_dropped_within_the_watermark(spark: Any, topics: tuple[str, str], tmp_path: Path) -> None:
    once = stream_of(spark, topics[0]).where("number >= 0").dropDuplicates(["number", "time"])
    found = rows_of(spark, once, "once", tmp_path)
    assert sorted(row["number"] for row in found) == list(range(SECONDS))


def test_two_streams_are_joined(spark: Any, topics: tuple[str, str], tmp_path: Path) -> None:
    orders = stream_of(spark, topics[0]).where("cast(__key as string) = 'first'").selectExpr("number", "time")
    payments = stream_of(spark, topics[1]).selectExpr("number paid", "time paid_at")
    joined = orders.join(payments, (orders.number == payments.paid) & (orders.time == payments.paid_at))
    found = rows_of(spark, joined, "joined", tmp_path)
    assert sorted(row["number"] for row in found) == list(range(0, SECONDS, 2))


def test_a_stream_waits_for_a_cluster_that_does_not_answer(
    cluster: Any, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = StreamReader(parse_options({"topic": topics[0]}), None)
    latest = reader._planner.latest
    wanted = reader.reportLatestOffset()
    failures = iter([True, True, False])

    def shaky() -> Any:
        if next(failures):
            raise ConnectionLostError("the broker is restarted")
        return latest()

    monkeypatch.setattr(reader._planner, "latest", shaky)
    monkeypatch.setattr(reader._patience, "_sleep", lambda seconds: None)
    assert reader.reportLatestOffset() == wanted
    assert caplog.text.count("the broker is restarted") == 2
