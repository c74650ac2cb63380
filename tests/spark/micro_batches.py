"""The driver of a stream that copies a topic, which waits at one step of each micro-batch until a test lets it go on.

``python -m tests.spark.micro_batches <directory> <origin> <copy>``. The steps are those of ``awaited_steps``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.cluster.support.awaited_steps import ENTRIES, reach


def main(directory: Path, origin: str, copy: str) -> None:
    """Copy everything, and make the file ``ended``."""
    from pyspark.sql import SparkSession

    from heliograph.pipelines.spark import dataframe
    from heliograph.pipelines.spark.dataframe import write_dataframe
    from heliograph.pipelines.streaming.checkpoint import Batch, StreamCheckpoint
    from heliograph.pipelines.streaming.stream import stream

    commit, writer_of = StreamCheckpoint.commit, dataframe._writer
    here: dict[str, int] = {}

    def committed(self: StreamCheckpoint, batch: Batch) -> None:
        commit(self, batch)
        reach(directory, batch.batch_id, "committed")

    def gated(writer: Any) -> Any:
        batch_id, write = here["batch_id"], writer_of(writer)
        return lambda batches: write(gate(batches, directory, batch_id))

    StreamCheckpoint.commit = committed  # type: ignore[method-assign]
    dataframe._writer = gated

    def handle(frame: Any, batch_id: int) -> None:
        here["batch_id"] = batch_id
        reach(directory, batch_id, "planned")
        write_dataframe(frame, copy, key="__key", query="copy", batch_id=batch_id)
        reach(directory, batch_id, "written")

    builder = SparkSession.builder.master("local[2,8]")  # eight attempts of a task
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    checkpoint = directory / "checkpoint"
    stream(session, origin, handle, checkpoint=checkpoint, entries_per_batch=ENTRIES, until_caught_up=True)
    (directory / "ended").touch()
    session.stop()


def gate(batches: Iterable[pa.RecordBatch], directory: Path, batch_id: int) -> Iterator[pa.RecordBatch]:
    """Wait before the first rows of a task are written, and after some of them were sent."""
    for number, batch in enumerate(batches):
        if number == 0:
            reach(directory, batch_id, "reading")
        if number == 2:
            reach(directory, batch_id, "writing")
        yield batch


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
