"""A scan of one topic in a process of its own.

``python -m tests.bench.tables.scan <file of ranges> <column>...`` prints rows, bytes of values, seconds, seconds of
processor time and the most memory as JSON. Files that end in ``.parquet`` are scanned by pyarrow instead.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.pipelines.planning.ranges import range_from_json
from heliograph.pipelines.reading.range_reader import read_ranges
from tests.bench.process import memory_bytes

PARQUET_ROWS = 16_384  # of a batch, as many as ours have
PSS_EACH_BATCHES = 100  # the memory is looked at


def main(path: str, *columns: str) -> None:
    """Scan everything once, and print what it took."""
    begun, cpu = time.perf_counter(), time.process_time()
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
    found = {
        "rows": rows,
        "bytes": size,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": memory_bytes(os.getpid(), "VmHWM") / 1e6,
        "pss_mb": max(pss, _pss_bytes()) / 1e6,
    }
    print(json.dumps(found), flush=True)


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
