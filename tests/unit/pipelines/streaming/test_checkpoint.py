"""Micro-batches: after a crash at any time a batch is repeated exactly; no entry is left out or in two batches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from heliograph.base.errors import BadRequestError, ConflictError
from heliograph.pipelines.planning.ranges import LedgerRange, Position, cut
from heliograph.pipelines.streaming.checkpoint import PLANS_KEPT, Batch, StreamCheckpoint, batches, next_batch
from tests.unit.pipelines.test_ranges import a_range, entries_of


class GrowingTopic:
    """Return the ranges that a planner would return."""

    def __init__(self) -> None:
        self.ranges: list[LedgerRange] = []

    def plan(self, start: Mapping[int, Position]) -> list[LedgerRange]:
        return cut(self.ranges, start)


@pytest.fixture
def topic() -> GrowingTopic:
    grown = GrowingTopic()
    grown.ranges = [a_range(0, 99, 1, 0), a_range(0, 39, 5, 0), a_range(0, 9, 2, 1)]
    return grown


def run(topic: GrowingTopic, directory: Path, entries_max: int = 30) -> list[Batch]:
    return list(batches(StreamCheckpoint(directory), topic.plan, entries_max=entries_max, until_caught_up=True))


def test_all_entries_once_in_order_of_each_partition(topic: GrowingTopic, tmp_path: Path) -> None:
    done = run(topic, tmp_path)
    entries = [entry for batch in done for entry in entries_of(list(batch.ranges))]
    assert sorted(entries) == sorted(entries_of(topic.ranges))
    assert [entry for entry in entries if entry[0] == 0] == [e for e in entries_of(topic.ranges) if e[0] == 0]
    assert [batch.batch_id for batch in done] == list(range(len(done)))
    assert all(len(entries_of(list(batch.ranges))) <= 30 for batch in done)  # I15


def test_a_crash_repeats_the_same_batch_under_its_id(topic: GrowingTopic, tmp_path: Path) -> None:
    crashing = batches(StreamCheckpoint(tmp_path), topic.plan, entries_max=30)
    next(crashing)
    interrupted = next(crashing)
    crashing.close()  # nothing more is written
    topic.ranges.append(a_range(40, 60, 5, 0))  # later entries must not be in the repeated batch
    first, *rest = run(topic, tmp_path)
    assert first == interrupted
    assert [batch.batch_id for batch in rest] == list(range(2, 2 + len(rest)))
    seen = entries_of([piece for batch in (first, *rest) for piece in batch.ranges])
    assert len(seen) == len(set(seen))


def test_caught_up_means_nothing_until_more_comes(topic: GrowingTopic, tmp_path: Path) -> None:
    done = run(topic, tmp_path)
    assert run(topic, tmp_path) == []
    topic.ranges.append(a_range(10, 12, 2, 1))
    (more,) = run(topic, tmp_path)
    assert more.batch_id == len(done)
    assert entries_of(list(more.ranges)) == [(1, 2, 10), (1, 2, 11), (1, 2, 12)]


def test_old_plans_are_forgotten(topic: GrowingTopic, tmp_path: Path) -> None:
    done = run(topic, tmp_path, entries_max=10)
    assert len(done) > PLANS_KEPT + 1
    assert len(list(tmp_path.glob("plan-*.json"))) == PLANS_KEPT


def test_one_stream_at_a_time(topic: GrowingTopic, tmp_path: Path) -> None:
    first = batches(StreamCheckpoint(tmp_path), topic.plan)
    next(first)
    with pytest.raises(ConflictError):
        next(batches(StreamCheckpoint(tmp_path), topic.plan))
    first.close()
    next(batches(StreamCheckpoint(tmp_path), topic.plan))


def test_a_damaged_plan_is_named(tmp_path: Path) -> None:
    (tmp_path / "plan-3.json").write_text("{")
    with pytest.raises(BadRequestError, match="plan-3"):
        StreamCheckpoint(tmp_path).last_plan()


def test_a_batch_is_shared_fairly_by_partitions() -> None:
    batch = next_batch(None, [a_range(0, 999, 1, 0), a_range(0, 999, 2, 1)], 100)
    assert batch is not None
    assert [piece.entries for piece in batch.ranges] == [50, 50]
    assert next_batch(None, [], 100) is None
