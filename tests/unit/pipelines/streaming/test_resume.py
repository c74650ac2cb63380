"""Starts and states of streams: what a checkpoint is of, where it begins, and how a training loop goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heliograph.base.errors import BadRequestError, UnsupportedError
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.ranges import LedgerRange, cut
from heliograph.pipelines.reading.options import ReadOptions, StreamKeywords
from heliograph.pipelines.streaming import datasets, source, start
from heliograph.pipelines.streaming.datasets import DatasetStream
from heliograph.pipelines.streaming.start import StreamStart
from heliograph.pipelines.streaming.storage import LocalFiles
from heliograph.protocol.message_id import MessageId
from tests.unit.pipelines.streaming.test_stream_source import TOPIC, FakeAdmin
from tests.unit.pipelines.test_ranges import a_range

ENTRY_ROWS = 5


class Topic:
    """A topic of 40 entries with ENTRY_ROWS rows each, whose rows are numbers."""

    def __init__(self) -> None:
        self.ranges = [a_range(0, 19, 7), a_range(0, 19, 8)]
        self.admin = FakeAdmin()
        self.admin.partitions = lambda topic: 0  # type: ignore[attr-defined]

    def plan(self, topic: str, start: dict[int, Any], **_: object) -> list[LedgerRange]:
        return cut(self.ranges, start)

    @property
    def acknowledged(self) -> str | None:
        return self.admin.acknowledged.get(TOPIC)


class FakeDataset:
    """The rows of ranges, in the batches that a Dataset gives out."""

    def __init__(self, ranges: Any) -> None:
        self.rows = [
            (piece.ledger_id - 7) * 100 + entry * ENTRY_ROWS + row
            for piece in ranges
            for entry in range(piece.first_entry_id, piece.last_entry_id + 1)
            for row in range(ENTRY_ROWS)
        ]

    def iter_batches(self, batch_size: int, batch_format: str) -> Iterator[dict[str, Any]]:
        assert batch_format == "numpy"
        for first in range(0, len(self.rows), batch_size):
            rows = np.array(self.rows[first : first + batch_size])
            rows.flags.writeable = False
            yield {"row": rows}


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic()
    monkeypatch.setattr(source, "plan_topic", made.plan)
    monkeypatch.setattr(source, "refresh_addresses", lambda ranges, **_: list(ranges))
    monkeypatch.setattr(ClusterAccess, "admin_sync", lambda self: made.admin)
    monkeypatch.setattr(datasets, "ranges_dataset", lambda ranges, options, schemas: FakeDataset(ranges))
    monkeypatch.setattr(datasets, "in_order", lambda dataset, needed: nullcontext())
    monkeypatch.setattr(start, "ends_of", lambda topic, access: {TOPIC: (8, 15)})
    monkeypatch.setattr(start, "starts_at", lambda topic, time_ms, access: {TOPIC: (7, 12)})
    return made


def stream(place: Path, name: str = TOPIC, options: ReadOptions | None = None, **given: Any) -> DatasetStream:
    keywords: StreamKeywords = {"entries_per_batch": 6, "until_caught_up": True, **given}  # type: ignore[typeddict-item]
    return DatasetStream(source.StreamSource(name, place, options or ReadOptions(), keywords))


def rows_of(batches: Iterator[Any]) -> list[int]:
    return [int(row) for batch in batches for row in batch["row"]]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (None, 0),
        ("earliest", 0),
        ("latest", 175),
        (datetime(2026, 1, 1, tzinfo=UTC), 60),
        ("2026-01-01", 60),
        (1_767_225_600_000, 60),
        (MessageId(7, 3), 15),
        (MessageId(7, 3).to_bytes(), 15),
        ("8:2", 110),
        ([MessageId(8, 2)], 110),
        (MessageId.EARLIEST, 0),
        (MessageId.LATEST.to_bytes(), 175),
        ({-1: (8, 2)}, 110),
    ],
)
def test_a_stream_begins_where_it_is_told(topic: Topic, tmp_path: Path, given: Any, first: int) -> None:
    begun = stream(tmp_path, start=given)
    assert rows_of(begun.iter_batches(7)) == list(range(first, 200))
    topic.ranges.append(a_range(0, 0, 9))
    assert rows_of(stream(tmp_path).iter_batches()) == list(range(200, 205)), "the start is that of the checkpoint"
    with pytest.raises(BadRequestError, match="stream with start") as refused:
        next(stream(tmp_path, start={-1: (1, 1)}))
    assert refused.value.field == "start"


def test_rows_before_a_time_are_left_out_by_every_run(topic: Topic, tmp_path: Path) -> None:
    for given in (1_000, None):
        begun = stream(tmp_path, start=given)
        next(begun)
        where = begun._source.options.where
        assert where is not None
        (condition,) = where.conditions
        assert (condition.column, condition.operator, condition.value) == ("__publishTime", ">=", 1_000_000)
        begun.close()


@pytest.mark.parametrize("given", ["yesterday", 1.5, {-1: (1, -1)}, {}, [], [MessageId(1, 1), MessageId(1, 2)], True])
def test_what_is_no_start_is_refused(tmp_path: Path, given: Any) -> None:
    with pytest.raises(BadRequestError) as refused:
        stream(tmp_path, start=given)
    assert refused.value.field == "start"


def test_ids_name_every_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClusterAccess, "admin_sync", lambda self: SimpleNamespace(partitions=lambda topic: 2))
    found = StreamStart.of([MessageId(1, 2, 0), MessageId(3, 4, 1)])
    assert found is not None
    assert found.found(TOPIC, ClusterAccess()) == {0: (1, 2), 1: (3, 4)}
    for wrong, told in ((MessageId(1, 2, 0), "partition 1"), (MessageId(1, 2, 5), "no partition 5")):
        found = StreamStart.of(wrong)
        assert found is not None
        with pytest.raises(BadRequestError, match=told):
            found.found(TOPIC, ClusterAccess())


def test_a_checkpoint_of_another_topic_or_of_other_conditions_is_refused(topic: Topic, tmp_path: Path) -> None:
    keys = ReadOptions.of("f", StreamKeywords, {"where": [("__key", "in", ["b", "a"])]})
    next(stream(tmp_path, options=keys))
    next(stream(tmp_path, options=keys))
    for given, field in (({"name": "other", "options": keys}, "topic"), ({}, "where")):
        with pytest.raises(BadRequestError, match="use another checkpoint") as refused:
            next(stream(tmp_path, **given))  # type: ignore[arg-type]
        assert refused.value.field == field
    (tmp_path / "stream.json").write_text('{"format": 1, "options": "{}", "crc32": 1}')
    with pytest.raises(BadRequestError, match="damaged"):
        next(stream(tmp_path, options=keys))


def test_a_checkpoint_of_the_previous_release_goes_on(topic: Topic, tmp_path: Path) -> None:
    begun = stream(tmp_path)
    assert next(begun)[0] == 0
    begun.close()
    (tmp_path / "stream.json").unlink()
    with pytest.raises(BadRequestError, match="start earliest"):
        next(stream(tmp_path, start="latest"))
    assert rows_of(stream(tmp_path).iter_batches()) == list(range(200))


@pytest.mark.parametrize("bounds", [{"entries_per_batch": 0}, {"bytes_per_batch": 0}, {"bytes_per_batch": "1"}])
def test_a_bound_is_a_positive_number(tmp_path: Path, bounds: dict[str, Any]) -> None:
    with pytest.raises(BadRequestError) as refused:
        stream(tmp_path, **bounds)
    assert refused.value.field == next(iter(bounds))


def test_a_batch_is_bounded_in_bytes(topic: Topic, tmp_path: Path) -> None:
    size = topic.ranges[0].entry_bytes
    sizes = []
    for _, dataset in stream(tmp_path, entries_per_batch=1_000, bytes_per_batch=3 * size):
        sizes.append(len(dataset.rows) // ENTRY_ROWS)  # type: ignore[attr-defined]
    assert (max(sizes), sum(sizes)) == (3, 40)  # I15
    (first, *_) = stream(tmp_path / "small", bytes_per_batch=1)
    assert len(first[1].rows) == ENTRY_ROWS, "at least one entry"  # type: ignore[attr-defined]


@pytest.mark.parametrize("steps", [0, 1, 2, 5, 11, 29])
@pytest.mark.parametrize("later", [0, 9])
def test_a_training_loop_goes_on_at_its_state(topic: Topic, tmp_path: Path, steps: int, later: int) -> None:
    """The model was stored after ``steps``, and the loop was killed ``later`` steps behind that."""
    begun = stream(tmp_path, start={-1: (7, 1)})
    batches = begun.iter_batches(7)
    seen = rows_of(islice(batches, steps))
    state = json.loads(json.dumps(begun.state_dict()))
    assert len(list(islice(batches, later))) <= later
    begun.close()
    again = stream(tmp_path, start={-1: (7, 1)})
    again.load_state_dict(state)
    assert again.state_dict() == state
    rest = rows_of(again.iter_batches(7))
    assert seen + rest == list(range(5, 200))
    final = again.state_dict()
    assert (final["is_done"], final["rows"]) == (True, 0)
    more = stream(tmp_path)
    more.load_state_dict(final)
    assert rows_of(more.iter_batches(7)) == []


@pytest.mark.parametrize(("given", "first"), [({-1: (7, 1)}, 5), ("latest", 175)])
def test_a_state_from_before_the_first_row_goes_back_to_the_start(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, first: int
) -> None:
    begun = stream(tmp_path, start=given)
    state = begun.state_dict()
    assert rows_of(begun.iter_batches(7)) == list(range(first, 200))
    monkeypatch.setattr(start, "ends_of", lambda topic, access: {TOPIC: (8, 20)})
    again = stream(tmp_path)
    again.load_state_dict(state)
    assert rows_of(again.iter_batches(7)) == list(range(first, 200))


def test_a_start_is_that_of_the_checkpoint_if_the_first_run_died_before_it_was_found(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(StreamStart, "found", lambda self, topic, access: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            next(stream(tmp_path, start={-1: (7, 3)}))
    assert rows_of(stream(tmp_path).iter_batches()) == list(range(15, 200))


@pytest.mark.parametrize("deletions", range(1, 6))
def test_a_process_that_dies_while_it_goes_back_leaves_no_commit_of_a_later_batch(
    topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    """It died within the deletions of a commit or of ``load_state_dict``, and then with a batch in hand."""
    begun = stream(tmp_path)
    next(begun)
    state = begun.state_dict()
    for _ in range(4):
        next(begun)
    begun.close()
    delete, left = LocalFiles.delete, deletions

    def die(self: LocalFiles, name: str) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        delete(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFiles, "delete", die)
        dying = stream(tmp_path)
        dying.load_state_dict(state)
        with pytest.raises(KeyboardInterrupt):
            list(islice(dying, 3))
    again = stream(tmp_path)
    again.load_state_dict(state)
    seen: dict[int, list[int]] = {}
    for _ in range(8):  # each of these handles one batch, and dies before it has handled the next one
        for batch_id, dataset in list(islice(again, 2))[:1]:
            seen[batch_id] = dataset.rows  # type: ignore[attr-defined]
        again.close()
        again = stream(tmp_path)
    assert sorted(row for rows in seen.values() for row in rows) == list(range(200))


def test_a_state_counts_the_rows_of_its_start_and_conditions(topic: Topic, tmp_path: Path) -> None:
    begun = stream(tmp_path / "a", start=1_000)
    next(begun.iter_batches(11))
    state = begun.state_dict()
    moved = stream(tmp_path / "b")
    moved.load_state_dict(state)
    next(moved)
    assert moved._source.options.where == begun._source.options.where
    keys = ReadOptions.of("f", StreamKeywords, {"where": [("__key", "==", "a")]})
    for given, field in (({"start": 2_000}, "start"), ({"options": keys}, "where")):
        other = stream(tmp_path / field, **given)
        other.load_state_dict(state)
        with pytest.raises(BadRequestError, match="state is of a stream with") as refused:
            next(other)
        assert refused.value.field == field


def test_a_loop_that_was_left_goes_on_in_the_next_one(topic: Topic, tmp_path: Path) -> None:
    begun = stream(tmp_path)
    seen = rows_of(islice(begun.iter_batches(7), 2))
    state = begun.state_dict()
    for size, steps in ((4, 9), (30, 1), (7, 99)):
        seen += rows_of(islice(begun.iter_batches(size), steps))
    assert seen == list(range(200))
    begun.close()
    again = stream(tmp_path)
    again.load_state_dict(state)
    seen = rows_of(islice(again.iter_batches(7), 1))
    assert seen + rows_of(again.iter_batches(9)) == list(range(14, 200))


def test_retention_keeps_what_the_newest_two_states_need(topic: Topic, tmp_path: Path) -> None:
    begun = stream(tmp_path, entries_per_batch=5)
    batches = begun.iter_batches(25)  # a micro-batch
    assert len(list(islice(batches, 2))) == 2
    assert topic.acknowledged == "7:4", "without a state: what is committed"
    begun.state_dict()  # within entries 5 to 9
    assert len(list(islice(batches, 2))) == 2
    assert topic.acknowledged == "7:4"
    begun.state_dict()  # within 15 to 19
    assert len(list(islice(batches, 1))) == 1
    assert topic.acknowledged == "7:4", "the first state is needed until the next one is stored"
    begun.state_dict()
    assert len(list(islice(batches, 1))) == 1
    assert topic.acknowledged == "7:14", "the state before the newest one"


def test_a_state_starts_an_empty_checkpoint(topic: Topic, tmp_path: Path) -> None:
    begun = stream(tmp_path / "a")
    next(begun.iter_batches(11))
    state = begun.state_dict()
    moved = stream(tmp_path / "b")
    moved.load_state_dict(state)
    assert rows_of(moved.iter_batches()) == list(range(11, 200))
    assert (tmp_path / "b" / "stream-id").read_text() == state["stream"]


def test_states_of_others_are_refused(topic: Topic, tmp_path: Path) -> None:
    begun = stream(tmp_path)
    next(begun)
    state = begun.state_dict()
    for wrong in ({}, {**state, "format": 9}, {**state, "rows": -1}, {**state, "plan": {}}, {**state, "topic": "x"}):
        with pytest.raises(BadRequestError, match="state"):
            stream(tmp_path).load_state_dict(wrong)
    with pytest.raises(BadRequestError, match="before the first batch"):
        begun.load_state_dict(state)
    begun.close()
    other = stream(tmp_path / "other")
    next(other)
    other.close()
    moved = stream(tmp_path / "other")
    moved.load_state_dict(state)
    with pytest.raises(BadRequestError, match="another stream"):
        next(moved)


class Torch(SimpleNamespace):
    """Stands in for torch, which is not among the locked packages."""

    def __init__(self) -> None:
        super().__init__(as_tensor=self.made, seen=[])

    def made(self, values: Any, dtype: Any, device: Any) -> Any:
        assert values.flags.writeable, "torch warns of others"
        self.seen.append((dtype, device))
        return values


def test_tensors_are_made_of_columns_of_numbers(topic: Topic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UnsupportedError, match="'torch'"):
        stream(tmp_path).iter_torch_batches()
    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    begun = stream(tmp_path)
    assert rows_of(begun.iter_torch_batches(9, dtypes={"row": "int8"}, device="cuda:0")) == list(range(200))
    assert set(torch.seen) == {("int8", "cuda:0")}
    total: Callable[[Any], Any] = lambda columns: int(columns["row"].sum())  # noqa: E731
    summed = stream(tmp_path / "b").iter_torch_batches(9, collate_fn=total)
    assert sum(summed) == sum(range(200))
    monkeypatch.setattr(FakeDataset, "iter_batches", lambda *_, **__: iter([{"value": np.array([b"x"], object)}]))
    with pytest.raises(BadRequestError, match="column value has object"):
        next(stream(tmp_path / "c").iter_torch_batches())
    with pytest.raises(BadRequestError, match="batch_size"):
        stream(tmp_path / "d").iter_torch_batches(0)
