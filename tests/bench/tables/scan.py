"""A scan of one topic in a process of its own.

``python -m tests.bench.tables.scan <file of ranges> <column>...`` prints rows, bytes of values, seconds and seconds of
processor time as JSON. Files that end in ``.parquet`` are scanned by pyarrow instead.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.pipelines.planning.ranges import range_from_json
from heliograph.pipelines.reading.range_reader import read_ranges

PARQUET_ROWS = 16_384  # of a batch, as many as ours have


def main(path: str, *columns: str) -> None:
    """Scan everything once, and print what it took."""
    begun, cpu = time.perf_counter(), time.process_time()
    if path.endswith(".parquet"):
        batches = pq.ParquetFile(path).iter_batches(PARQUET_ROWS, columns=list(columns), use_threads=False)
    else:
        batches = read_ranges([range_from_json(line) for line in Path(path).read_text().splitlines()], columns)
    rows = size = 0
    for batch in batches:
        rows += batch.num_rows
        size += _bytes_of(batch)
    found = {
        "rows": rows,
        "bytes": size,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
    }
    print(json.dumps(found), flush=True)


def _bytes_of(batch: pa.RecordBatch) -> int:
    return int(batch.column("value").nbytes) if "value" in batch.schema.names else 0


if __name__ == "__main__":
    main(*sys.argv[1:])
