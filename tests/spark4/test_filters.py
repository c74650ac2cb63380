"""Filters that the data source takes over from Spark, and rows that are counted without their payloads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from heliograph.client.admin.admin import AdminSync
from heliograph.spark import topic_count

ROWS = 600
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture(scope="module")
def topic(client: Any) -> str:
    AdminSync().create_topic("filtered", 2)
    for part in range(2):
        with client.producer("filtered", batch_messages=50) as producer:
            numbers = range(part * ROWS // 2, (part + 1) * ROWS // 2)
            producer.send_many(
                [b"%d" % number for number in numbers],
                keys=[None if number % 5 == 0 else f"k{number % 7}" for number in numbers],
                event_times_ms=[1_700_000_000_000 + 1000 * number for number in numbers],
            )
        AdminSync().unload_topic("filtered")
    return "filtered"


@pytest.fixture(params=["true", "false"])
def pushed(spark: Any, request: pytest.FixtureRequest) -> Iterator[bool]:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, request.param)
    yield request.param == "true"
    spark.conf.set(PUSHDOWN, before)


def conditions(rows: list[Any]) -> dict[str, tuple[Any, Any]]:
    """Filters by name: as Spark has them, and in Python."""
    from pyspark.sql.functions import col, lit

    published = sorted(row["__publishTime"] for row in rows)
    middle = published[len(rows) // 2]
    third = min(row["__eventTime"] for row in rows) + timedelta(seconds=ROWS // 3)
    ids = [bytes(row["__messageId"]) for row in (rows[7], rows[400])]
    return {
        "key": (col("__key") == lit(b"k3"), lambda row: row["__key"] == b"k3"),
        "keys": (col("__key").isin(b"k1", b"k2"), lambda row: row["__key"] in (b"k1", b"k2")),
        "key range": (col("__key") >= lit(b"k5"), lambda row: row["__key"] is not None and row["__key"] >= b"k5"),
        "published": (col("__publishTime") < lit(middle), lambda row: row["__publishTime"] < middle),
        "event": (
            (col("__eventTime") > lit(third)) & (col("__key") == lit(b"k3")),
            lambda row: row["__eventTime"] > third and row["__key"] == b"k3",
        ),
        "id": (col("__messageId").isin(*ids), lambda row: row["__messageId"] in ids),
    }


NAMES = ("key", "keys", "key range", "published", "event", "id")


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_match(name: str, spark: Any, topic: str, pushed: bool) -> None:
    frame = spark.read.format("heliograph").option("topic", topic).load()
    rows = frame.collect()
    assert len(rows) == ROWS
    condition, holds = conditions(rows)[name]
    wanted = [str(row) for row in rows if holds(row)]
    assert 0 < len(wanted) < ROWS
    chosen = frame.where(condition)
    assert sorted(map(str, chosen.collect())) == sorted(wanted)
    plan = chosen._jdf.queryExecution().executedPlan().toString()
    assert (") Filter " not in plan) == pushed, plan


def test_what_is_no_condition_stays_with_spark(spark: Any, topic: str, pushed: bool) -> None:
    frame = spark.read.format("heliograph").option("topic", topic).load()
    assert frame.where("cast(value as string) = '77'").count() == 1
    assert frame.where("cast(cast(value as string) as int) < 10 and __key = X'6B33'").count() == 1
    assert frame.where("__messageId > X'00'").count() == ROWS
    assert frame.where("__key is null").count() == ROWS // 5


def test_a_filter_joins_the_bounds_of_the_options(spark: Any, topic: str, pushed: bool) -> None:
    reader = spark.read.format("heliograph").option("topic", topic).option("columns", "__key")
    assert reader.option("startingTime", "2020-01-01").load().where("__key = X'6B33'").count() > 0
    later = (datetime.now() + timedelta(days=2)).isoformat()
    assert reader.option("startingTime", later).load().where("__key = X'6B33'").count() == 0


def test_rows_are_counted(spark: Any, topic: str) -> None:
    assert topic_count(spark, topic, namespace="heliograph") == ROWS
    assert topic_count(spark, topic, where=[("__key", "==", "k3")]) == sum(
        number % 7 == 3 and number % 5 != 0 for number in range(ROWS)
    )
