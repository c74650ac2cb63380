"""Topics as PySpark DataFrames and micro-batches. Needs the extra ``[spark]``."""

from heliograph.base.version import extra_required

with extra_required():
    from heliograph.pipelines.data_source.registration import register
    from heliograph.pipelines.spark.dataframe import topic_count, topic_dataframe, write_dataframe
    from heliograph.pipelines.spark.session import spark_session
    from heliograph.pipelines.streaming.stream import stream

__all__ = ["register", "spark_session", "stream", "topic_count", "topic_dataframe", "write_dataframe"]
