"""REST produce: Pulsar's body and answer, and every input that is refused."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from heliograph.base.errors import BadRequestError, PersistenceError, ProducerFencedError
from heliograph.gateway.services import Services
from heliograph.protocol.message_id import MessageId
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS, FLIGHTS_PATH, Gateway, settle

URL = f"/topics/{FLIGHTS_PATH}"
RECORD = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}


def schema_info(kind: str, definition: object = None) -> str:
    schema = "" if definition is None else base64.b64encode(json.dumps(definition).encode()).decode()
    return json.dumps({"name": "", "schema": schema, "type": kind, "properties": {}})


async def test_messages_are_stored_in_order_with_key_properties_and_event_time(gateway: Gateway) -> None:
    topic = gateway.world.add()
    body = {
        "messages": [
            {"payload": "grüße", "key": "N14228", "properties": {"a": "b"}, "eventTime": "1357034400000"},
            {"payloadBase64": base64.b64encode(b"\xff\x00").decode()},
            {"payload": ""},
        ]
    }
    answer = await gateway.http.post(URL, json=body)
    assert answer.status_code == 200
    results = answer.json()["messagePublishResults"]
    assert [result["messageId"] for result in results] == ["100:0:-1", "100:1:-1", "100:2:-1"]
    assert [result["errorCode"] for result in results] == [0, 0, 0]
    assert MessageId.from_base64(results[1]["messageIdBase64"]) == MessageId(100, 1)
    assert [message.data for message in topic.messages] == ["grüße".encode(), b"\xff\x00", b""]
    first = topic.messages[0]
    assert (first.key, first.properties, first.event_time_ms) == ("N14228", {"a": "b"}, 1357034400000)


async def test_the_codec_is_the_requests(gateway: Gateway) -> None:
    gateway.world.add(partitions=2)
    for url in (URL, f"{URL}/partitions/1"):
        for query, codec in (("", "none"), ("?compressionType=LZ4", "lz4"), ("?compressionType=SNAPPY", "snappy")):
            answer = await gateway.http.post(url + query, json={"messages": [{"payload": "x"}]})
            assert (answer.status_code, gateway.world.producer_options["compression"]) == (200, codec)
    answer = await gateway.http.post(f"{URL}?compressionType=RAR", json={"messages": [{"payload": "x"}]})
    assert (answer.status_code, answer.json()["field"]) == (422, "compressionType")


async def test_a_partition_is_published_to_by_number(gateway: Gateway) -> None:
    gateway.world.add(partitions=4)
    answer = await gateway.http.post(f"{URL}/partitions/3", json={"messages": [{"payload": "x"}]})
    assert answer.status_code == 200
    answer = await gateway.http.post(f"{URL}/partitions/-1", json={"messages": [{"payload": "x"}]})
    assert answer.status_code == 422
    assert answer.json()["field"] == "partition"


async def test_a_producer_serves_many_requests_and_is_closed_when_idle(topic: FakeTopic, gateway: Gateway) -> None:
    for _ in range(3):
        await gateway.http.post(URL, json={"messages": [{"payload": "x"}]})
    services: Services = gateway.app.state.services
    assert (topic.producers, len(services.producers)) == (1, 1)
    await services.producers.expire(float("inf"))
    assert (topic.producers, len(services.producers)) == (0, 0)


async def test_the_least_recently_used_producer_makes_room() -> None:
    """I15: the cache of producers is bounded."""

    async with Gateway(rest_producers_max=2) as gateway:
        topics = [gateway.world.add(f"persistent://public/default/t{number}") for number in range(3)]
        for topic in topics:
            path = topic.name.replace("://", "/")
            assert (await gateway.http.post(f"/topics/{path}", json={"messages": [{"payload": "x"}]})).is_success
        assert [topic.producers for topic in topics] == [0, 1, 1]


async def test_one_failed_message_fails_alone(gateway: Gateway) -> None:
    gateway.world.add()
    gateway.world.send_errors[b"bad"] = PersistenceError("too few bookies")
    gateway.world.send_errors[b"worse"] = BadRequestError("no")
    body = {"messages": [{"payload": "good"}, {"payload": "bad"}, {"payload": "worse"}]}
    answer = await gateway.http.post(URL, json=body)
    assert answer.status_code == 200
    results = answer.json()["messagePublishResults"]
    assert [result["errorCode"] for result in results] == [0, 1, 2]
    assert results[1]["errorMsg"] == "too few bookies"


async def test_when_nothing_was_stored_the_status_says_so(gateway: Gateway) -> None:
    gateway.world.add()
    gateway.world.send_errors[b"bad"] = PersistenceError("too few bookies")
    answer = await gateway.http.post(URL, json={"messages": [{"payload": "bad"}]})
    assert answer.status_code == 503
    assert answer.json()["reason"] == "too few bookies"
    assert answer.json()["advice"] == "retry"
    assert answer.json()["messagePublishResults"][0]["errorCode"] == 1


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ("{", 400, "body"),
        ("", 400, "body"),
        ("[]", 422, "body"),
        ("{}", 422, "messages"),
        ('{"messages": []}', 422, "messages"),
        ('{"messages": [{"payload": 1}]}', 422, "messages.0.payload"),
        ('{"messages": [{"payload": "a"}, {}]}', 400, "messages.1.payload"),
        ('{"messages": [{"payload": "a", "payloadBase64": "YQ=="}]}', 400, "messages.0.payload"),
        ('{"messages": [{"payloadBase64": "*"}]}', 400, "messages.0.payloadBase64"),
        ('{"messages": [{"payload": "a", "properties": {"n": 1}}]}', 422, "messages.0.properties.n"),
        ('{"messages": [{"payload": "a", "eventTime": "noon"}]}', 422, "messages.0.eventTime"),
        ('{"messages": [{"payload": "a", "deliverAt": -5}]}', 422, "messages.0.deliverAt"),
        ('{"messages": [{"payload": "a", "deliverAt": 5, "deliverAfterMs": 5}]}', 400, "messages.0.deliverAt"),
        ('{"messages": [{"payload": "a"}], "keySchema": "x"}', 501, "keySchema"),
        ('{"messages": [{"payload": "a"}], "valueSchema": "x"}', 400, "valueSchema"),
        ('{"messages": [{"payload": "1"}], "valueSchema": "{\\"type\\": \\"INT32\\"}"}', 501, "valueSchema"),
        (json.dumps({"messages": [{"payload": "1"}], "valueSchema": "[" * 100_000}), 400, "valueSchema"),
        (json.dumps({"messages": [{"payload": "1"}], "valueSchema": '{"type": "AVRO"}'}), 400, "valueSchema"),
        (json.dumps({"messages": [{"payload": "1"}], "valueSchema": schema_info("JSON", [])}), 400, "valueSchema"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_and_names_the_field(
    topic: FakeTopic, gateway: Gateway, body: str, status: int, field: str
) -> None:
    answer = await gateway.http.post(URL, content=body)
    assert (answer.status_code, answer.json()["field"]) == (status, field)
    assert answer.json()["reason"]
    assert answer.json()["advice"] == "stop"
    assert topic.messages == []


@pytest.mark.parametrize(
    ("schema", "payload", "stored"),
    [
        (schema_info("STRING"), "grüße", "grüße".encode()),
        (schema_info("BYTES"), "x", b"x"),
        (schema_info("JSON"), '{"number" : 1.0}', b'{"number" : 1.0}'),
        (schema_info("JSON", RECORD), '{"number": 1}', b'{"number": 1}'),
        (schema_info("AVRO", RECORD), '{"number": 1}', b"\x02"),
    ],
)
async def test_payloads_that_fit_their_schema_are_stored(
    topic: FakeTopic, gateway: Gateway, schema: str, payload: str, stored: bytes
) -> None:
    for _ in range(2):
        answer = await gateway.http.post(URL, json={"valueSchema": schema, "messages": [{"payload": payload}]})
        assert answer.status_code == 200
    assert [message.data for message in topic.messages] == [stored, stored]
    given = gateway.world.producer_options.get("schema")
    info = None if given is None else given.info
    assert (info.type.name if info is not None else None) == {
        schema_info("STRING"): "STRING",
        schema_info("JSON", RECORD): "JSON",
        schema_info("AVRO", RECORD): "AVRO",
    }.get(schema)
    assert len(gateway.app.state.services.producers) == 1, "requests with equal schemas share a producer"


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (schema_info("JSON", RECORD), {"payload": "not json"}),
        (schema_info("JSON"), {"payload": "[" * 100_000}),
        (schema_info("AVRO", RECORD), {"payload": '{"number": "one"}'}),
        (schema_info("AVRO", RECORD), {"payload": "7"}),
        (schema_info("STRING"), {"payloadBase64": "/w=="}),
    ],
)
async def test_a_payload_that_does_not_fit_its_schema_is_refused_and_nothing_is_stored(
    topic: FakeTopic, gateway: Gateway, schema: str, message: dict[str, str]
) -> None:
    fits = '"x"' if "STRING" in schema else '{"number": 1}'
    answer = await gateway.http.post(URL, json={"valueSchema": schema, "messages": [{"payload": fits}, message]})
    assert (answer.status_code, answer.json()["field"]) == (400, "messages.1.payload")
    assert topic.messages == []


def nested(levels: int, innermost: object) -> str:
    value: dict[str, object] = {"n": innermost}
    for _ in range(levels):
        value = {"n": value, "x": 1}
    return json.dumps(value)


async def test_a_value_that_may_be_of_many_types_is_refused_before_it_is_encoded(gateway: Gateway) -> None:
    topic = gateway.world.add()
    number = {"name": "x", "type": "int", "default": 0}
    second = {"type": "record", "name": "B", "fields": [{"name": "n", "type": ["null", "A", "B"]}, number]}
    first = {"type": "record", "name": "A", "fields": [{"name": "n", "type": ["null", "A", second]}, number]}
    schema = schema_info("AVRO", first)
    messages = [{"payload": nested(50, "no such type")}]
    answer = await gateway.http.post(URL, json={"valueSchema": schema, "messages": messages})
    assert (answer.status_code, answer.json()["field"]) == (400, "messages.0.payload")
    assert "50000" in answer.json()["limit"]
    answer = await gateway.http.post(URL, json={"valueSchema": schema, "messages": [{"payload": nested(6, None)}]})
    assert answer.status_code == 200, answer.json()
    assert len(topic.messages) == 1
    many = [{"payload": nested(12, None)}] * 1_000
    answer = await gateway.http.post(URL, json={"valueSchema": schema, "messages": many})
    assert (answer.status_code, "1000000 in one request" in answer.json()["limit"]) == (400, True)


async def test_a_schema_above_its_limits_is_refused(gateway: Gateway) -> None:
    for name, large in {
        "doc": "d" * (600 << 10),
        "symbols": ["a"] * 30_000,
        "deep": json.loads("[" * 70 + "]" * 70),
    }.items():
        schema = schema_info("AVRO", {"type": "record", "name": "A", "fields": [], name: large})
        answer = await gateway.http.post(URL, json={"valueSchema": schema, "messages": [{"payload": "{}"}]})
        assert (answer.status_code, answer.json()["field"]) == (400, "valueSchema"), name


@pytest.mark.parametrize("announced", [True, False])
async def test_an_oversized_body_is_refused_before_it_is_read_whole(announced: bool) -> None:
    """I15: the gateway never buffers more of a body than the limit."""

    async with Gateway(max_message_bytes=500, request_bytes_max=1000) as gateway:
        gateway.world.add()
        read = 0

        async def chunks() -> object:
            nonlocal read
            for _ in range(100):
                read += 1
                yield b" " * 100

        headers = {"content-length": "10000"} if announced else {}
        answer = await gateway.http.post(URL, content=chunks(), headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 413
        assert answer.json()["field"] == "body"
        assert read < 100


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("persistent/public/default/unknown", 404),
        ("persistent/public/default/%20", 412),
        ("persistent/pub%20lic/default/t", 412),
        ("persistent/public/default/a%2Fb", 412),
        ("non-persistent/public/default/t", 404),
        ("elsewhere/public/default/t", 412),
    ],
)
async def test_a_topic_that_cannot_be_published_to(gateway: Gateway, path: str, status: int) -> None:
    answer = await gateway.http.post(f"/topics/{path}", json={"messages": [{"payload": "x"}]})
    assert answer.status_code == status
    assert answer.json()["reason"]


async def test_an_unexpected_failure_is_a_500_without_the_inside(gateway: Gateway) -> None:
    gateway.world.add()
    gateway.world.send_errors[b"x"] = RuntimeError("secret")  # type: ignore[assignment]
    answer = await gateway.http.post(URL, json={"messages": [{"payload": "x"}]})
    assert answer.status_code == 500
    assert "secret" not in answer.text


async def test_topics_are_named_by_whole_segments(gateway: Gateway) -> None:
    topic = gateway.world.add("persistent://public/default/a%b c")
    answer = await gateway.http.post(
        "/topics/persistent/public/default/a%25b%20c/", json={"messages": [{"payload": "x"}]}
    )
    assert answer.status_code == 200
    assert len(topic.messages) == 1
    assert FLIGHTS not in gateway.world.topics


async def test_a_producer_that_is_over_is_replaced(topic: FakeTopic, gateway: Gateway) -> None:
    gateway.world.send_errors[b"x"] = ProducerFencedError("another took over")
    answer = await gateway.http.post(URL, json={"messages": [{"payload": "x"}]})
    assert (answer.status_code, topic.producers) == (409, 0)
    answer = await gateway.http.post(URL, json={"messages": [{"payload": "x"}]})
    assert (answer.status_code, topic.producers) == (200, 1)


async def test_a_producer_dropped_while_a_request_holds_it_is_closed_behind_it(gateway: Gateway) -> None:
    topic = gateway.world.add()
    gateway.world.held = []
    posting = asyncio.ensure_future(gateway.http.post(URL, json={"messages": [{"payload": "x"}]}))
    await settle()
    await gateway.app.state.services.producers.drop(FLIGHTS)
    assert topic.producers == 1
    gateway.world.release(1)
    assert (await posting).status_code == 200
    assert topic.producers == 0


async def test_when_all_producers_are_in_use_the_caller_is_told() -> None:
    """I15."""

    async with Gateway(rest_producers_max=1) as gateway:
        gateway.world.add()
        gateway.world.add("persistent://public/default/other")
        gateway.world.held = []
        posting = asyncio.ensure_future(gateway.http.post(URL, json={"messages": [{"payload": "x"}]}))
        await settle()
        other = "/topics/persistent/public/default/other"
        answer = await gateway.http.post(other, json={"messages": [{"payload": "x"}]})
        assert (answer.status_code, answer.json()["field"]) == (429, "rest_producers_max")
        gateway.world.release(1)
        assert (await posting).status_code == 200
