"""Rows into messages, once: whatever a run of a task has stored, the next one stores the rest and nothing twice."""

from __future__ import annotations

import base64
import json
import pickle
import threading
from concurrent.futures import Future
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.broker.dedup.dedup import PRODUCERS_REMEMBERED_MAX
from heliograph.base.errors import (
    BadRequestError,
    ConnectionLostError,
    HeliographError,
    MayBeTwiceError,
    MessageTooLargeError,
    ProducerBusyError,
    UnsupportedError,
)
from heliograph.client.identity import Identity
from heliograph.client.schemas.decoding import decoder_of
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.reading.shapes.values import arrow_type
from heliograph.pipelines.writing import row_groups, table_writer, topic_rows
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.identity import BATCH_IDS_MAX, EARLY_BATCHES, EPOCH_BITS, TASKS_MAX, WriteIdentity
from heliograph.pipelines.writing.in_flight import InFlight
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.records import record_of_columns
from heliograph.pipelines.writing.table_writer import TableWriter
from heliograph.pipelines.writing.topic_schema import RowSchema, schema_of_topic

TOPIC = "persistent://public/default/t"


class Broker:
    """Topics that deduplicate by producer name, as far as a writer sees them. It may die after some messages."""

    def __init__(self, partitions: int = 0) -> None:
        self.count = partitions
        self.stored: dict[str, list[tuple[Any, ...]]] = {}
        self.last: dict[tuple[str, str], int] = {}
        self.dies_after: int | None = None
        self.busy = 0
        self.forgotten = -1, -1  # highest sequence id, and time
        self.schemas: list[Any] = []

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *failure: object) -> None:
        pass

    def partitions(self, topic: str) -> int:
        return self.count

    def producer(self, topic: str, **options: Any) -> Producer:
        name = options.get("name", "")
        assert options.get("stop_at_failure") or "@" in name, "what a topic holds of a task has no gap"
        self.schemas.append(options["schema"])
        return Producer(self, topic, options.get("name", ""), options.get("initial_sequence_id", -1))


class Producer:
    def __init__(self, broker: Broker, topic: str, name: str, initial: int) -> None:
        self._broker, self._topic, self._name, self._next = broker, topic, name, initial + 1
        self.last_sequence_id = broker.last.get((topic, name), -1)
        if "/@" in name:
            self.last_sequence_id = broker.forgotten["/@time." in name]
        self._failure: HeliographError | None = None

    def open(self) -> Producer:
        if self._broker.busy:
            self._broker.busy -= 1
            raise ProducerBusyError
        return self

    def close(self) -> None:
        pass

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def send_many_async(self, values: list[Any], **columns: list[Any]) -> Future[None]:
        sent: Future[None] = Future()
        try:
            self._send(values, columns)
            sent.set_result(None)
        except HeliographError as error:
            self._failure = error
            sent.set_exception(error)
        return sent

    def _send(self, values: list[Any], columns: dict[str, list[Any]]) -> None:
        if self._failure is not None:
            raise self._failure
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
    monkeypatch.setattr(topic_rows, "OPEN_PAUSE_SECONDS", 0)
    return one


def writer(
    write_identity: WriteIdentity | None = None,
    columns: WrittenColumns | None = None,
    schema: RowSchema | None = None,
) -> TableWriter:
    columns = columns or WrittenColumns()
    return TableWriter("pulsar://127.0.0.1:1", TOPIC, Identity(), {}, write_identity, columns, schema=schema)


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
            columns = WrittenColumns("value", {"key": "key"} if with_keys else {})
            try:  # each run has other Arrow batches
                assert writer(WriteIdentity("q", 3), columns).write(rows.to_batches(max_chunksize=cut), task=2) == 2500
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
    monkeypatch.setattr(topic_rows, "OPEN_SECONDS_MAX", -1)
    with pytest.raises(ProducerBusyError):
        writer(WriteIdentity("q")).write([table(10)])


def test_brokers_that_are_away_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [ConnectionLostError("away"), ConnectionLostError("away"), Broker()]

    def connect(address: str, **options: Any) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(table_writer, "connect", connect)
    monkeypatch.setattr(table_writer, "CONNECT_PAUSE_SECONDS", 0)
    assert writer(columns=WrittenColumns()).write([table(10)]) == 10
    answers.append(ConnectionLostError("away"))
    monkeypatch.setattr(table_writer, "CONNECT_SECONDS_MAX", -1)
    with pytest.raises(ConnectionLostError):
        writer().write([table(10)])


def test_every_field_reaches_the_producer(broker: Broker) -> None:
    moment = datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    fields = {
        "value": [b"x", None],
        "key": pa.array([b"\x00", None], pa.binary()),
        "properties": pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())),
        "event_time": pa.array([moment, None], pa.timestamp("us", tz="UTC")),
        "ordering_key": [b"o", None],
    }
    fields["deliver_at"] = pa.array([None, 1_800_000_000_000], pa.int64())
    names = {name: name for name in fields if name != "value"}
    assert writer(columns=WrittenColumns("value", names)).write([pa.table(fields)]) == 2
    (stored,) = broker.stored.values()
    # deliver_times_ms, event_times_ms, keys, ordering_keys, properties
    assert stored == [
        (b"x", None, 1_700_000_000_123, b"\x00", b"o", {"a": "b"}),
        (None, 1_800_000_000_000, None, None, None, None),
    ]


def test_each_row_goes_to_the_topic_that_it_names(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pa.table({"value": ["1", "2", "3", "4"], "where": ["a", "persistent://public/default/b", None, "a"]})
    columns = WrittenColumns("value", {"topic_column": "where"})
    for _ in range(2):
        assert writer(WriteIdentity("q"), columns).write([rows]) == 4
    assert {topic: [row[0] for row in stored] for topic, stored in broker.stored.items()} == {
        "persistent://public/default/a": ["1", "4"],
        "persistent://public/default/b": ["2"],
        "persistent://public/default/t": ["3"],
    }
    nowhere = TableWriter("pulsar://127.0.0.1:1", None, Identity(), columns=columns)
    with pytest.raises(BadRequestError, match="'where', row 2"):
        nowhere.write([rows])
    known = TableWriter(
        "pulsar://127.0.0.1:1", "t", Identity(), columns=columns, topics=frozenset({"persistent://public/default/a"})
    )
    with pytest.raises(BadRequestError, match="'where', row 1") as refused:
        known.write([rows])
    assert refused.value.limit == "persistent://public/default/a"
    monkeypatch.setattr(topic_rows, "TOPICS_MAX", 2)
    with pytest.raises(BadRequestError, match="too many topics"):
        writer(columns=columns).write([rows])


@pytest.mark.parametrize(
    ("field", "cells", "told"),
    [
        ("event_time", pa.array([0, -5]), "row 2001 .* -5 ms"),
        ("deliver_at", pa.array([0, 1 << 63], pa.uint64()), "row 2001"),
        ("deliver_after", pa.array([0.5, -1.0]), "row 2001 .* -1.0 s"),
        ("properties", pa.array([[], [("a", None)]], pa.map_(pa.string(), pa.string())), "row 2001 .* 'a' is None"),
        ("topic_column", pa.array(["a", "x://y"]), "row 2001 .*x://y"),
        ("key", pa.array([1, 2]), "has the type int64, which is none for key"),
        ("properties", pa.array(["a", "b"]), "has the type string"),
        ("event_time", pa.array(["a", "b"]), "has the type string"),
    ],
)
def test_a_row_that_is_not_acceptable_is_named(broker: Broker, field: str, cells: pa.Array, told: str) -> None:
    good = pa.table({"value": [b"x"] * 2000, "c": pa.nulls(2000)})
    with pytest.raises(BadRequestError, match=f"column 'c'.*{told}") as refused:
        writer(columns=WrittenColumns("value", {field: "c"})).write([good, pa.table({"value": [b"x"] * 2, "c": cells})])
    assert refused.value.field == "c"
    assert refused.value.limit


def test_a_row_that_is_too_large_is_named(broker: Broker) -> None:
    group = row_groups.RowGroup(range(40, 43), [b"", b"long", None], {"properties": [{"a": "b" * 8000}, None, {}]}, 0)
    error = group.named(MessageTooLargeError("the key and properties", field="properties", limit="7168 bytes"))
    assert str(error).startswith("row 40 of its task")
    error = group.chosen([1, 2]).named(MessageTooLargeError("a message", field="value", limit="1 byte"))
    assert (str(error), error.limit) == ("row 41 of its task: a message", "1 byte")


def test_what_is_in_flight_is_bounded_in_bytes() -> None:
    flight = InFlight(100)
    sent: list[Future[None]] = [Future() for _ in range(3)]
    for one in sent[:2]:
        flight.make_room(50)
        flight.add(one, 50, lambda error: error)
    threading.Timer(0.01, lambda: sent[0].set_result(None)).start()
    flight.make_room(50)  # waits for the first alone
    assert sent[0].done()
    flight.add(sent[2], 50, lambda error: error)
    sent[1].set_exception(ConnectionLostError("gone"))
    with pytest.raises(ConnectionLostError, match="gone"):
        flight.wait()


SHAPE = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("price", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
        ("of", pa.struct([("x", pa.float32()), ("y", pa.map_(pa.string(), pa.int32()))])),
        ("raw", pa.binary()),
    ]
)
MOMENT = datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
ROW = {
    "id": 1,
    "at": MOMENT,
    "day": MOMENT.date(),
    "price": Decimal("12.30"),
    "tags": ["a", None],
    "of": {"x": 0.5, "y": [("k", 7)]},
    "raw": b"\x00\xff",
}


def test_rows_are_encoded_by_a_record_of_their_columns_and_read_back(broker: Broker) -> None:
    rows = pa.Table.from_pylist([ROW, dict.fromkeys(ROW)], SHAPE)
    record = record_of_columns("avro", SHAPE)
    assert writer(columns=WrittenColumns(None), schema=record).write([rows]) == 2
    assert [schema.info for schema in broker.schemas] == [record.info]
    (stored,) = broker.stored.values()
    decode = decoder_of(record.info, record.info)
    found = pa.Table.from_pylist([decode(row[0], None) for row in stored], pa.schema(arrow_type(record.info)))
    assert found.cast(SHAPE).to_pylist() == rows.to_pylist()


def test_a_column_of_structs_can_be_null_and_json_leaves_nulls_out(broker: Broker) -> None:
    kind = pa.struct([("id", pa.int64()), ("at", pa.timestamp("ms", tz="UTC")), ("day", pa.date32())])
    rows = pa.table({"value": pa.array([{"id": 1, "at": MOMENT.replace(microsecond=0), "day": None}, None], kind)})
    writer(schema=record_of_columns("json", kind)).write([rows])
    (stored,) = broker.stored.values()
    assert [row[0] for row in stored] == [b'{"id":1,"at":1700000000000}', None]
    with pytest.raises(BadRequestError, match=r"'price' .* JSON does not hold"):
        writer(columns=WrittenColumns(None), schema=record_of_columns("json", SHAPE)).write(
            [pa.Table.from_pylist([ROW], SHAPE)]
        )


def test_a_whole_row_without_a_schema_is_json_as_spark_reads_it(broker: Broker) -> None:
    shape = SHAPE.append(pa.field("__key", pa.string()))
    writer(columns=WrittenColumns(None, {"key": "__key"})).write([pa.Table.from_pylist([{**ROW, "__key": "k"}], shape)])
    ((value, key),) = broker.stored[TOPIC]
    assert key == "k"
    assert json.loads(value) == {
        "id": 1,
        "at": "2023-11-14T22:13:20.123456+00:00",
        "day": "2023-11-14",
        "price": "12.30",
        "tags": ["a", None],
        "of": {"x": 0.5, "y": {"k": 7}},
        "raw": "AP8=",
    }
    numbers = pa.table({"a": [float("nan")], "b": [float("-inf")], "c": [0.5]})
    writer(WriteIdentity("q"), WrittenColumns(None)).write([numbers])
    assert broker.stored[TOPIC][-1] == (b'{"a":"NaN","b":"-Infinity","c":0.5}',)


def test_rows_that_a_topics_schema_does_not_take_are_refused_by_name(broker: Broker) -> None:
    fields = [{"name": "id", "type": "int"}, {"name": "name", "type": "string", "default": ""}]
    definition = json.dumps({"type": "record", "name": "Sale", "fields": fields}).encode()
    record = schema_of_topic("t", [{"type": "AVRO", "data": base64.b64encode(definition).decode()}])
    record.check(["id"])
    for names, told in (["id", "price"], "no field 'price'"), (["name"], "'id', which no column holds"):
        with pytest.raises(BadRequestError, match=told):
            record.check(names)
    rows = pa.table({"id": [1, 1 << 40]})
    with pytest.raises(BadRequestError, match="column 'id', row 1 of its task"):
        writer(columns=WrittenColumns(None), schema=record).write([rows])
    with pytest.raises(UnsupportedError):
        schema_of_topic("t", [{"type": "STRING", "data": ""}])


@pytest.mark.parametrize(("name", "kind"), [("a b", pa.int64()), ("a", pa.uint64()), ("a", pa.duration("s"))])
def test_columns_that_no_record_has_are_named(name: str, kind: pa.DataType) -> None:
    with pytest.raises(BadRequestError, match=f"column '{name}'"):
        record_of_columns("avro", [pa.field(name, kind)])


def test_it_has_to_be_said_which_topics_are_written() -> None:
    here, column = ClusterAccess(identity=Identity()), WrittenColumns("value", {"topic_column": "where"})
    cases: list[tuple[Any, WrittenColumns, WriteIdentity | None]] = [
        (None, WrittenColumns(), None),
        (["a", "b"], WrittenColumns(), None),
        (None, column, WriteIdentity("q")),
        ("a", column, WriteIdentity("q")),
    ]
    for topic, columns, write_identity in cases:
        with pytest.raises(BadRequestError) as refused:
            TableWriter.create(topic, WriteOptions(columns, here, write_identity=write_identity))
        assert refused.value.field == "topic"
    made = TableWriter.create(["a", "b"], WriteOptions(column, here, "pulsar://127.0.0.1:1"))
    assert (made.topic, len(made.topics)) == (None, 2)
    with pytest.raises(BadRequestError, match="not both"):
        WrittenColumns("value", {"deliver_at": "a", "deliver_after": "b"})


def test_names_that_cannot_be_repeated_are_refused() -> None:
    for query, batch_id in (("", 0), ("q", -1), ("q", BATCH_IDS_MAX), ("q/~3", 0)):
        with pytest.raises(BadRequestError):
            WriteIdentity(query, batch_id)
    assert BATCH_IDS_MAX >= 1 << 40


BATCHES = st.one_of(
    st.integers(0, BATCH_IDS_MAX - 1),
    st.sampled_from([EARLY_BATCHES, 1 << EPOCH_BITS, 5 << EPOCH_BITS, BATCH_IDS_MAX]).flatmap(
        lambda edge: st.integers(edge - 3, min(edge + 3, BATCH_IDS_MAX - 1))
    ),
)


@given(one=BATCHES, other=BATCHES, tasks=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_rows_of_batches_and_tasks_never_share_a_number_and_grow_under_a_name(
    one: int, other: int, tasks: tuple[int, int]
) -> None:
    first, second = WriteIdentity("q", min(one, other)), WriteIdentity("q", max(one, other))
    names = first.producer_name(tasks[0]), second.producer_name(tasks[1])
    assert (names[0].removeprefix(first.prefix), names[1].removeprefix(second.prefix)) == tuple(map(str, tasks))
    for identity in (first, second):
        assert 0 <= identity.first_sequence_id < (1 << 63) - identity.rows_max
        assert identity.rows_max >= 1 << 31
    if first.prefix == second.prefix and first != second:
        assert first.first_sequence_id + first.rows_max <= second.first_sequence_id
    if tasks[0] != tasks[1]:
        assert names[0] != names[1]


@given(batch_id=st.integers(0, EARLY_BATCHES - 1), task=st.integers(0, 1 << 20))
def test_early_batches_are_numbered_as_other_versions_do(batch_id: int, task: int) -> None:
    """A stream that runs goes over at a batch that other versions cannot write, so none is written under two names."""
    identity = WriteIdentity("q", batch_id)
    assert (identity.producer_name(task), identity.first_sequence_id) == (f"q/{task}", batch_id << 40)


def test_a_stream_goes_over_to_another_epoch_and_a_batch_that_runs_again_is_known(broker: Broker) -> None:
    edges = [EARLY_BATCHES - 1, EARLY_BATCHES, (1 << EPOCH_BITS) - 1, 1 << EPOCH_BITS]
    for batch_id in (*edges, *edges):
        assert writer(WriteIdentity("q", batch_id)).write([table(10)]) == 10
    (stored,) = broker.stored.values()
    assert len(stored) == 10 * len(edges)
    assert {name for _, name in broker.last} == {"q/0", "q/~0/0", "q/~1/0"}


def test_a_task_with_more_rows_than_numbers_is_refused(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WriteIdentity, "rows_max", 15)
    with pytest.raises(BadRequestError, match="too many rows"):
        writer(WriteIdentity("q")).write([table(10), table(10)])
    assert sum(map(len, broker.stored.values())) <= 10


def test_more_tasks_than_a_broker_remembers_are_refused(broker: Broker) -> None:
    assert TASKS_MAX == PRODUCERS_REMEMBERED_MAX
    with pytest.raises(BadRequestError, match="coalesce") as caught:
        writer(WriteIdentity("q")).write([table(10)], TASKS_MAX)
    assert (caught.value.limit, broker.stored) == ("10000 tasks", {})
    assert writer(WriteIdentity("q")).write([table(10)], TASKS_MAX - 1) == 10
    assert writer(WriteIdentity("q", writes_in_doubt=True)).write([table(10)], TASKS_MAX) == 10


@pytest.mark.parametrize("last", [-1, 2 << 40, (3 << 40) - 1])
def test_a_batch_that_no_forgotten_task_wrote_is_written(broker: Broker, last: int) -> None:
    broker.forgotten = last, 1_000
    assert writer(WriteIdentity("q", 3)).write([table(10)]) == 10


@pytest.mark.parametrize("last", [3 << 40, 7 << 40])
def test_a_batch_that_a_forgotten_task_wrote_is_in_doubt(broker: Broker, last: int) -> None:
    broker.forgotten = last, 86_400_000
    with pytest.raises(MayBeTwiceError, match="1970-01-02T00:00:00") as caught:
        writer(WriteIdentity("q", 3)).write([table(10)])
    assert (caught.value.query, caught.value.field, broker.stored) == ("q", "on_doubt", {})
    assert pickle.loads(pickle.dumps(caught.value)).since_ms == 86_400_000
    assert writer(WriteIdentity("q", 3, writes_in_doubt=True)).write([table(10)]) == 10
    assert writer(WriteIdentity("q", 3)).write([table(10)]) == 10  # this task is known now
    assert sum(map(len, broker.stored.values())) == 10
