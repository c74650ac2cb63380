"""The same table computed twice: from the topic by Spark, and from the file by pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from examples.flights.flights import SPARK_SCHEMA, Flights
from heliograph.spark import topic_dataframe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ("carrier", "flights", "mean_departure_delay", "share_cancelled")


def by_spark(spark: SparkSession, topic: str, namespace: str) -> pd.DataFrame:
    """Return flights, mean departure delay in minutes, and share cancelled, per carrier, computed by Spark."""
    from pyspark.sql import functions as f

    flights = topic_dataframe(spark, topic, schema=SPARK_SCHEMA, columns=("value",), namespace=namespace)
    table = flights.groupBy("carrier").agg(
        f.count("*").alias("flights"),
        f.avg("dep_delay").alias("mean_departure_delay"),
        f.avg(f.col("dep_time").isNull().cast("double")).alias("share_cancelled"),
    )
    rows = [tuple(row) for row in table.orderBy("carrier").collect()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def by_pandas(flights: Flights) -> pd.DataFrame:
    """Return the same table, computed from the file."""
    groups = flights.frame.assign(cancelled=flights.frame["dep_time"].isna()).groupby("carrier")
    table = groups.agg(
        flights=("row", "size"), mean_departure_delay=("dep_delay", "mean"), share_cancelled=("cancelled", "mean")
    )
    return table.reset_index()[list(COLUMNS)]
