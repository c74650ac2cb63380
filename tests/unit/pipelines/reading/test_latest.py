"""The latest row of each key equals that of a dictionary to which all rows were assigned in turn."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import pytest

from heliograph.pipelines.planning.ranges import by_partition, range_from_json, split
from heliograph.pipelines.reading import latest
from heliograph.pipelines.reading.columns import ERROR, KEY, TOPIC, VALUE, schema_of
from heliograph.pipelines.reading.latest import LatestRows
from tests.unit.pipelines.test_ranges import a_range

Row = tuple[bytes | None, bytes | None, str | None]  # key, value, error


def state_of(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of the state, in publish order."""
    state: dict[bytes | str, Row] = {}
    for row in rows:
        key, value, error = row
        if error is not None:
            state[error] = row
        elif key is not None:
            state.pop(key, None)
            if value:
                state[key] = row
    return list(state.values())


def batch_of(rows: Iterable[Row]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip((KEY, VALUE, ERROR, TOPIC), (*row, "t"), strict=True)) for row in rows],
        schema_of((KEY, VALUE, ERROR, TOPIC)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_latest_rows_are_those_of_a_dictionary(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "FOLD_ROWS_MIN", 8)
    chance = random.Random(seed)
    rows: list[Row] = []
    fold = LatestRows((VALUE, KEY, ERROR))
    for number in range(chance.randrange(30)):
        new: list[Row] = []
        for at in range(chance.randrange(12)):
            if chance.random() < 0.05:
                new.append((None, None, f"damaged {number}-{at}"))
                continue
            key = None if chance.random() < 0.1 else b"%d" % chance.randrange(9)
            new.append((key, chance.choice([None, b"", b"%d-%d" % (number, at)]), None))
        fold.add(batch_of(new))
        rows += new
    found = [tuple(row[name] for name in (KEY, VALUE, ERROR)) for one in fold.batches() for row in one.to_pylist()]
    assert found == state_of(rows)


def test_large_rows_are_folded_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest, "FOLD_BYTES_MIN", 10_000)
    fold = LatestRows((VALUE, KEY))
    held = []
    for number in range(100):
        fold.add(batch_of([(b"k", b"%d" % number * 500, None)]))
        held.append(fold._rows)
    assert max(held) < 25
    assert [row[VALUE] for one in fold.batches() for row in one.to_pylist()] == [b"99" * 500]


def test_only_the_columns_that_are_asked_for_come_out() -> None:
    fold = LatestRows((TOPIC,))
    assert fold.reads == (TOPIC, KEY, VALUE, ERROR)
    for number in range(3):
        fold.add(batch_of([(b"k", b"%d" % number, None)]))
    assert [batch.to_pydict() for batch in fold.batches()] == [{TOPIC: ["t"]}]
    assert list(LatestRows((KEY,)).batches()) == []


def test_one_task_reads_all_of_a_partition() -> None:
    whole = [replace(a_range(0, 9, number), topic=f"t-{number % 2}", latest=True) for number in range(6)]
    assert split(whole, 6) == by_partition(whole) == [whole[::2], whole[1::2]]
    assert [range_from_json(one.to_json()) for one in whole] == whole
