"""Tables into topics by one task in a process of its own.

``python -m tests.bench.tables.write <address> <topic> <rows> <bytes of a value> <bytes in flight>`` prints rows,
seconds and seconds of processor time as JSON. With 0 bytes in flight, 1,000 rows are on their way at once.
"""

from __future__ import annotations

import json
import os
import sys
import time

import pyarrow as pa

from heliograph.pipelines.writing import in_flight
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.table_writer import TableWriter

BATCH_ROWS = 10_000  # of Arrow, as Spark has them


def main(address: str, topic: str, rows: str, size: str, in_flight_bytes: str) -> None:
    """Write everything once, and print what it took."""
    values = [os.urandom(int(size)) for _ in range(BATCH_ROWS)]
    keys = [f"key-{number % 317}" for number in range(BATCH_ROWS)]
    batch = pa.RecordBatch.from_pydict({"value": values, "key": keys})
    batches = max(1, int(rows) // BATCH_ROWS)
    in_flight.InFlight.__init__.__defaults__ = (int(in_flight_bytes),)
    writer = TableWriter(address, topic, columns=WrittenColumns("value", {"key": "key"}))
    begun, cpu = time.perf_counter(), time.process_time()
    written = writer.write(batch for _ in range(batches))
    found = {"rows": written, "seconds": time.perf_counter() - begun, "cpu_seconds": time.process_time() - cpu}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
