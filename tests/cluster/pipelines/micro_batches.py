"""A driver that copies a topic in micro-batches, as a stream does, each by one task in a process of its own.

``python -m ... <directory> <origin> <copy>``. Each micro-batch waits at one step (``awaited_steps``).
"""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pyarrow as pa

from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.patience import Patience
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.planning.ranges import LedgerRange, Position, range_from_json
from heliograph.pipelines.reading.range_reader import read_table
from heliograph.pipelines.streaming.checkpoint import Batch, StreamCheckpoint, batches
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.table_writer import TableWriter
from tests.cluster.support.awaited_steps import ENTRIES, reach

ATTEMPTS_MAX = 8  # of a task
ACCESS = ClusterAccess()


class Checkpoint(StreamCheckpoint):
    """Waits after a commit."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "checkpoint")
        self._home = directory

    def commit(self, batch: Batch) -> None:
        super().commit(batch)
        reach(self._home, batch.batch_id, "committed")


def main(directory: Path, origin: str, copy: str) -> None:
    """Copy everything, and make the file ``ended``."""
    patience = Patience()

    def plan(start: Mapping[int, Position]) -> list[LedgerRange]:
        return patience.call("planning", lambda: plan_topic(origin, start=start, access=ACCESS))

    def arguments(batch: Batch) -> tuple[TableWriter, list[str], Path, int]:
        ranges = refresh_addresses(batch.ranges, access=ACCESS)
        columns, identity = WrittenColumns("value", {"key": "__key"}), WriteIdentity("copy", batch.batch_id)
        writer = TableWriter.create(copy, WriteOptions(columns, ACCESS, write_identity=identity))
        return writer, [piece.to_json() for piece in ranges], directory, batch.batch_id

    for batch in batches(Checkpoint(directory), plan, entries_max=ENTRIES, until_caught_up=True):
        reach(directory, batch.batch_id, "planned")
        for _ in range(ATTEMPTS_MAX):
            given = patience.call("planning again", partial(arguments, batch))
            running = multiprocessing.get_context("spawn").Process(target=task, args=given, daemon=True)
            running.start()
            running.join()
            if running.exitcode == 0:
                break
        else:
            raise SystemExit(f"micro-batch {batch.batch_id} failed {ATTEMPTS_MAX} times")
        reach(directory, batch.batch_id, "written")
    (directory / "ended").touch()


def task(writer: TableWriter, ranges: list[str], directory: Path, batch_id: int) -> None:
    """Copy the rows of one micro-batch."""
    rows = read_table([range_from_json(text) for text in ranges], ("value", "__key"), "fail", None)
    writer.write(gate(rows, directory, batch_id))


def gate(batches: Iterable[pa.RecordBatch], directory: Path, batch_id: int) -> Iterator[pa.RecordBatch]:
    """Wait before the first rows are written, and after the first half was sent."""
    for batch in batches:
        reach(directory, batch_id, "reading")
        middle = batch.num_rows // 2
        yield batch.slice(0, middle)
        reach(directory, batch_id, "writing")
        yield batch.slice(middle)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
