"""Topics as Ray Datasets on a real cluster: every row, its columns and its order, and writing to a topic."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray.data

import heliograph
from heliograph.base.errors import (
    BadRequestError,
    DataLostError,
    IncompatibleSchemaError,
    TopicNotFoundError,
    UnsupportedError,
)
from heliograph.client.admin.admin import AdminSync
from heliograph.cluster.config import ClusterConfig
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.ray_data.dataset import read_topic, write_dataset
from heliograph.pipelines.reading.range_reader import read_ranges
from heliograph.protocol.message_id import MessageId
from tests.cluster.support.small_cluster import small_cluster
from tests.waits import block_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore"),  # warnings of Ray Data itself
]

ROWS = 5_000
PARTITIONS = 3


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterConfig]:
    with small_cluster(tmp_path_factory.mktemp("cluster")) as config:
        yield config


@pytest.fixture(scope="module")
def topic(cluster: ClusterConfig) -> str:
    """Return a partitioned topic, striped (E > Qw), with ROWS messages under 50 keys."""
    AdminSync().create_topic("readings", PARTITIONS, {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2})
    with heliograph.connect() as client, client.producer("readings", batch_messages=100) as producer:
        values = [json.dumps({"row": row}).encode() for row in range(ROWS)]
        producer.send_many(values, keys=[f"k{row % 50}" for row in range(ROWS)])
    return "readings"


def rows_of(batches: Any) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def test_every_row_with_its_columns(topic: str) -> None:
    found = read_topic(topic, parallelism=4).take_all()
    assert sorted(json.loads(row["value"])["row"] for row in found) == list(range(ROWS))
    assert len({row["__messageId"] for row in found}) == ROWS
    for row in found[:100]:
        number = json.loads(row["value"])["row"]
        message_id = MessageId.from_bytes(row["__messageId"])
        assert row["__key"] == f"k{number % 50}".encode()
        assert row["__topic"] == f"persistent://public/default/readings-partition-{message_id.partition}"
        assert row["__publishTime"] is not None
        assert row["__eventTime"] is None


def test_publish_order_within_a_partition(topic: str) -> None:
    by_key: dict[bytes, list[int]] = defaultdict(list)
    for row in rows_of(read_ranges(plan_topic(topic), ("__key", "value"))):
        by_key[row["__key"]].append(json.loads(row["value"])["row"])
    assert len(by_key) == 50
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_columns_and_ranges_can_be_chosen(topic: str) -> None:
    dataset = read_topic(topic, columns=("__key",))
    assert dataset.schema().names == ["__key"]
    assert dataset.count() == ROWS
    whole = plan_topic(topic)
    middle = {piece.partition: (piece.ledger_id, piece.last_entry_id // 2) for piece in whole}
    before, after = read_topic(topic, end=middle).count(), read_topic(topic, start=middle).count()
    assert before > 0
    assert after > 0
    assert before + after == ROWS
    with pytest.raises(BadRequestError, match="nonsense"):
        read_topic(topic, columns=("nonsense",))


def test_a_dataset_goes_into_a_topic_and_back(topic: str) -> None:
    AdminSync().create_topic("copies")
    source = ray.data.from_items([{"name": f"n{row % 7}", "text": f"text {row}"} for row in range(1000)])
    write_dataset(source, "copies", value="text", key="name")
    found = read_topic("copies").take_all()
    assert sorted(row["value"] for row in found) == sorted(f"text {row}".encode() for row in range(1000))
    assert all(row["__key"] == b"n%d" % (int(row["value"].split()[1]) % 7) for row in found)


def test_rows_that_are_written_again_are_stored_once(cluster: ClusterConfig) -> None:
    admin = AdminSync()
    admin.create_topic("once", 2)
    rows = [{"value": None if row == 7 else b"%d" % row, "key": b"\xff%d" % (row % 9)} for row in range(300)]
    source = ray.data.from_items(rows, override_num_blocks=1)
    with pytest.raises(UnsupportedError, match="does not deduplicate"):
        write_dataset(source, "once", key="key", query="copy")
    admin.namespaces.set_topic_policies("once", {"deduplication": True})
    block_until(lambda: admin.topic_stats("once-partition-0")["deduplicationStatus"] == "Enabled")
    for batch_id in (0, 0, 1, 1, 0):
        write_dataset(source, "once", key="key", query="copy", batch_id=batch_id)
    found = read_topic("once", columns=("__key", "value")).take_all()
    expected = sorted((row["key"], row["value"] or b"") for row in rows) * 2
    assert sorted((row["__key"], row["value"] or b"") for row in found) == sorted(expected)
    assert sum(row["value"] is None for row in found) == 2


def test_a_write_that_failed_is_completed_by_the_next_run(cluster: ClusterConfig, tmp_path: Path) -> None:
    """A write task dies once and is run again, then the write fails; in the next run, blocks are ready in another
    order."""
    admin = AdminSync()
    admin.create_topic("completed")
    admin.namespaces.set_topic_policies("completed", {"deduplication": True})
    block_until(lambda: admin.topic_stats("completed")["deduplicationStatus"] == "Enabled")
    wanted = [b"%d" % row for row in range(8_000)]

    def rows(slow: int, bad: int) -> ray.data.Dataset:
        def made(batch: pa.Table) -> pa.Table:
            numbers = batch.column("id").to_pylist()
            while numbers[0] // 1_000 == slow and len(list(tmp_path.glob("done-*"))) < 7:
                time.sleep(0.01)  # ends by the time-out of the test at the latest
            (tmp_path / f"done-{numbers[0]}").touch()
            keys: list[Any] = ["k" * 9_000 if number == bad else None for number in numbers]
            return pa.table({"value": [b"%d" % number for number in numbers], "key": pa.array(keys, pa.string())})

        source = ray.data.range(8_000, override_num_blocks=8)
        return source.map_batches(made, batch_format="pyarrow", batch_size=None, num_cpus=0.1)

    with pytest.raises(Exception, match="row 500 of its task") as failed:
        write_dataset(rows(slow=0, bad=4_500), "completed", key="key", query="copy")
    assert any("query='copy'" in note for note in failed.value.__notes__)
    for file in tmp_path.glob("done-*"):
        file.unlink()
    assert write_dataset(rows(slow=5, bad=-1), "completed", key="key", query="copy") == 8_000
    found = [bytes(row["value"]) for row in read_topic("completed", columns=("value",)).take_all()]
    assert sorted(found) == sorted(wanted)


def test_rows_name_their_topics_and_have_a_schema(cluster: ClusterConfig) -> None:
    admin = AdminSync()
    for name in ("of-a", "of-b"):
        admin.create_topic(name)
    items = [{"id": row, "name": f"n{row}", "where": f"of-{'ab'[row % 2]}"} for row in range(100)]
    source = ray.data.from_items(items)
    assert write_dataset(source, ["of-a", "of-b"], value=None, topic_column="where", schema="avro") == 100
    found = read_topic("of-b", schema="registry", columns=("value",)).take_all()
    assert sorted(row["id"] for row in found) == list(range(1, 100, 2))
    with pytest.raises(IncompatibleSchemaError):
        write_dataset(ray.data.from_items([{"id": "text"}]), "of-a", value=None, schema="avro")


def test_an_empty_topic_has_no_rows(cluster: ClusterConfig) -> None:
    AdminSync().create_topic("empty", 2)
    assert plan_topic("empty") == []
    assert read_topic("empty").count() == 0


def test_blocks_of_which_nothing_is_left_are_written_too(cluster: ClusterConfig) -> None:
    rows = ray.data.range(100, override_num_blocks=4).filter(lambda row: row["id"] < 3)
    write_dataset(rows.map(lambda row: {"value": str(row["id"])}), "few")
    assert sorted(bytes(row["value"]) for row in read_topic("few").take_all()) == [b"0", b"1", b"2"]


def test_a_topic_that_is_not_there(cluster: ClusterConfig) -> None:
    with pytest.raises(TopicNotFoundError):
        read_topic("nowhere")


def test_rows_that_retention_deleted_are_missed_and_rows_that_were_read_are_not(cluster: ClusterConfig) -> None:
    admin = AdminSync()
    admin.create_topic("trimmed")
    first = publish_in_a_ledger_of_its_own(admin, "trimmed", b"1")
    second = publish_in_a_ledger_of_its_own(admin, "trimmed", b"2")
    assert admin.truncate_topic("trimmed") >= 2
    with heliograph.connect() as client, client.producer("trimmed") as producer:
        producer.send(b"3")
    with pytest.raises(DataLostError, match="2 entries") as raised:
        read_topic("trimmed", start={-1: first})
    assert raised.value.wanted == first
    rest = read_topic("trimmed", start={-1: first}, on_data_loss="skip", columns=("value",))
    assert rest.take_all() == [{"value": b"3"}]
    assert read_topic("trimmed", start={-1: (second[0], 1)}).count() == 1
    assert read_topic("trimmed").count() == 1
    admin.delete_topic("trimmed", force=True)
    admin.create_topic("trimmed")
    with pytest.raises(DataLostError, match="created again"):
        read_topic("trimmed", start={-1: (second[0], 1)})


def test_the_compacted_form_has_the_latest_message_of_each_key(cluster: ClusterConfig) -> None:
    admin = AdminSync()
    admin.create_topic("prices")
    with heliograph.connect() as client, client.producer("prices") as producer:
        producer.send_many([b"%d" % row for row in range(30)], keys=[f"k{row % 3}" for row in range(30)])
        assert read_topic("prices", compacted=True).count() == 30  # nothing was compacted yet
        admin.compact_topic("prices")
        while (status := admin.compaction_status("prices"))["status"] == "RUNNING":
            time.sleep(0.05)
        assert status["status"] == "SUCCESS", status
        producer.send(b"30", key="k0")
    found = read_topic("prices", compacted=True, columns=("value", "__key", "__messageId")).take_all()
    assert [row["value"] for row in found] == [b"27", b"28", b"29", b"30"]
    assert [row["value"] for row in read_topic("prices", latest=True).take_all()] == [b"28", b"29", b"30"]
    raw = {
        row["__messageId"]: row for row in read_topic("prices", columns=("value", "__key", "__messageId")).take_all()
    }
    assert all(raw[row["__messageId"]] == row for row in found)
    with heliograph.connect() as client, client.producer("prices") as producer:
        producer.send(None, key="k1")
    admin.compact_topic("prices")
    block_until(lambda: admin.compaction_status("prices")["status"] != "RUNNING")
    found = read_topic("prices", compacted=True, columns=("value", "__key")).take_all()
    assert [row["__key"] for row in found] == [b"k2", b"k0", b"k1"], "a dataset hears of the deletion, too"
    assert not found[-1]["value"]
    assert read_topic("prices", latest=True).count() == 2
    with pytest.raises(BadRequestError, match="compacted"):
        read_topic("prices", compacted=True, start={-1: (0, 0)})


def publish_in_a_ledger_of_its_own(admin: AdminSync, topic: str, value: bytes) -> tuple[int, int]:
    """Publish a message, end its ledger, and return its position."""
    with heliograph.connect() as client, client.producer(topic) as producer:
        message_id = producer.send(value)
    admin.unload_topic(topic)
    return message_id.ledger_id, message_id.entry_id


def test_a_plan_stays_as_it_was_and_can_be_refreshed(topic: str) -> None:
    AdminSync().create_topic("growing")
    with heliograph.connect() as client, client.producer("growing") as producer:
        producer.send_many([b"1", b"2"])
        plan = plan_topic("growing")
        producer.send_many([b"3"])
        assert [row["value"] for row in rows_of(read_ranges(plan))] == [b"1", b"2"]  # I3
        again = refresh_addresses(plan)  # its grants end later
        assert [one.without_grant() for one in again] == [one.without_grant() for one in plan]
        later = plan_topic("growing", start={-1: (plan[-1].ledger_id, plan[-1].last_entry_id + 1)})
        assert [row["value"] for row in rows_of(read_ranges(later))] == [b"3"]
