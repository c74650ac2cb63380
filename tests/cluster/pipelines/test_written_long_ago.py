"""A query that comes back after its topic forgot it, over a real broker that was restarted in between."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

import heliograph
from heliograph.base.errors import MayBeTwiceError
from heliograph.client.identity import Identity
from heliograph.pipelines.writing.columns import WrittenColumns
from heliograph.pipelines.writing.identity import WriteIdentity
from heliograph.pipelines.writing.table_writer import TableWriter
from heliograph.protocol.batch import FORGOTTEN_LAST

TOPIC = "persistent://public/default/copies"
POLICIES = "/admin/v2/namespaces/public/default"
BROKER = {"housekeeping_seconds": 0.1}


def write(url: str, batch_id: int, writes_in_doubt: bool = False) -> int:
    identity = WriteIdentity("copy", batch_id, writes_in_doubt)
    writer = TableWriter(url, TOPIC, Identity(), {}, identity, WrittenColumns())
    return writer.write([pa.table({"value": [b"a", b"b", b"c"]})], 0)


def stored(url: str) -> int:
    with heliograph.connect(url) as client, client.reader(TOPIC, start="earliest") as reader:
        count = 0
        while found := reader.receive_many(100, timeout=1):
            count += len(found)
        return count


def wait_until_forgotten(url: str) -> None:
    deadline = time.monotonic() + 60
    with heliograph.connect(url) as client:
        while time.monotonic() < deadline:
            with client.producer(TOPIC, name=f"copy/{FORGOTTEN_LAST}test").open() as producer:
                if producer.last_sequence_id >= 0:
                    return
            time.sleep(0.1)
    raise AssertionError("the producer was not forgotten")


def test_a_query_that_was_forgotten_is_not_doubled_in_silence(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, broker=BROKER) as cluster:
        httpx.post(f"{cluster.http_url}{POLICIES}/deduplication", json=True).raise_for_status()
        assert write(cluster.service_url, 3) == 3  # a first run raises nothing
        with heliograph.connect(cluster.service_url) as client:
            client.admin.namespaces.set_policies("public/default", {"deduplication_seconds": 0})
        wait_until_forgotten(cluster.service_url)
    with heliograph.local(tmp_path, broker=BROKER) as cluster:
        with pytest.raises(MayBeTwiceError, match="copy"):
            write(cluster.service_url, 3)
        assert stored(cluster.service_url) == 3
        assert write(cluster.service_url, 4) == 3  # nothing forgotten wrote that batch
        assert write(cluster.service_url, 5, writes_in_doubt=True) == 3
        assert stored(cluster.service_url) == 9
