"""Columns and rows that a Dataset does not need: they are not decoded, and counts need no payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from ray.data.expressions import col

import heliograph
from heliograph.client.admin.admin import AdminSync
from heliograph.client.ray_release import has_pushdown
from heliograph.pipelines.planning.conditions import where_of
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.ray_data.dataset import read_topic
from heliograph.pipelines.reading.range_reader import count_ranges
from heliograph.pipelines.streaming.datasets import DatasetStream, stream_datasets
from tests.cluster.support.small_cluster import small_cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # warnings of Ray Data itself
]

ROWS = 900
KEYS = 9


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with small_cluster(tmp_path_factory.mktemp("cluster")):
        AdminSync().create_topic("pruned", 2)
        for part in range(3):
            with heliograph.connect() as client, client.producer("pruned", batch_messages=40) as producer:
                rows = range(part * ROWS // 3, (part + 1) * ROWS // 3)
                producer.send_many([b"%d" % row for row in rows], keys=[f"k{row % KEYS}" for row in rows])
            AdminSync().unload_topic("pruned")
        yield "pruned"


def values(rows: Any) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def test_rows_are_counted_without_payloads(topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_topic(topic, parallelism=3).count() == ROWS
    assert read_topic(topic, on_unreadable="skip").count() == ROWS
    assert read_topic(topic, where=[("__key", "==", "k4")]).count() == ROWS // KEYS

    def refuse(*_: Any) -> None:
        raise AssertionError("a count decodes no payload")

    monkeypatch.setattr("heliograph.pipelines.reading.columns.Rows.add_entry", refuse)
    assert count_ranges(plan_topic(topic)) == ROWS


def test_conditions_choose_rows(topic: str) -> None:
    chosen = read_topic(topic, where=[("__key", "in", ["k1", b"k2"])], columns=("value",))
    assert chosen.schema().names == ["value"]
    assert values(chosen.take_all()) == [row for row in range(ROWS) if row % KEYS in (1, 2)]
    times = [row["__publishTime"] for row in read_topic(topic, columns=("__publishTime",)).take_all()]
    middle = sorted(times)[ROWS // 2]
    after = read_topic(topic, where=[("__publishTime", ">=", middle)]).count()
    assert after == sum(time >= middle for time in times)
    (row,) = read_topic(topic, where=[("__key", "==", "k5")]).take(1)
    named = [("__messageId", "==", row["__messageId"])]
    assert read_topic(topic, where=named).take_all() == [row]
    assert [piece.entries for piece in plan_topic(topic, where=where_of(named))] == [1]


@pytest.mark.skipif(not has_pushdown(), reason="an older Ray does not tell what it needs")
def test_ray_data_tells_what_it_needs(topic: str) -> None:
    keyed = read_topic(topic).select_columns(["__key"])
    assert keyed.schema().names == ["__key"]
    assert sorted({row["__key"] for row in keyed.take_all()}) == [b"k%d" % number for number in range(KEYS)]
    wanted = [row for row in range(ROWS) if row % KEYS == 3]
    filtered = read_topic(topic).filter(expr=col("__key") == b"k3")
    assert values(filtered.take_all()) == wanted
    assert filtered.count() == len(wanted)
    assert values(filtered.select_columns(["value"]).take_all()) == wanted
    mixed = read_topic(topic).filter(expr=(col("__key") == b"k3") & (col("value") == b"3"))
    assert values(mixed.take_all()) == [3]
    either = read_topic(topic).filter(expr=(col("__key") == b"k3") | (col("value") == b"1"))
    assert values(either.take_all()) == sorted([*wanted, 1])


def test_a_stream_of_datasets_goes_on_with_the_batch_that_was_not_committed(topic: str, tmp_path: Path) -> None:
    def batches() -> Iterator[tuple[int, list[int]]]:
        stream = stream_datasets(topic, checkpoint=tmp_path, entries_per_batch=6, until_caught_up=True)
        for batch_id, dataset in stream:
            yield batch_id, values(dataset.take_all())

    begun = batches()
    first, interrupted = next(begun), next(begun)
    begun.close()  # type: ignore[attr-defined]
    rest = list(batches())
    assert rest[0] == interrupted
    assert [batch_id for batch_id, _ in [first, *rest]] == list(range(len(rest) + 1))
    assert sorted(row for _, rows in [first, *rest] for row in rows) == list(range(ROWS))
    assert list(batches()) == []
    (subscription,) = AdminSync().subscriptions(topic)
    assert subscription.startswith("stream-")
    assert AdminSync().topic_stats(topic)["subscriptions"][subscription]["msgBacklog"] == 0
    AdminSync().delete_subscription(topic, subscription)


def test_rows_for_training_go_on_in_their_order(topic: str, tmp_path: Path) -> None:
    def begun() -> DatasetStream:
        return stream_datasets(
            topic, checkpoint=tmp_path, entries_per_batch=9, until_caught_up=True, start="earliest", columns=("value",)
        )

    def numbers(batches: Iterable[dict[str, Any]]) -> list[int]:
        return [int(value) for batch in batches for value in batch["value"]]

    whole = numbers(begun().iter_batches(100))
    assert sorted(whole) == list(range(ROWS))
    (subscription,) = AdminSync().subscriptions(topic)
    AdminSync().delete_subscription(topic, subscription)
    for file in tmp_path.iterdir():
        file.unlink()
    first = begun()
    seen = numbers(islice(first.iter_batches(100), 3))
    state = first.state_dict()
    assert numbers(islice(first.iter_batches(100), 9))
    first.close()
    again = begun()
    again.load_state_dict(state)
    assert seen + numbers(again.iter_batches(100)) == whole
    AdminSync().delete_subscription(topic, f"stream-{state['stream']}")
