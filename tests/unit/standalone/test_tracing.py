"""One message is followed through a whole cluster in one process."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from typer.testing import CliRunner

import heliograph
from heliograph.actors.bookie.server.reads import EntryReads
from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.cli.app import app
from heliograph.client.sync.client import Client
from heliograph.standalone.local import LocalCluster
from heliograph.tracing import tracer as tracing
from heliograph.tracing.config import TracingConfig

pytestmark = pytest.mark.slow

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
UNSAMPLED = f"00-{TRACE}-b7ad6b7169203331-00"
FOLLOWED = {"tracing": {"sampled_share": 1.0}}
SECONDS = 30


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Have this process trace into memory before the parts begin to."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = tracing.start(TracingConfig(sampled_share=1.0), provider)
    yield exporter
    tracing.stop(tracer)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with heliograph.local(tmp_path, bookies=3, broker=FOLLOWED, gateway=FOLLOWED) as made:
        yield made


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    with cluster.connect() as made:
        yield made


def names_of(exporter: InMemorySpanExporter, *wanted: str) -> list[ReadableSpan]:
    """Return the spans so far, once there are all that are wanted."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = list(exporter.get_finished_spans())
        if not set(wanted) - {one.name for one in found}:
            return found
        assert time.monotonic() < deadline, sorted(one.name for one in found)
        time.sleep(0.02)


def test_each_step_of_a_message_is_a_span_of_its_trace(spans: InMemorySpanExporter, client: Client) -> None:
    topic = "persistent://public/default/orders"
    with client.producer("orders") as producer, client.consumer("orders", "audit") as consumer:
        sent = producer.send("one", properties={"traceparent": PARENT})
        message = consumer.receive(timeout=SECONDS)
        consumer.ack(message)
    adds = [f"add bookie-{number}" for number in (1, 2, 3)]
    steps = [f"publish {topic}", f"receipt {topic}", f"dispatch {topic}", f"acknowledge {topic}"]
    found = {one.name: one for one in names_of(spans, *adds, *steps)}
    assert set(found) == {*adds, *steps}, "and no other"
    assert {f"{one.context.trace_id:032x}" for one in found.values()} == {TRACE}
    publish = found[f"publish {topic}"]
    assert publish.parent is not None
    assert f"{publish.parent.span_id:016x}" == PARENT.split("-")[2], "it belongs to what the client did"
    for name in (*adds, steps[1]):
        parent = found[name].parent
        assert parent is not None
        assert parent.span_id == publish.context.span_id
    place = f"{sent.ledger_id}:{sent.entry_id}"
    for name in (steps[0], *steps[2:]):
        assert (found[name].attributes or {})["messaging.message.id"] == place
    assert (found[steps[3]].attributes or {})["messaging.destination.subscription.name"] == "audit"


def test_a_message_that_is_not_sampled_makes_no_span(spans: InMemorySpanExporter, client: Client) -> None:
    with client.producer("orders") as producer, client.consumer("orders", "audit") as consumer:
        for properties in ({"traceparent": UNSAMPLED}, {"traceparent": "00-zz"}, {}):
            producer.send("one", properties=properties)
            consumer.ack(consumer.receive(timeout=SECONDS))
        producer.send("one", properties={"traceparent": PARENT})
        consumer.ack(consumer.receive(timeout=SECONDS))
    found = names_of(spans, "acknowledge persistent://public/default/orders")
    assert len([one for one in found if one.name.startswith("publish")]) == 1, "of the sampled one alone"


def test_a_batch_is_followed_by_its_first_sampled_message(spans: InMemorySpanExporter, client: Client) -> None:
    with client.producer("orders") as producer:
        producer.send_many(["a", "b"], properties=[{"traceparent": UNSAMPLED}, {"traceparent": PARENT}])
    found = names_of(spans, "publish persistent://public/default/orders")
    (publish,) = [one for one in found if one.name.startswith("publish")]
    assert f"{publish.context.trace_id:032x}" == TRACE
    assert (publish.attributes or {})["messaging.batch.message_count"] == 2


def test_a_request_is_the_cause_of_what_it_publishes(
    spans: InMemorySpanExporter, cluster: LocalCluster, client: Client
) -> None:
    client.admin.create_topic("orders")
    url = f"{cluster.http_url}/topics/persistent/public/default/orders"
    body = json.dumps({"messages": [{"payload": "21.5"}]}).encode()
    headers = {"Content-Type": "application/json", "traceparent": PARENT}
    urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=SECONDS).read()
    topic = "persistent://public/default/orders"
    found = {one.name: one for one in names_of(spans, "POST", f"send {topic}", f"publish {topic}")}
    request, sent, publish = found["POST"], found[f"send {topic}"], found[f"publish {topic}"]
    assert request.parent is not None
    assert sent.parent is not None
    assert publish.parent is not None
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert sent.parent.span_id == request.context.span_id
    assert publish.parent.span_id == sent.context.span_id
    assert (request.attributes or {})["http.response.status_code"] == 200
    assert (request.attributes or {})["http.route"] == "/topics/{domain}/{tenant}/{namespace}/{topic}"


def test_a_lost_share_of_traces_is_not_followed(tmp_path: Path) -> None:
    low, high = f"00-{'0' * 31}1-b7ad6b7169203331-01", f"00-{'f' * 32}-b7ad6b7169203331-01"
    settings = {"tracing": {"sampled_share": 0.5}}
    with heliograph.local(tmp_path, broker=settings) as cluster, cluster.connect() as client:
        with client.producer("orders") as producer:
            for context in (low, high):
                producer.send("one", properties={"traceparent": context})
        assert tracing.active is not None
        assert len(tracing.active.followed) == 1
    assert tracing.active is None, "the last part has ended it"


def test_where_a_message_is_and_who_has_had_it(cluster: LocalCluster, client: Client) -> None:
    with (
        client.producer("orders") as producer,
        client.consumer("orders", "done") as done,
        client.consumer("orders", "busy", type="shared") as busy,
        client.consumer("orders", "idle"),
    ):
        sent = producer.send("one", properties={"traceparent": PARENT, "order": "A-1"})
        done.ack(done.receive(timeout=SECONDS))
        busy.receive(timeout=SECONDS)
        found = client.admin.cursors.trace("orders", sent.ledger_id, sent.entry_id)
        deadline = time.monotonic() + SECONDS
        while [one["step"] for one in found["steps"]].count("copy") < 3 and time.monotonic() < deadline:
            found = client.admin.cursors.trace("orders", sent.ledger_id, sent.entry_id)  # the last copy may be late
    assert {one["bookie"]: one["copy"] for one in found["copies"]} == {
        "bookie-1": "present",
        "bookie-2": "present",
        "bookie-3": "present",
    }
    by_name = {one["subscription"]: one for one in found["subscriptions"]}
    assert by_name["done"]["state"] == "acknowledged"
    assert by_name["busy"]["state"] == "delivered"
    assert [one["messages"] for one in by_name["busy"]["held_by"]] == [1]
    assert found["trace_id"] == TRACE
    steps = [(one["step"], one.get("subscription")) for one in found["steps"]]
    assert {("dispatch", "done"), ("acknowledge", "done"), ("dispatch", "busy")} <= set(steps)
    assert ("acknowledge", "busy") not in steps
    assert len([one for one in steps if one[0] == "copy"]) == 3
    assert [one["message_id"] for one in client.admin.brokers.followed(TRACE)] == [
        found["message_id"].rsplit(":", 1)[0]
    ]
    with pytest.raises(NotFoundError, match="no entry"):
        client.admin.cursors.trace("orders", sent.ledger_id, sent.entry_id + 7)
    with pytest.raises(BadRequestError, match="no trace id"):
        client.admin.brokers.followed("zz")


def test_a_bookie_that_is_away_gives_no_answer(cluster: LocalCluster, client: Client) -> None:
    with client.producer("orders") as producer:
        sent = producer.send("one")
    bookies = cluster._parts._bookies
    thread = cluster._thread
    assert thread is not None

    thread.run(bookies["bookie-3"].stop())
    found = client.admin.cursors.trace("orders", sent.ledger_id, sent.entry_id)
    assert [one["copy"] for one in found["copies"]].count("no answer") == 1
    assert {one["bookie"]: one["copy"] for one in found["copies"]}["bookie-3"] == "no answer"


def test_copies_that_are_missing_or_damaged_are_told(
    cluster: LocalCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.producer("orders") as producer:
        sent = producer.send("one")
    missing, damaged = (_reads_of(cluster, name) for name in ("bookie-2", "bookie-3"))
    cached, from_disk = EntryReads.read_cached, EntryReads._from_disk

    def read_cached(self: EntryReads, ledger_id: int, entry_id: int, flags: int) -> bytes | memoryview | None:
        data = cached(self, ledger_id, entry_id, flags)
        if data is None or self is missing:
            return None
        return bytes(data[:-1]) + bytes((data[-1] ^ 1,)) if self is damaged else data

    async def no_disk(self: EntryReads, ledger_id: int, entry_id: int) -> bytes | memoryview | None:
        return None if self is missing else await from_disk(self, ledger_id, entry_id)

    monkeypatch.setattr(EntryReads, "read_cached", read_cached)
    monkeypatch.setattr(EntryReads, "_from_disk", no_disk)
    found = client.admin.cursors.trace("orders", sent.ledger_id, sent.entry_id)
    copies = {one["bookie"]: one["copy"] for one in found["copies"]}
    assert copies == {"bookie-1": "present", "bookie-2": "missing", "bookie-3": "damaged"}
    place = f"{sent.ledger_id}:{sent.entry_id}"
    shown = CliRunner().invoke(app, ["trace", place, "-t", "orders", "--home", str(cluster.directory)])
    assert [line.split() for line in shown.output.splitlines() if line.startswith("bookie-")] == [
        list(pair) for pair in copies.items()
    ]


def _reads_of(cluster: LocalCluster, bookie: str) -> EntryReads:
    running = cluster._parts._bookies[bookie]._running
    assert running is not None
    return running.reads


def test_messages_are_found_by_a_property(client: Client) -> None:
    with client.producer("orders") as producer:
        first = producer.send("one", properties={"order": "A-1"})
        ids = producer.send_many(
            ["two", "three"], properties=[{"order": "A-2"}, {"order": "A-1", "traceparent": PARENT}]
        )
        for number in range(200):
            producer.send("more", properties={"order": str(number)})
    found = client.admin.cursors.find("orders", "order", "A-1")
    second = f"{ids[1].ledger_id}:{ids[1].entry_id}:-1:1"
    assert found["message_ids"] == [second, str(first)], "the newest first"
    assert found["entries"] == 202
    assert not found["is_cut"]
    assert client.admin.cursors.find("orders", "traceparent", TRACE)["message_ids"] == [second]
    some = client.admin.cursors.find("orders", "order", "A-1", 1)
    assert some["message_ids"] == [second]
    assert client.admin.cursors.find("orders", "order", "none")["message_ids"] == []


def test_off_the_code_of_tracing_is_not_called(tmp_path: Path) -> None:
    called: set[str] = set()

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "tracing" in frame.f_code.co_filename:
            called.add(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")

    threading.setprofile(profile)
    try:
        cluster = heliograph.local(tmp_path)
    finally:
        threading.setprofile(None)
    with cluster, cluster.connect() as client, client.producer("orders") as producer:
        with client.consumer("orders", "audit") as consumer:
            consumer.receive_many(1, timeout=0.1)
            called.clear()
            producer.send("one", properties={"traceparent": PARENT})
            consumer.ack(consumer.receive(timeout=SECONDS))
        assert not called


def test_helio_trace_shows_it(tmp_path: Path, cluster: LocalCluster, client: Client) -> None:
    with client.producer("orders") as producer, client.consumer("orders", "audit") as consumer:
        sent = producer.send("one", properties={"traceparent": PARENT, "order": "A-1"})
        consumer.ack(consumer.receive(timeout=SECONDS))
    place = f"{sent.ledger_id}:{sent.entry_id}"
    for arguments in (
        [place, "-t", "orders"],
        [f"{place}:-1:0:2", "-t", "orders"],  # as `helio consume --json` prints messages of batches
        [TRACE],
        [PARENT, "-t", "orders"],
        ["A-1", "-t", "orders", "--property", "order"],
    ):
        shown = CliRunner().invoke(app, ["trace", *arguments, "--home", str(cluster.directory)])
        assert shown.exit_code == 0, shown.output
        for word in (place, "bookie-1", "present", "audit", "acknowledged", TRACE, "dispatch"):
            assert word in shown.output, (arguments, word, shown.output)
