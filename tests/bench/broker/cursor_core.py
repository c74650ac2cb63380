"""The cursor core alone: acknowledgements into a million holes, and snapshots of K partly acknowledged batches.

The limit of acknowledgements is the same cursor without a hole, acknowledged in order. The limit of restoring K batches
is the rate of the smallest K: the rate does not fall as K grows, because recovery is linear. Processor time is
measured.
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
BATCHES = (1_000, 100_000, 1_000_000)  # partly acknowledged
LOOP_MS_MAX = 20  # of one step of the event loop
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
    _report_recovery(bench)


def _report_recovery(bench: Bench) -> None:
    base = 0.0
    for batches in BATCHES:
        cursor, chain = Cursor(0), LedgerChain()
        chain.append(1, 2 * batches + 1)
        for index in range(1, 2 * batches, 2):
            cursor.acknowledge_messages(index, 0b0110)
        parts: list[bytes] = []
        write_ms, _ = _longest_step(_snapshot(cursor, chain, parts))
        restore_ms, seconds = _longest_step(_restored(parts, Cursor(0), chain))
        rate = batches / seconds
        base = base or rate
        bench.add(
            SECTION,
            f"restore {batches:,} partly acknowledged batches",
            rate,
            "batches/s",
            Limit(base, f"{BATCHES[0]:,} batches"),
            restore_step_ms=restore_ms,
            write_step_ms=write_ms,
        )
    bench.add(
        SECTION, f"longest step, {BATCHES[-1]:,} batches", max(restore_ms, write_ms), "ms", Limit(LOOP_MS_MAX, "20 ms")
    )


def _snapshot(cursor: Cursor, chain: LedgerChain, parts: list[bytes]) -> Iterator[None]:
    parts += yield from cursor_record.snapshot_steps(cursor, chain, -1)


def _restored(parts: list[bytes], cursor: Cursor, chain: LedgerChain) -> Iterator[None]:
    for part in parts:
        for _ in cursor_record.apply_record(cursor_record.decode(part), cursor, chain):
            yield


def _longest_step(steps: Iterator[None]) -> tuple[float, float]:
    """Run all steps, and return the longest in ms and the sum in seconds."""
    longest, begun = 0.0, time.process_time()
    last = begun
    for _ in steps:
        now = time.process_time()
        longest, last = max(longest, now - last), now
    end = time.process_time()
    return 1000 * max(longest, end - last), end - begun


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
