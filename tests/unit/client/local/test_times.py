"""Handles and administration take aware times and time spans wherever they take milliseconds or seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import heliograph
from heliograph.base.clock import as_numbers
from heliograph.base.errors import BadRequestError, ReceiveTimeoutError

SECONDS = timedelta(seconds=30)
NAIVE = datetime(2026, 1, 31)


def test_a_reader_seeks_to_a_time(client: heliograph.Client) -> None:
    with client.producer("sought-by-time") as producer, client.reader("sought-by-time", "earliest") as reader:
        producer.send("before", event_time_ms=datetime(2026, 1, 31, tzinfo=UTC))
        time.sleep(0.05)
        between = datetime.now(UTC)
        time.sleep(0.05)
        producer.send("after")
        first = reader.receive(SECONDS)
        assert first.event_time == datetime(2026, 1, 31, tzinfo=UTC)
        assert first.publish_time < between
        assert first.publish_time.timestamp() * 1000 == first.publish_time_ms
        reader.seek(between)
        assert (message := reader.receive(SECONDS)).value == b"after"
        assert (message.event_time, message.publish_time > between) == (None, True)


def test_a_subscription_is_reset_and_expired_by_times(client: heliograph.Client) -> None:
    topic = "persistent://public/default/reset-by-time"
    client.producer(topic).send("x")
    with client.consumer(topic, "s", initial_position="earliest") as consumer:
        consumer.ack(consumer.receive(SECONDS))
        client.admin.cursors.reset(topic, "s", datetime.now(UTC) - timedelta(hours=1))
        assert consumer.receive(SECONDS).value == b"x"
    assert client.admin.cursors.expire(topic, "s", timedelta(days=1)) == 0
    assert client.admin.cursors.message_id_at(topic, datetime.now(UTC) - timedelta(hours=1)).endswith(":-1")
    with pytest.raises(BadRequestError, match="time zone") as refused:
        client.admin.cursors.reset(topic, "s", NAIVE)
    assert refused.value.field == "to"


def test_spans_are_timeouts_and_delays(client: heliograph.Client) -> None:
    with client.consumer("spans", "s", type="shared", nack_delay_ms=timedelta(0), retry=True) as consumer:
        assert consumer.options.nack_delay_ms == 0
        with pytest.raises(ReceiveTimeoutError, match=r"within 0\.01 s"):
            consumer.receive(timedelta(milliseconds=10))
        assert consumer.receive_many(5, timedelta(milliseconds=10)) == []
        producer = client.producer("spans")
        producer.send("now", deliver_after=timedelta(milliseconds=50))
        producer.send("now", deliver_at=datetime.now(UTC) + timedelta(milliseconds=50))
        producer.send_many(["now"], deliver_times_ms=[datetime.now(UTC)], event_times_ms=[datetime.now(UTC)])
        found = [consumer.receive(SECONDS) for _ in range(3)]
        assert [message.event_time is None for message in found].count(False) == 1
        consumer.reconsume_later(found[0], timedelta(milliseconds=10))
        assert consumer.receive(SECONDS).properties["DELAY_TIME"] == "10"


def test_a_time_without_a_zone_is_refused_by_the_name_of_its_argument(client: heliograph.Client) -> None:
    given: Any = NAIVE
    with client.producer("naive") as producer, client.consumer("naive", "s", type="shared") as consumer:
        calls: dict[str, Callable[[], object]] = {
            "deliver_at": lambda: producer.send("x", deliver_at=given),
            "event_time_ms": lambda: producer.send("x", event_time_ms=given),
            "target": lambda: consumer.seek(given),
            "timeout": lambda: consumer.receive(given),
        }
        for field, call in calls.items():
            with pytest.raises(BadRequestError) as refused:
                call()
            assert refused.value.field == field
        for sending in ({"event_times_ms": [given]}, {"deliver_times_ms": [given]}):
            with pytest.raises(BadRequestError, match="time zone"):
                producer.send_many(["x"], **sending)
        assert producer.last_sequence_id == -1


def test_settings_and_policies_take_spans(client: heliograph.Client) -> None:
    broker = {"default_retention_seconds": timedelta(hours=2)}
    with heliograph.local(broker=broker) as cluster, cluster.connect() as other:
        live = {row["name"]: row for row in other.admin.settings.live()}
        assert live["default_retention_seconds"]["value"] == "7200"
        other.admin.settings.set("default_retention_seconds", timedelta(days=1))
        live = {row["name"]: row for row in other.admin.settings.live()}
        assert live["default_retention_seconds"]["changed_to"] == "86400"
    client.admin.namespaces.create("public/spans", policies={"retention_seconds": timedelta(hours=1)})
    client.admin.namespaces.set_policies("public/spans", {"message_ttl_seconds": timedelta(days=1)})
    found = client.admin.namespaces.policies("public/spans", own=True)
    assert found == {"retention_seconds": 3600, "message_ttl_seconds": 86_400}


@pytest.mark.parametrize("given", [NAIVE, "soon"])
def test_a_setting_that_is_no_span_is_refused_by_its_name(given: object) -> None:
    with pytest.raises(BadRequestError, match="default_retention_seconds"):
        heliograph.local(broker={"default_retention_seconds": given})


@pytest.mark.parametrize(
    ("name", "number"), [("retention_seconds", 90), ("pause_ms", 90_000), ("pause_ms_max", 90_000), ("timeout", 90)]
)
def test_a_span_becomes_the_number_that_the_name_has(name: str, number: int) -> None:
    assert as_numbers({"broker": {name: timedelta(seconds=90)}}) == {"broker": {name: number}}
