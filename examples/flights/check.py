"""The checks that must hold at the end of the demonstration. Every check has a name and says what it found. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from examples.flights.consume import Arrivals
from examples.flights.flights import NO_TAIL_NUMBER, Flights

MEAN_TOLERANCE = 1e-9  # Spark and pandas add the same numbers up in different orders


@dataclass(frozen=True, slots=True)
class Check:
    """One promise, and whether it held."""

    name: str
    held: bool
    found: str


def exactly_once(arrivals: Sequence[Arrivals], flights: Flights) -> Check:
    """Check that every row is in exactly one message of the exclusive subscription; redeliveries are counted apart."""
    rows = np.concatenate([part.first_deliveries() for part in arrivals])
    times = np.bincount(rows, minlength=len(flights))
    missing, repeated = int((times == 0).sum()), int((times > 1).sum())
    again = sum(part.redeliveries for part in arrivals)
    return Check(
        "every row arrived exactly once on the exclusive subscription",
        missing == 0 and repeated == 0 and len(times) == len(flights),
        f"{len(rows):,} messages for {len(flights):,} rows, {missing:,} missing, {repeated:,} repeated, "
        f"{again:,} redeliveries",
    )


def same_bytes(arrivals: Sequence[Arrivals], checksums: np.ndarray) -> Check:
    """Check that each payload is the one that was published for its row."""
    rows = np.concatenate([part.rows for part in arrivals])
    found = np.concatenate([part.checksums for part in arrivals])
    inside = rows < len(checksums)
    wrong = int((checksums[rows[inside]] != found[inside]).sum()) + int((~inside).sum())
    return Check(
        "every payload is the one that was published",
        wrong == 0 and len(rows) > 0,
        f"{wrong:,} of {len(rows):,} differ",
    )


def in_order(arrivals: Sequence[Arrivals], flights: Flights) -> Check:
    """Check that the rows of each tail number arrived in publish order, which is the order of the file."""
    planes, names = pd.factorize(flights.frame["tailnum"].fillna(NO_TAIL_NUMBER))
    partition_of = np.full(len(names), -1)
    wrong = 0
    known = [rows[rows < len(flights)] for rows in (part.first_deliveries() for part in arrivals)]
    for index, rows in enumerate(known):
        plane = planes[rows]
        partition_of[plane] = index
        order = np.argsort(plane, kind="stable")
        same_plane = plane[order][1:] == plane[order][:-1]
        wrong += int((same_plane & (np.diff(rows[order]) <= 0)).sum())
    strays = sum(int((partition_of[planes[rows]] != index).sum()) for index, rows in enumerate(known))
    return Check(
        "rows of one tail number arrived in publish order",
        wrong == 0 and strays == 0,
        f"{len(names):,} tail numbers, {wrong:,} rows out of order, {strays:,} in a second partition",
    )


def nothing_missing(arrivals: Sequence[Arrivals], flights: Flights) -> Check:
    """Check that every row reached some consumer of the shared subscription."""
    seen = np.zeros(len(flights), dtype=bool)
    for part in arrivals:
        seen[part.rows[part.rows < len(flights)]] = True
    delivered = sum(len(part.rows) for part in arrivals)
    missing = len(flights) - int(seen.sum())
    shares = " + ".join(f"{len(part.rows):,}" for part in arrivals)
    return Check(
        "no row is missing on the shared subscription",
        missing == 0,
        f"{missing:,} missing, {shares} messages, {delivered - int(seen.sum()):,} of them more than once",
    )


def ensembles_changed(before: Mapping[int, int], after: Mapping[int, int], bookie: str, published_after: int) -> Check:
    """Check that publishing continued after the kill, and that a ledger got a new segment.

    Args:
        before, after: the number of segments by ledger id, before the kill and at the end.
        published_after: rows acknowledged after the kill.
    """
    changed = sum(1 for ledger, segments in after.items() if segments > before.get(ledger, 1))
    added = sum(max(0, segments - before.get(ledger, 1)) for ledger, segments in after.items())
    return Check(
        f"publishing continued without {bookie} through an ensemble change",
        changed > 0 and published_after > 0,
        f"{changed} ledgers got {added} new segments, {len(after.keys() - before.keys())} ledgers are new, "
        f"{published_after:,} rows were acknowledged after the kill",
    )


def same_table(spark: pd.DataFrame, expected: pd.DataFrame) -> Check:
    """Check that the table that Spark computed from the topic equals the one that pandas computed from the file."""
    held = list(spark["carrier"]) == list(expected["carrier"]) and list(spark["flights"]) == list(expected["flights"])
    for column in ("mean_departure_delay", "share_cancelled"):
        held = held and bool(
            np.allclose(spark[column], expected[column], rtol=MEAN_TOLERANCE, atol=MEAN_TOLERANCE, equal_nan=True)
        )
    return Check(
        "Spark's table from the topic equals pandas' table from the file",
        held,
        f"{len(spark)} carriers, {int(spark['flights'].sum()):,} flights" if len(spark) else "an empty table",
    )
