"""Events of Ray become messages of a topic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.base.errors import MessageTooLargeError
from heliograph.gateway.rest.ray_events import EVENTS_MAX
from tests.unit.gateway.clients import FakeProducer
from tests.unit.gateway.world import FLIGHTS, Gateway

ACTOR = {
    "eventId": "AbC=",
    "sourceType": "GCS",
    "eventType": "ACTOR_LIFECYCLE_EVENT",
    "timestamp": "2026-01-31T12:00:00.123456789Z",
    "severity": "INFO",
    "message": "",
    "sessionName": "session_1",
    "actorLifecycleEvent": {"actorId": "YWN0b3I=", "stateTransitions": [{"state": "ALIVE"}]},
}
JOB = {
    "eventType": "DRIVER_JOB_DEFINITION_EVENT",
    "driverJobDefinitionEvent": {"jobId": "AQAAAA=="},
    "timestamp": "soon",
}


async def test_each_event_is_a_message_with_its_id_as_key() -> None:
    async with Gateway(ray_events_topic=FLIGHTS) as gateway:
        topic = gateway.world.add()
        answer = await gateway.http.post("/ray/events", json=[ACTOR, JOB, {}])
        assert (answer.status_code, answer.json()) == (200, {"stored": 3, "leftOut": 0})
        actor, job, empty = topic.messages
        assert json.loads(actor.data) == ACTOR
        assert (actor.key, actor.event_time_ms) == ("YWN0b3I=", 1769860800123)
        assert actor.properties == {
            "eventId": "AbC=",
            "sourceType": "GCS",
            "eventType": "ACTOR_LIFECYCLE_EVENT",
            "severity": "INFO",
            "sessionName": "session_1",
        }
        assert (job.key, job.event_time_ms) == ("AQAAAA==", None)
        assert (json.loads(empty.data), empty.key) == ({}, None)
        assert (await gateway.http.post("/ray/events", json=[])).json() == {"stored": 0, "leftOut": 0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[", 400),
        (b"{}", 400),
        (b"[1]", 400),
        (json.dumps([{}] * (EVENTS_MAX + 1)).encode(), 400),
        (b"[" * 100_000, 400),
        (b" " * 2_000_000, 413),
    ],
)
async def test_what_is_no_list_of_events_is_refused(body: bytes, status: int) -> None:
    async with Gateway(ray_events_topic=FLIGHTS, request_bytes_max=1_000_000, max_message_bytes=1_000) as gateway:
        topic = gateway.world.add()
        answer = await gateway.http.post("/ray/events", content=body)
        assert answer.status_code == status, answer.text
        assert answer.json()["reason"]
        assert topic.messages == []


async def test_without_a_topic_nothing_is_kept(gateway: Gateway) -> None:
    answer = await gateway.http.post("/ray/events", json=[ACTOR])
    assert (answer.status_code, answer.json()["field"]) == (501, "ray_events_topic")
    async with Gateway(ray_events_topic=FLIGHTS) as other:
        assert (await other.http.post("/ray/events", json=[ACTOR])).status_code == 404


async def test_fields_that_cannot_be_keys_are_left_in_the_payload() -> None:
    strange: dict[str, Any] = {"eventType": 7, "sessionName": "x" * 300, "nodeLifecycleEvent": {"nodeId": "a\nb"}}
    async with Gateway(ray_events_topic=FLIGHTS) as gateway:
        topic = gateway.world.add()
        assert (await gateway.http.post("/ray/events", json=[strange])).status_code == 200
        (message,) = topic.messages
        assert (message.key, dict(message.properties or {}), json.loads(message.data)) == (None, {}, strange)


@pytest.mark.parametrize("is_refused_at_once", [True, False])
async def test_events_that_would_always_fail_are_left_out_and_counted(
    is_refused_at_once: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Gateway(ray_events_topic=FLIGHTS) as gateway:
        topic = gateway.world.add()
        large = json.dumps({"eventId": "large"}, separators=(",", ":")).encode()
        too_large = MessageTooLargeError("it is too large", field="payload")
        if is_refused_at_once:
            enqueue = FakeProducer.enqueue

            async def refusing(self: FakeProducer, value: bytes | None, **given: Any) -> Any:
                if value == large:
                    raise too_large
                return await enqueue(self, value, **given)

            monkeypatch.setattr(FakeProducer, "enqueue", refusing)
        else:
            gateway.world.send_errors[large] = too_large
        body = b'[{"eventId": "large"}, {"message": "half \\ud800"}, {"eventId": "fine"}]'
        answer = await gateway.http.post("/ray/events", content=body)
        assert (answer.status_code, answer.json()) == (200, {"stored": 1, "leftOut": 2})
        assert [json.loads(message.data) for message in topic.messages] == [{"eventId": "fine"}]
        assert "2 events of Ray are left out" in caplog.text
