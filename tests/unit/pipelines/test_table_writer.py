"""Rows into messages, once: whatever a run of a task has stored, the next one stores the rest and nothing twice."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError, ConnectionLostError, ProducerBusyError
from heliograph.client.identity import Identity
from heliograph.pipelines.writing import table_writer
from heliograph.pipelines.writing.table_writer import BATCH_IDS_MAX, TableWriter, WriteIdentity


class Broker:
    """Topics that deduplicate by producer name, as far as a writer sees them. It may die after some messages."""

    def __init__(self, partitions: int = 0) -> None:
        self.count = partitions
        self.stored: dict[str, list[tuple[Any, ...]]] = {}
        self.last: dict[tuple[str, str], int] = {}
        self.dies_after: int | None = None
        self.busy = 0

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def partitions(self, topic: str) -> int:
        return self.count

    def producer(self, topic: str, name: str = "", initial_sequence_id: int = -1) -> Producer:
        return Producer(self, topic, name, initial_sequence_id)


class Producer:
    def __init__(self, broker: Broker, topic: str, name: str, initial: int) -> None:
        self._broker, self._topic, self._name, self._next = broker, topic, name, initial + 1
        self.last_sequence_id = broker.last.get((topic, name), -1)

    def __enter__(self) -> Producer:
        if self._broker.busy:
            self._broker.busy -= 1
            raise ProducerBusyError
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def close(self) -> None:
        pass

    def send_many(self, values: list[Any], **columns: list[Any]) -> None:
        for index, value in enumerate(values):
            if self._broker.dies_after == 0:
                raise ConnectionLostError
            if self._broker.dies_after is not None:
                self._broker.dies_after -= 1
            assert self._next > self._broker.last.get((self._topic, self._name), -1), "nothing is sent twice"
            self._broker.last[self._topic, self._name] = self._next
            self._next += 1
            row = (value, *(columns[name][index] for name in sorted(columns)))
            self._broker.stored.setdefault(self._topic, []).append(row)


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    one = Broker()
    monkeypatch.setattr(table_writer, "connect", lambda address, **options: one)
    monkeypatch.setattr(table_writer, "OPEN_PAUSE_SECONDS", 0)
    return one


def writer(write_identity: WriteIdentity | None = None) -> TableWriter:
    return TableWriter("pulsar://127.0.0.1:1", "t", Identity(), {}, write_identity)


def table(count: int, with_keys: bool = True) -> pa.Table:
    columns: dict[str, Any] = {"value": [b"%d" % row for row in range(count)]}
    if with_keys:
        columns["key"] = [None if row % 5 == 0 else f"k{row % 7}" for row in range(count)]
    return pa.table(columns)


@given(
    partitions=st.integers(0, 4),
    crashes=st.lists(st.integers(0, 3000), max_size=4),
    cuts=st.lists(st.integers(1, 1500), min_size=5, max_size=5),
    with_keys=st.booleans(),
)
def test_a_task_that_runs_again_stores_every_row_once(
    partitions: int, crashes: list[int], cuts: list[int], with_keys: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        broker = Broker(partitions)
        patch.setattr(table_writer, "connect", lambda address, **options: broker)
        rows = table(2500, with_keys)
        for crash, cut in zip([*crashes, None], cuts, strict=False):
            broker.dies_after = crash
            try:  # each run has other Arrow batches
                assert writer(WriteIdentity("q", 3)).write(rows.to_batches(max_chunksize=cut), task=2) == 2500
            except ConnectionLostError:
                continue
        everything = [row[0] for stored in broker.stored.values() for row in stored]
        assert sorted(everything) == sorted(rows.column("value").to_pylist())
        for stored in broker.stored.values():
            numbers = [int(row[0]) for row in stored]
            assert numbers == sorted(numbers)  # in the order of the task


def test_tasks_and_batches_do_not_take_each_other_for_repetitions(broker: Broker) -> None:
    for batch_id in (0, 1, 7):
        for task in range(3):
            assert writer(WriteIdentity("q", batch_id)).write([table(10)], task) == 10
    (stored,) = broker.stored.values()
    assert len(stored) == 90
    assert writer(WriteIdentity("q", 1)).write([table(10)], 0) == 10  # an old batch again
    assert len(stored) == 90
    assert writer(WriteIdentity("other", 1)).write([table(10)], 0) == 10
    assert len(stored) == 100


def test_another_run_of_the_task_is_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.busy = 3
    assert writer(WriteIdentity("q")).write([table(10)]) == 10
    broker.busy = 3
    monkeypatch.setattr(table_writer, "OPEN_SECONDS_MAX", -1)
    with pytest.raises(ProducerBusyError):
        writer(WriteIdentity("q")).write([table(10)])


def test_every_field_reaches_the_producer(broker: Broker) -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    fields = {
        "value": [b"x", None],
        "key": pa.array([b"\x00", None], pa.binary()),
        "properties": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
        "event_time": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
        "ordering_key": [b"o", None],
    }
    assert writer().write([pa.table(fields)]) == 2
    (stored,) = broker.stored.values()
    # event_times_ms, keys, ordering_keys, properties
    assert stored == [(b"x", 1_700_000_000_123, b"\x00", b"o", {"a": "b"}), (None, None, None, None, None)]


def test_names_that_cannot_be_repeated_are_refused() -> None:
    for query, batch_id in (("", 0), ("q", -1), ("q", BATCH_IDS_MAX)):
        with pytest.raises(BadRequestError):
            WriteIdentity(query, batch_id)
