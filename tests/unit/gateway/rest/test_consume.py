"""REST consume: taking, acknowledging and redelivering over plain HTTP."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.base.errors import ConnectionLostError
from heliograph.gateway.services import Services
from heliograph.protocol.message_id import MessageId
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway, settle
from tests.waits import until

URL = f"/topics/{FLIGHTS_PATH}/subscription/audit"
EARLIEST = {"initialPosition": "Earliest", "timeoutMs": "0"}


def _topic_with(gateway: Gateway, *payloads: bytes) -> FakeTopic:
    topic = gateway.world.add()
    for payload in payloads:
        topic.publish(payload, "k", {"p": "v"}, 1357034400000)
    return topic


async def _take(gateway: Gateway, **parameters: Any) -> list[dict[str, Any]]:
    answer = await gateway.http.post(f"{URL}/messages", params={**EARLIEST, **parameters})
    assert answer.status_code == 200, answer.text
    messages = answer.json()["messages"]
    assert isinstance(messages, list)
    return messages


async def test_messages_are_handed_out_with_everything_known_of_them(gateway: Gateway) -> None:
    _topic_with(gateway, "grüße".encode(), b"\xff")
    first, second = await _take(gateway)
    assert first["payload"] == "grüße"
    assert base64.b64decode(first["payloadBase64"]) == "grüße".encode()
    assert (first["key"], first["properties"], first["redeliveryCount"]) == ("k", {"p": "v"}, 0)
    assert first["eventTime"] == "2013-01-01T10:00:00.000Z"
    assert first["publishTime"] == "2023-11-14T22:13:20.123Z"
    assert MessageId.from_base64(first["messageId"]) == MessageId(100, 0)
    assert (second["payload"], base64.b64decode(second["payloadBase64"])) == (None, b"\xff")


async def test_an_acknowledged_message_is_not_delivered_again(gateway: Gateway) -> None:
    topic = _topic_with(gateway, b"a", b"b")
    first, _ = await _take(gateway)
    answer = await gateway.http.post(f"{URL}/ack", json={"messageIds": [first["messageId"]]})
    assert (answer.status_code, answer.json()) == (200, {"acknowledged": 1})
    assert topic.subscriptions["audit"].acknowledged == [MessageId(100, 0)]
    assert (await gateway.http.delete(f"{URL}/consumer")).status_code == 204
    assert [message["payload"] for message in await _take(gateway)] == ["b"]


async def test_an_acknowledgement_that_is_not_durable_is_no_200(gateway: Gateway) -> None:
    """I11: 200 on an acknowledgement means durable."""
    _topic_with(gateway, b"a")
    (message,) = await _take(gateway)
    gateway.world.ack_error = ConnectionLostError("the broker is gone")
    answer = await gateway.http.post(f"{URL}/ack", json={"messageIds": [message["messageId"]]})
    assert (answer.status_code, answer.json()["advice"]) == (503, "retry")
    gateway.world.ack_error = None
    answer = await gateway.http.post(f"{URL}/ack", json={"messageIds": [message["messageId"]]})
    assert answer.status_code == 200


async def test_cumulative_acknowledgement(gateway: Gateway) -> None:
    topic = _topic_with(gateway, b"a", b"b", b"c")
    messages = await _take(gateway, type="exclusive")
    ids = [message["messageId"] for message in messages]
    answer = await gateway.http.post(f"{URL}/ack", json={"messageIds": ids[:2], "cumulative": True})
    assert (answer.status_code, answer.json()["field"]) == (400, "messageIds")
    answer = await gateway.http.post(f"{URL}/ack", json={"messageIds": [ids[1]], "cumulative": True})
    assert answer.status_code == 200
    assert topic.subscriptions["audit"].acknowledged == [MessageId(100, 0), MessageId(100, 1)]


async def test_a_refused_message_comes_again(gateway: Gateway) -> None:
    _topic_with(gateway, b"a")
    (message,) = await _take(gateway)
    answer = await gateway.http.post(f"{URL}/nack", json={"messageIds": [message["messageId"]]})
    assert answer.json() == {"redelivered": 1}
    (again,) = await _take(gateway)
    assert (again["messageId"], again["redeliveryCount"]) == (message["messageId"], 1)


async def test_a_message_not_acknowledged_in_time_comes_again(gateway: Gateway) -> None:
    _topic_with(gateway, b"a", b"b")
    first, _second = await _take(gateway)
    await gateway.http.post(f"{URL}/ack", json={"messageIds": [first["messageId"]]})
    consumers = gateway.app.state.services.consumers
    await consumers.expire(consumers.clock() + 59)
    assert await _take(gateway) == []
    for session in consumers._sessions.values():
        session.last_used = float("inf")  # idleness is not tested here
    await consumers.expire(consumers.clock() + 61)
    assert [message["payload"] for message in await _take(gateway)] == ["b"]


async def test_an_idle_session_is_closed_and_its_messages_go_to_others(gateway: Gateway) -> None:
    _topic_with(gateway, b"a")
    await _take(gateway, session="one")
    consumers = gateway.app.state.services.consumers
    await consumers.expire(consumers.clock() + 61)
    assert (len(consumers), gateway.world.consumers[0].closed) == (0, True)
    assert [message["payload"] for message in await _take(gateway, session="two")] == ["a"]


async def test_a_request_waits_for_a_message(gateway: Gateway) -> None:
    topic = _topic_with(gateway)
    polling = asyncio.ensure_future(_take(gateway, timeoutMs=5000))
    await settle()
    topic.publish(b"late", None, {}, None)
    (message,) = await polling
    assert message["payload"] == "late"
    assert "key" not in message
    assert "eventTime" not in message


async def test_a_token_that_is_revoked_while_its_caller_waits_gets_nothing(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    _topic_with(gateway, b"x")
    monkeypatch.setattr(gateway.app.state.services.authenticator, "is_revoked", lambda principal: True)
    answer = await gateway.http.post(f"{URL}/messages", params=EARLIEST)
    assert (answer.status_code, "messages" in answer.json()) == (401, False)
    monkeypatch.undo()
    await gateway.http.delete(f"{URL}/consumer")
    assert len(await _take(gateway)) == 1, "nothing is lost"


async def test_an_answer_is_bounded_in_messages_and_in_bytes() -> None:
    """I15."""

    async with Gateway(rest_answer_bytes_max=100) as gateway:
        _topic_with(gateway, *[bytes([65 + number]) * 40 for number in range(6)])
        assert len(await _take(gateway, max=2)) == 2
        assert len(await _take(gateway, max=100)) == 3  # the third message reaches 100 bytes
        assert len(await _take(gateway, max=100)) == 1


async def test_the_number_of_sessions_is_bounded() -> None:
    """I15."""

    async with Gateway(rest_consumers_max=1) as gateway:
        _topic_with(gateway)
        await _take(gateway, session="one")
        answer = await gateway.http.post(f"{URL}/messages", params={**EARLIEST, "session": "two"})
        assert (answer.status_code, answer.json()["field"]) == (429, "rest_consumers_max")
        assert answer.json()["limit"] == "1 consumers"


async def test_callers_that_open_a_session_at_once_share_it(gateway: Gateway) -> None:
    _topic_with(gateway, b"a")
    answers = await asyncio.gather(_take(gateway), _take(gateway), _take(gateway))
    assert sorted(len(answer) for answer in answers) == [0, 0, 1]
    assert len(gateway.world.consumers) == 1


async def test_a_session_keeps_its_type(gateway: Gateway) -> None:
    _topic_with(gateway)
    await _take(gateway, type="shared")
    answer = await gateway.http.post(f"{URL}/messages", params={**EARLIEST, "type": "exclusive"})
    assert (answer.status_code, answer.json()["field"]) == (409, "type")


async def test_a_busy_subscription_is_a_conflict(gateway: Gateway) -> None:
    topic = _topic_with(gateway)
    topic.subscribe("audit", "latest").consumers = 1
    answer = await gateway.http.post(f"{URL}/messages", params={**EARLIEST, "type": "exclusive"})
    assert answer.status_code == 409


async def test_a_consumer_that_ended_is_replaced(gateway: Gateway) -> None:
    _topic_with(gateway, b"a")
    await _take(gateway)
    await gateway.world.consumers[0].close()
    answer = await gateway.http.post(f"{URL}/messages", params=EARLIEST)
    assert answer.status_code == 503
    assert [message["payload"] for message in await _take(gateway)] == ["a"]


@pytest.mark.parametrize("action", ["messages", "ack", "nack"])
async def test_an_unknown_topic_is_not_created(gateway: Gateway, action: str) -> None:
    body = {"messageIds": [MessageId(1, 2).to_base64()]}
    answer = await gateway.http.post(f"{URL}/{action}", json=body)
    assert answer.status_code == 404
    assert gateway.world.topics == {}


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"max": "0"}, "max"),
        ({"max": "many"}, "max"),
        ({"timeoutMs": "-1"}, "timeoutMs"),
        ({"type": "Sharing"}, "type"),
        ({"initialPosition": "middle"}, "initialPosition"),
        ({"session": ""}, "session"),
    ],
)
async def test_a_parameter_out_of_range_is_named(gateway: Gateway, parameters: dict[str, str], field: str) -> None:
    _topic_with(gateway)
    answer = await gateway.http.post(f"{URL}/messages", params=parameters)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert answer.json()["advice"] == "stop"


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ("nope", 400, "body"),
        ("{}", 422, "messageIds"),
        ('{"messageIds": []}', 422, "messageIds"),
        ('{"messageIds": ["***"]}', 400, "messageIds.0"),
        ('{"messageIds": ["CAAQAyAA", "AAAA"]}', 400, "messageIds.1"),
    ],
)
async def test_ids_that_are_none_are_named(gateway: Gateway, body: str, status: int, field: str) -> None:
    _topic_with(gateway)
    answer = await gateway.http.post(f"{URL}/ack", content=body)
    assert (answer.status_code, answer.json()["field"]) == (status, field)


async def test_closing_what_is_not_open_is_a_404(gateway: Gateway) -> None:
    assert (await gateway.http.delete(f"{URL}/consumer")).status_code == 404


async def test_the_sweep_survives_a_failing_session(gateway: Gateway) -> None:
    services: Services = gateway.app.state.services
    calls = []

    async def fails(now: float) -> None:
        calls.append("producers")
        raise RuntimeError("boom")

    async def works(now: float) -> None:
        calls.append("consumers")

    services.producers.expire = fails  # type: ignore[method-assign]
    services.consumers.expire = works  # type: ignore[method-assign]
    await services.sweep_once(0.0)
    assert calls == ["producers", "consumers"]


async def test_a_session_asks_ahead_for_no_more_than_its_first_request_takes(gateway: Gateway) -> None:
    _topic_with(gateway)
    await _take(gateway, max=7)
    assert gateway.world.consumers[0].options["receiver_queue"] == 7


async def _waiting(gateway: Gateway, requests: int) -> None:
    """Wait until so many requests use sessions; the framework asks for their parameters on threads."""
    async with asyncio.timeout(60):
        sessions = gateway.app.state.services.consumers._sessions
        await until(lambda: sum(session.users for session in sessions.values()) == requests)
    await settle()


async def _abandoned(
    gateway: Gateway,
    *,
    before: Callable[[], object] = lambda: None,
    when: Callable[[], object] = lambda: None,
    requests: int = 1,
) -> None:
    """Send a request for messages, and go away while it and perhaps a later one wait."""
    gone, body = asyncio.Event(), [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if body:
            return body.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        """Send nothing: nobody reads it."""

    scope = {
        "type": "http", "method": "POST", "path": f"{URL}/messages", "raw_path": f"{URL}/messages".encode(),
        "query_string": b"timeoutMs=60000&initialPosition=earliest", "headers": [], "app": gateway.app,
    }  # fmt: skip
    request = asyncio.ensure_future(gateway.app(scope, receive, send))
    await _waiting(gateway, 1)
    before()
    assert not request.done()
    await _waiting(gateway, requests)
    gone.set()
    when()
    await asyncio.wait_for(request, 60)


async def test_a_caller_that_leaves_while_it_waits_gives_back_what_it_held(gateway: Gateway) -> None:
    topic = _topic_with(gateway)
    await _abandoned(gateway, when=lambda: topic.publish(b"a", None, {}, None))  # it comes as the caller leaves
    assert (len(gateway.app.state.services.consumers), gateway.world.consumers[0].closed) == (0, True)
    assert [message["payload"] for message in await _take(gateway, session="another")] == ["a"]


async def test_messages_that_others_have_to_acknowledge_stay_with_a_session_that_a_caller_left(
    gateway: Gateway,
) -> None:
    topic = _topic_with(gateway, b"a")
    (message,) = await _take(gateway)
    await _abandoned(gateway, when=lambda: topic.publish(b"b", None, {}, None))
    assert not gateway.world.consumers[0].closed
    assert "a" not in [message["payload"] for message in await _take(gateway, session="another")]
    answer = await gateway.http.post(f"{URL}/ack", json={"messageIds": [message["messageId"]]})
    assert answer.status_code == 200
    assert gateway.world.consumers[0].closed


async def test_a_request_that_waits_behind_one_that_was_left_gets_its_messages(gateway: Gateway) -> None:
    topic = _topic_with(gateway)
    waiting: list[asyncio.Future[list[dict[str, Any]]]] = []

    def meanwhile() -> None:
        waiting.append(asyncio.ensure_future(_take(gateway, timeoutMs=60_000)))

    await _abandoned(gateway, before=meanwhile, requests=2)
    topic.publish(b"a", None, {}, None)
    assert [message["payload"] for message in await waiting[0]] == ["a"]
    assert not gateway.world.consumers[0].closed


async def test_a_session_that_was_left_is_closed_once_its_messages_are_overdue(gateway: Gateway) -> None:
    _topic_with(gateway, b"a")
    await _take(gateway)
    await _abandoned(gateway)
    consumers = gateway.app.state.services.consumers
    for session in consumers._sessions.values():
        session.last_used = float("inf")  # idleness is not tested here
    await consumers.expire(consumers.clock() + 61)
    await consumers.expire(consumers.clock() + 61)
    assert len(consumers) == 0
    assert [message["payload"] for message in await _take(gateway, session="another")] == ["a"]
