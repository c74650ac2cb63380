"""The cursor core alone: individual acknowledgements per second, as deltas and their bytes, with a million holes.

The limit is the same cursor without a hole, acknowledged in order. Processor time is measured.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from heliograph.actors.broker.cursor import record as cursor_record
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from tests.bench.bench import Bench
from tests.bench.figure import Limit, at_least

SECTION = "cursor core"
HOLES = 1_000_000
CHUNK = 1_000  # acknowledgements between two reads of the clock
AIM_SHARE = 0.3  # of the speed without holes
STRIDE = 514_229  # step from one filled hole to the next: scattered, each once


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    bench.say("measuring the cursor core")
    seconds = bench.seconds(2.0)
    in_order = _per_second(Cursor(0), iter(range(1 << 60)), seconds)
    cursor = Cursor(0)
    for index in range(1, 2 * HOLES, 2):
        cursor.acknowledge(index)
    cursor.take_delta()
    rate = _per_second(cursor, _holes(), seconds)
    bench.add(
        SECTION,
        f"acknowledgements into {HOLES:,} holes, each its own delta",
        rate,
        "acks/s",
        Limit(in_order, "in order, no holes"),
        aim=at_least(AIM_SHARE * in_order),
    )


def _holes() -> Iterator[int]:
    """Yield the holes in scattered order, then the entries after them."""
    for number in range(1, HOLES):
        yield 2 * (number * STRIDE % HOLES)
    yield from range(4 * HOLES, 1 << 60, 2)


def _per_second(cursor: Cursor, indexes: Iterator[int], seconds: float) -> float:
    chain = LedgerChain()
    chain.append(1, 1 << 60)
    done, begun = 0, time.process_time()
    while (spent := time.process_time() - begun) < seconds:
        for _ in range(CHUNK):
            cursor.acknowledge(next(indexes))
            delta = cursor.take_delta()
            assert delta is not None, "every acknowledgement is news"
            cursor_record.encode_delta(delta, chain, 0)
        done += CHUNK
    return done / spent
