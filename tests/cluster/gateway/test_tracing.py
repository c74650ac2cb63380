"""One trace through several brokers and bookies, the gateway and tasks of Ray: its spans come to one collector."""

from __future__ import annotations

import contextlib
import json
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
import ray.data

from heliograph.pipelines.ray_data.dataset import write_dataset
from heliograph.tracing import tracer as tracing
from heliograph.tracing.config import TracingConfig
from heliograph.tracing.context import TRACEPARENT, parsed
from heliograph.tracing.tracer import SpanKind
from tests.cluster.support.live_cluster import LiveCluster, start
from tests.collector import Collector

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # warnings of Ray Data
]

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"  # as Pulsar's Java client writes it into the property `traceparent`
BOOKIES = [f"bookie-{number}" for number in (1, 2, 3)]
PARTITIONS = [f"persistent://public/default/orders-partition-{number}" for number in range(4)]
TABLE = "persistent://public/default/table"


@pytest.fixture
def collector() -> Iterator[Collector]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra `tracing`")
    with Collector() as made:
        yield made


@pytest.fixture
def cluster(tmp_path: Path, collector: Collector) -> Iterator[LiveCluster]:
    settings = {"tracing": {"sampled_share": 1.0, "endpoint": collector.url}}
    name = f"traced-{uuid.uuid4().hex[:8]}"
    running = start(tmp_path, name, bookies=3, brokers=2, broker=settings, gateway=settings)
    try:
        yield running
    finally:
        running.stop()


def test_a_stock_client_a_request_and_a_table_are_one_trace(cluster: LiveCluster, collector: Collector) -> None:
    admin = cluster.admin
    admin.create_topic("orders", len(PARTITIONS))
    admin.create_topic("table")
    with contextlib.closing(pulsar.Client(cluster.state.service_url)) as stock:
        followed(cluster, collector, stock)


def followed(cluster: LiveCluster, collector: Collector, stock: pulsar.Client) -> None:
    admin = cluster.admin
    consumer = stock.subscribe(["persistent://public/default/orders", TABLE], "audit")
    idle = stock.subscribe(PARTITIONS[0], "idle")
    sent = {}
    for topic in PARTITIONS:
        producer = stock.create_producer(topic, batching_enabled=True)
        sent[topic] = producer.send(b"21.5", properties={TRACEPARENT: PARENT})
    url = f"{cluster.state.gateway_url}/topics/persistent/public/default/orders"
    body = json.dumps({"messages": [{"payload": "21.5", "key": "kitchen"}]}).encode()
    headers = {"Content-Type": "application/json", TRACEPARENT: PARENT}
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=60).read()
    tracer = tracing.start(TracingConfig(sampled_share=1.0, endpoint=collector.url))
    assert tracer is not None
    with tracer.within("job", SpanKind.INTERNAL, parsed(PARENT), {}):
        table = ray.data.from_arrow(pa.table({"value": [b"one", b"two"]}))
        write_dataset(table, "table", namespace=cluster.namespace)
    tracing.stop(tracer)
    for _ in range(len(PARTITIONS) + 1 + 2):
        consumer.acknowledge(consumer.receive(60_000))

    topics = [*PARTITIONS, TABLE]
    steps = [f"{step} {topic}" for topic in topics for step in ("publish", "receipt", "dispatch", "acknowledge")]
    found = collector.spans_of(TRACE, "POST", "job", *steps, *(f"add {bookie}" for bookie in BOOKIES))
    assert found[f"publish {TABLE}"].parent_span_id == found["job"].span_id, "the task of Ray is in no span of its own"

    owned = {
        broker: {one["topic"] for one in cluster.call(broker, "asked", "followed", {"trace_id": TRACE})}
        for broker in ("broker-1", "broker-2")
    }
    assert all(owned.values()), "each of the brokers has followed some"
    assert owned["broker-1"] | owned["broker-2"] == {*topics}
    assert {one["topic"] for one in admin.brokers.followed(TRACE)} == {*topics}
    first = sent[PARTITIONS[0]]
    told = admin.cursors.trace(PARTITIONS[0], first.ledger_id(), first.entry_id())
    assert {one["bookie"]: one["copy"] for one in told["copies"]} == dict.fromkeys(BOOKIES, "present")
    states = {one["subscription"]: one["state"] for one in told["subscriptions"]}
    assert states == {"audit": "acknowledged", "idle": "delivered"}
    done = [one for one in told["steps"] if one.get("subscription") == "audit"]
    assert [one["step"] for one in done] == ["dispatch", "acknowledge"]
    assert all(one["at_ms"] > 0 for one in told["steps"])
    idle.close()
