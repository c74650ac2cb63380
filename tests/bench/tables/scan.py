"""A scan of one topic in a process of its own.

``python -m tests.bench.tables.scan <file of ranges> <column>...`` prints rows, bytes of values, seconds, seconds of
processor time and the most memory as JSON. Files that end in ``.parquet`` are scanned by pyarrow instead. In place of
columns, ``--count`` counts rows by the heads of entries, and ``--count-whole`` by whole ones; bytes are those received.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.actors.ledger.driver import LedgerEntry
from heliograph.pipelines.planning.ranges import LedgerRange, range_from_json
from heliograph.pipelines.reading.range_reader import Fetcher, count_ranges, read_ranges
from tests.bench.process import memory_bytes

PARQUET_ROWS = 16_384  # of a batch, as many as ours have
COUNT, COUNT_WHOLE = ("--count",), ("--count-whole",)
PSS_EACH_BATCHES = 100  # the memory is looked at


def main(path: str, *columns: str) -> None:
    """Scan everything once, and print what it took."""
    begun, cpu = time.perf_counter(), time.process_time()
    if columns in (COUNT, COUNT_WHOLE):
        rows, size = _counted(path, whole=columns == COUNT_WHOLE)
        _print(rows, size, begun, cpu, _pss_bytes())
        return
    if path.endswith(".parquet"):
        batches = pq.ParquetFile(path).iter_batches(PARQUET_ROWS, columns=list(columns), use_threads=False)
    else:
        batches = read_ranges([range_from_json(line) for line in Path(path).read_text().splitlines()], columns)
    rows = size = pss = 0
    for number, batch in enumerate(batches):
        rows += batch.num_rows
        size += _bytes_of(batch)
        if number % PSS_EACH_BATCHES == PSS_EACH_BATCHES - 1:
            pss = max(pss, _pss_bytes())
    _print(rows, size, begun, cpu, max(pss, _pss_bytes()))


def _print(rows: int, size: int, begun: float, cpu: float, pss: int) -> None:
    found = {
        "rows": rows,
        "bytes": size,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": memory_bytes(os.getpid(), "VmHWM") / 1e6,
        "pss_mb": pss / 1e6,
    }
    print(json.dumps(found), flush=True)


def _counted(path: str, *, whole: bool) -> tuple[int, int]:
    """Count the rows of a file of ranges; return them, and the bytes of the entries that were received for it."""
    size = 0
    next_chunk = Fetcher.next_chunk

    async def noted(self: Fetcher) -> tuple[LedgerRange, Sequence[LedgerEntry]] | None:
        nonlocal size
        if whole:
            self._heads = False
        chunk = await next_chunk(self)
        size += sum(len(entry.payload) for entry in (chunk[1] if chunk else ()))
        return chunk

    Fetcher.next_chunk = noted  # type: ignore[method-assign]
    return count_ranges([range_from_json(line) for line in Path(path).read_text().splitlines()]), size


def _bytes_of(batch: pa.RecordBatch) -> int:
    return int(batch.column("value").nbytes) if "value" in batch.schema.names else 0


def _pss_bytes() -> int:
    """Return the memory of this process, its share of what it shares with others included."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/self/smaps_rollup has no Pss")


if __name__ == "__main__":
    main(*sys.argv[1:])
