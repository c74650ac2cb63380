"""Two hours of samples of a cluster in one process: of its parts over HTTP, of a topic by its operation."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import heliograph
from heliograph.actors.broker import broker as broker_module
from heliograph.actors.broker.topic import series as topic_history
from heliograph.actors.broker.topic.series import BrokerHistory
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.topic_world import FakeTopics


def until(found: Callable[[], Any]) -> Any:
    """Return what a function finds, once it finds something."""
    deadline = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return value


def get(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def test_parts_and_topics_keep_a_history(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "STEP_SECONDS", 0.1)  # between samples; the steps stay
    monkeypatch.setattr(topic_history, "TOPICS_KEPT_MAX", 2)
    with heliograph.local() as cluster, cluster.connect() as client:
        client.admin.create_topic("orders", 2)
        client.admin.create_subscription("orders", "billing", "earliest")

        def rows(topic: str) -> dict[tuple[str, ...], list[float | None]]:
            found = client.admin.topic_history(topic)
            assert found["step_seconds"] == 10.0
            assert found["age_seconds"] >= 0
            return {tuple(key): samples for key, samples in found["series"]}

        producer = client.producer("orders")

        def part_seen() -> str | None:
            """Return the partition to which messages went, after two samples."""
            producer.send_many([str(number) for number in range(50)])
            shown = [key[1] for key, samples in rows("orders").items() if key[0] == "publish_seconds" and any(samples)]
            return shown[0] if shown else None

        part = until(part_seen)
        found = rows("orders")
        assert found["out_messages_rate", part][-1] == 0.0
        assert (found["in_messages_rate", part][-1] or 0) > 0
        seconds = [value for value in found["publish_seconds", part] if value is not None]
        assert 0 < max(seconds) < 60

        url = f"{cluster.http_url}/admin/heliograph/history"
        parts = until(lambda: all(told["series"] for told in get(url)["parts"].values()) and get(url)["parts"])
        assert set(parts) == {"bookie-1", "broker-1", "gateway", "metadata"}
        assert "heliograph_metadata_nodes" in dict(parts["metadata"]["series"])
        of_broker = dict(parts["broker-1"]["series"])
        assert of_broker["heliograph_broker_topics"][-1] == 2
        assert any(of_broker["heliograph_broker_publish_latency_seconds:p99"])
        told = get(f"{url}?part=gateway&series=heliograph_gateway_memory_bytes")["parts"]["gateway"]
        ((name, samples),) = told["series"]
        assert name == "heliograph_gateway_memory_bytes"
        assert samples[-1] > 0
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(f"{url}?part=bookie-9")


async def test_the_busiest_topics_and_those_asked_for_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_history, "TOPICS_KEPT_MAX", 1)
    topics = [a_topic(f"t{number}", rate=number % 3, backlog=number % 4) for number in range(5)]
    loaded = FakeTopics(topics)
    history = BrokerHistory(loaded.changed, loaded)
    names = [str(topic.name) for topic in topics]
    assert history.of_topic(names[0])["series"] == []
    for _ in range(3):
        assert history.of_topic(names[1])["series"] == [], "one topic may be asked for at a time"
    await history.sample({"load": 0.5})
    kept = {name for name in names if history.of_topic(name)["series"]}
    assert kept == {names[0], names[2], names[3]}, "asked for, the fastest, the one furthest behind"
    assert dict(map(_flat, history.of_broker()["series"]))["heliograph_broker_topics"] == [5.0]


async def test_counters_of_topics_that_are_kept_no_more_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_history, "TOPICS_KEPT_MAX", 1)
    topics, loaded = [a_topic(f"t{number}", rate=1, backlog=0) for number in range(10)], FakeTopics()
    history = BrokerHistory(loaded.changed, loaded)
    for topic in topics:  # each is the fastest for one step
        loaded.add(topic)
        await history.sample({})
        loaded.remove(topic)
    assert [key[1] for key in history._history._counters if key[0] == "publish"] == [str(topics[9].name)]


def _flat(row: Any) -> tuple[str, list[float | None]]:
    (name,), samples = row
    return name, samples


def a_topic(name: str, rate: float, backlog: int) -> Any:
    subscription = SimpleNamespace(
        backlog=backlog, is_internal=False, consumers={}, chain=None,
        messages_out=0, bytes_out=0, entries_expired=0, messages_expired=0, entries_acknowledged=0,
        cursor=SimpleNamespace(acknowledged_messages=None),
        window=SimpleNamespace(rates=lambda now, *counters: (0.0, 0.0, 0.0, 0.0)),
    )  # fmt: skip
    return SimpleNamespace(
        name=TopicName.parse(name), subscriptions={"s": subscription}, producers={},
        admission=SimpleNamespace(published=lambda now: (rate, 10 * rate)),
        ledger=SimpleNamespace(pending=0, entries_added=0, publish_seconds=0.0, chain=object()),
    )  # fmt: skip
