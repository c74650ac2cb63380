"""Spans leave a cluster by OTLP over HTTP: of messages, of requests, and of tables that are written and read."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import heliograph
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.reading.range_reader import read_ranges
from heliograph.pipelines.writing.options import WriteOptions
from heliograph.pipelines.writing.table_writer import TableWriter
from heliograph.standalone.local import LocalCluster
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import TRACEPARENT, parsed
from heliograph.tracing.tracer import SpanKind
from tests.collector import Collector, attributes_of

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
TOPIC = "persistent://public/default/orders"
ADDS = tuple(f"add bookie-{number}" for number in (1, 2, 3))
SECONDS = 60


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `tracing`")
    with Collector() as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")  # ms between batches of spans, 5,000 otherwise
    settings = {"tracing": {"sampled_share": 1.0, "endpoint": collector.url}}
    with heliograph.local(tmp_path, bookies=3, broker=settings, gateway=settings) as made:
        yield made


def test_a_request_and_the_way_of_its_message_arrive_as_one_trace(cluster: LocalCluster, collector: Collector) -> None:
    with cluster.connect() as client, client.consumer("orders", "audit") as consumer:
        url = f"{cluster.http_url}/topics/persistent/public/default/orders"
        body = json.dumps({"messages": [{"payload": "21.5"}]}).encode()
        headers = {"Content-Type": "application/json", TRACEPARENT: PARENT}
        urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=SECONDS).read()
        consumer.ack(consumer.receive(timeout=SECONDS))
    steps = ("POST", *ADDS, *(f"{step} {TOPIC}" for step in ("send", "publish", "receipt", "dispatch", "acknowledge")))
    found = collector.spans_of(TRACE, *steps)
    assert found.keys() == {*steps}
    assert collector.services == {"heliograph"}
    for name, cause in (
        (f"send {TOPIC}", "POST"),
        (f"publish {TOPIC}", f"send {TOPIC}"),
        (ADDS[0], f"publish {TOPIC}"),
        (f"receipt {TOPIC}", f"publish {TOPIC}"),
    ):
        assert found[name].parent_span_id == found[cause].span_id, name
    assert found["POST"].parent_span_id.hex() == PARENT.split("-")[2]
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in found.values())
    publish = attributes_of(found[f"publish {TOPIC}"])
    assert publish["messaging.system"] == "pulsar"
    assert publish["messaging.destination.name"] == TOPIC


def test_a_table_is_written_and_read_within_the_span_of_its_program(
    cluster: LocalCluster, collector: Collector
) -> None:
    tracer = tracing.active
    assert tracer is not None
    table = pa.table({"value": [b"one", b"two", b"three"]})
    with cluster.connect() as client, client.consumer("orders", "audit", initial_position="earliest") as consumer:
        with tracer.within("job", SpanKind.INTERNAL, parsed(PARENT), {}):
            writer = TableWriter.create("orders", WriteOptions(address=cluster.service_url))
        assert writer.trace.split("-")[1] == TRACE
        assert writer.write(table.to_batches()) == 3  # as a task does, which is in no span of its own
        messages = consumer.receive_many(3, timeout=SECONDS)
        assert [message.value for message in messages] == [b"one", b"two", b"three"]
        assert [TRACEPARENT in message.properties for message in messages] == [True, False, False]
    with tracer.within("reading job", SpanKind.INTERNAL, parsed(PARENT), {}):
        ranges = plan_topic("orders", access=ClusterAccess(gateway=cluster.http_url))
        assert sum(batch.num_rows for batch in read_ranges(ranges)) == 3
    tables = ("job", f"write {TOPIC}", "reading job", f"read {TOPIC}")
    found = collector.spans_of(TRACE, *tables, f"publish {TOPIC}", *ADDS, f"receipt {TOPIC}")
    assert found[f"read {TOPIC}"].parent_span_id == found["reading job"].span_id
    assert attributes_of(found[f"read {TOPIC}"])["heliograph.rows"] == 3
    assert found[f"write {TOPIC}"].parent_span_id == found["job"].span_id
    assert found[f"publish {TOPIC}"].parent_span_id == found[f"write {TOPIC}"].span_id
    assert attributes_of(found[f"write {TOPIC}"])["heliograph.rows"] == 3
