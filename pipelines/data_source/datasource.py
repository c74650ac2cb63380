"""``format("heliograph")``: what Spark asks of a data source."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import DataSource  # type: ignore[import-not-found, unused-ignore]
from pyspark.sql.types import StructType

from heliograph.base.errors import UnsupportedError
from heliograph.pipelines.data_source.options import SourceOptions, parse_options
from heliograph.pipelines.data_source.planner import SourcePlanner
from heliograph.pipelines.data_source.reading import BatchReader, FilteringReader, StreamReader, takes_filters
from heliograph.pipelines.data_source.writing import BatchWriter, StreamWriter
from heliograph.pipelines.reading.decoding import ValueDecoder
from heliograph.pipelines.spark.dataframe import columns_of_spark, shape_of


class HeliographSource(DataSource):  # type: ignore[misc, unused-ignore]
    """Topics as a source and a sink of Spark. Its options are those of ``docs/tables.md``."""

    @classmethod
    def name(cls) -> str:
        return "heliograph"

    def schema(self) -> StructType | str:
        """Return the columns of what is read."""
        options = self._parsed()
        schemas = SourcePlanner(options).schemas()
        if schemas is None:
            return columns_of_spark(options.columns)
        return shape_of(ValueDecoder(schemas, options.columns, options.on_unreadable))

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader of a batch query."""
        options = self._parsed()
        reader = FilteringReader if takes_filters() else BatchReader
        return reader(options, SourcePlanner(options).schemas())

    def streamReader(self, schema: StructType) -> StreamReader:
        """Return the reader of a stream."""
        options = self._parsed()
        for name in ("compacted", "latest"):
            if getattr(options, name):
                raise UnsupportedError(f"a stream reads all messages: {name} is for batch queries", field=name)
        return StreamReader(options, SourcePlanner(options).schemas())

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer of a DataFrame."""
        _refuse_overwrite(overwrite)
        return BatchWriter(self._parsed(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """Return the writer of a stream. Its option ``checkpointLocation`` is Spark's."""
        _refuse_overwrite(overwrite)
        return StreamWriter(self._parsed(), schema)

    def _parsed(self) -> SourceOptions:
        given: dict[str, Any] = dict(self.options)
        return parse_options({name: text for name, text in given.items() if name.lower() not in _OF_SPARK})


_OF_SPARK = ("checkpointlocation",)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise UnsupportedError("a topic is not overwritten: use mode('append')", field="mode", limit="append")
