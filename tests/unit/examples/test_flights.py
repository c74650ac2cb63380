"""The demonstration's checks fail when they should; its input has the documented numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from examples.flights import check
from examples.flights.consume import Arrivals, _Recorder
from examples.flights.fault import busiest_bookie
from examples.flights.flights import NO_TAIL_NUMBER, Flights, load_flights, row_of
from examples.flights.table import by_pandas
from heliograph import Message, MessageId

PLANES = ["N1", "N2", "N3", None]


@pytest.fixture
def flights() -> Flights:
    rows = 40
    return Flights(
        pd.DataFrame(
            {
                "row": range(rows),
                "tailnum": [PLANES[row % 4] for row in range(rows)],
                "carrier": ["AA" if row % 2 else "UA" for row in range(rows)],
                "dep_time": [None if row % 10 == 0 else 900.0 for row in range(rows)],
                "dep_delay": [None if row % 10 == 0 else float(row) for row in range(rows)],
            }
        )
    )


def arrivals(rows: Sequence[int], *, repeated: Sequence[int] = (), checksum: int = 7) -> Arrivals:
    """Return arrivals; ``repeated`` are the indexes in ``rows`` that are redeliveries."""
    again = np.zeros(len(rows), dtype=bool)
    again[list(repeated)] = True
    return Arrivals(np.array(rows, dtype=np.int64), np.full(len(rows), checksum, np.uint32), again, np.zeros(1))


def two_partitions() -> list[list[int]]:
    """Return the arrivals of planes 0 and 2 in one part, 1 and 3 in the other."""
    return [[row for row in range(40) if row % 2 == half] for half in (0, 1)]


def test_all_is_well(flights: Flights) -> None:
    parts = [arrivals(rows) for rows in two_partitions()]
    assert check.exactly_once(parts, flights).held
    assert check.in_order(parts, flights).held
    assert check.same_bytes(parts, np.full(40, 7, np.uint32)).held
    assert check.nothing_missing(parts, flights).held


def test_a_redelivery_is_no_second_arrival(flights: Flights) -> None:
    even, odd = two_partitions()
    found = check.exactly_once([arrivals([*even, 0, 2], repeated=[20, 21]), arrivals(odd)], flights)
    assert found.held
    assert "2 redeliveries" in found.found
    assert check.in_order([arrivals([*even, 0, 2], repeated=[20, 21]), arrivals(odd)], flights).held


def test_missing_and_repeated_rows_are_found(flights: Flights) -> None:
    even, odd = two_partitions()
    missing = [arrivals(even[1:]), arrivals(odd)]
    assert not check.exactly_once(missing, flights).held
    assert not check.nothing_missing(missing, flights).held
    twice = [arrivals([*even, 0]), arrivals(odd)]  # another message with the same row
    assert not check.exactly_once(twice, flights).held
    assert check.nothing_missing(twice, flights).held
    strange = [arrivals([*even, 40]), arrivals(odd)]  # a row that does not exist
    assert not check.exactly_once(strange, flights).held
    assert check.in_order(strange, flights).held
    assert check.nothing_missing(strange, flights).held


def test_a_plane_out_of_order_is_found(flights: Flights) -> None:
    even, odd = two_partitions()
    even[0], even[2] = even[2], even[0]  # rows 0 and 4 are of one plane
    assert not check.in_order([arrivals(even), arrivals(odd)], flights).held
    other_planes = [2, 0, *two_partitions()[0][2:]]
    assert check.in_order([arrivals(other_planes), arrivals(odd)], flights).held  # planes are independent


def test_a_plane_in_two_partitions_is_found(flights: Flights) -> None:
    even, odd = two_partitions()
    assert not check.in_order([arrivals(even[:-1]), arrivals([*odd, even[-1]])], flights).held


def test_changed_bytes_are_found(flights: Flights) -> None:
    parts = [arrivals(rows) for rows in two_partitions()]
    checksums = np.full(40, 7, np.uint32)
    checksums[11] = 8
    assert not check.same_bytes(parts, checksums).held
    assert not check.same_bytes([arrivals([41])], checksums).held


def test_an_ensemble_change_needs_a_new_segment_and_rows_after_it() -> None:
    assert check.ensembles_changed({1: 1, 2: 1}, {1: 2, 2: 1}, "bookie-1", 5).held
    assert not check.ensembles_changed(
        {1: 1, 2: 1}, {1: 1, 2: 1, 3: 1}, "bookie-1", 5
    ).held  # a new ledger is not an ensemble change
    assert not check.ensembles_changed({1: 1}, {1: 2}, "bookie-1", 0).held


def test_tables_are_compared(flights: Flights) -> None:
    table = by_pandas(flights)
    assert table["carrier"].tolist() == ["AA", "UA"]
    assert table["flights"].tolist() == [20, 20]
    assert table["share_cancelled"].tolist() == [0.0, 0.2]
    assert check.same_table(table.copy(), table).held
    for column in ("flights", "mean_departure_delay", "share_cancelled"):
        other = table.assign(**{column: table[column] + 1})
        assert not check.same_table(other, table).held
    assert not check.same_table(table.iloc[:1], table).held
    assert not check.same_table(table.iloc[:0], table).held


def test_shards_hold_each_plane_whole_and_every_row_once(flights: Flights) -> None:
    shards = [flights.shard(index, 3) for index in range(3)]
    assert sorted(row for shard in shards for row in shard.frame["row"]) == list(range(40))
    owners = [set(shard.keys()) for shard in shards]
    assert sum(map(len, owners)) == len(set().union(*owners)) == 4
    assert NO_TAIL_NUMBER in set().union(*owners)


def test_rows_as_json(flights: Flights) -> None:
    payloads = flights.payloads()
    assert [row_of(payload) for payload in payloads] == list(range(40))
    assert json.loads(payloads[10])["dep_delay"] is None
    assert flights.between(0, 0).payloads() == []


@pytest.mark.slow
def test_the_real_flights() -> None:
    flights = load_flights()
    assert len(flights) == 336_776
    assert len(set(flights.keys())) == 4_044  # 4,043 planes and those without a number


def test_the_recorder_tells_redeliveries_from_new_messages() -> None:
    recorder = _Recorder()
    first = [Message(b'{"row":%d,"x":1}' % row, MessageId(1, 0, 2, row), publish_time_ms=1) for row in range(3)]
    assert recorder.add(first) == 3
    assert recorder.add(first[1:]) == 0
    assert recorder.add([Message(b'{"row":1,"x":1}', MessageId(1, 1, 2, 0), publish_time_ms=1)]) == 1
    found = recorder.arrivals()
    assert found.redeliveries == 2
    assert found.first_deliveries().tolist() == [0, 1, 2, 1]


def test_the_busiest_bookie_is_the_one_of_most_open_segments() -> None:
    ensembles = [[["b3", "b3"], ["b1", "b2"]], [["b2", "b3"]], [["b3", "b1"], ["b2", "b1"]]]
    assert busiest_bookie(ensembles) == "b2"
