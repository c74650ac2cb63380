"""``format("heliograph")`` made known to a Spark session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.base.errors import UnsupportedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MAJOR_MIN = 4


def register(spark: SparkSession) -> None:
    """Make ``spark.read.format("heliograph")``, ``readStream``, ``write`` and ``writeStream`` known to a session.

    Its options are in ``docs/tables.md``.

    Raises:
        UnsupportedError: the session's Spark is older than 4, which has no Python data sources: use
            ``topic_dataframe``, ``stream`` and ``write_dataframe``.
    """
    if int(spark.version.split(".")[0]) < SPARK_MAJOR_MIN:
        raise UnsupportedError(
            f"Spark {spark.version} has no Python data sources: use topic_dataframe, stream and write_dataframe, or "
            "install the extra [spark4] in place of [spark]",
            field="spark",
        )
    from heliograph.pipelines.data_source.datasource import HeliographSource

    spark.dataSource.register(HeliographSource)  # type: ignore[attr-defined, unused-ignore]
