"""REST produce of raw bodies, NDJSON and CloudEvents, and reading messages back as CloudEvents."""

from __future__ import annotations

import base64
import json
import threading
from typing import Any

import pytest

from heliograph.gateway.rest import produce
from heliograph.gateway.shapes import cloud_events
from heliograph.gateway.shapes.publish_bodies import unpacked
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS_PATH, Gateway

URL = f"/topics/{FLIGHTS_PATH}"
TAKE = f"{URL}/subscription/s/messages?initialPosition=earliest"
EVENT: dict[str, Any] = {"specversion": "1.0", "id": "1", "source": "/towers/lga", "type": "org.example.landed"}
STORED = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/towers/lga", "ce_type": "org.example.landed"}


async def post(gateway: Gateway, body: bytes | str, media_type: str, query: str = "", **headers: str) -> Any:
    sent = {"Content-Type": media_type} | {name.replace("_", "-"): value for name, value in headers.items()}
    return await gateway.http.post(URL + query, content=body, headers=sent)


def payloads(topic: FakeTopic) -> list[bytes]:
    return [message.data for message in topic.messages]


@pytest.mark.parametrize(
    ("media_type", "body", "stored"),
    [
        ("application/octet-stream", b"\xff\x00\n", b"\xff\x00\n"),
        ("application/octet-stream", b"", b""),
        ("text/plain", "grüße\n".encode(), "grüße\n".encode()),
        ('Text/Plain; charset="UTF-8"', "grüße".encode(), "grüße".encode()),
        ("text/plain; charset=iso-8859-1; x=y", "grüße".encode("latin-1"), "grüße".encode()),
    ],
)
async def test_a_raw_body_is_one_message(gateway: Gateway, media_type: str, body: bytes, stored: bytes) -> None:
    topic = gateway.world.add()
    answer = await post(gateway, body, media_type)
    assert answer.status_code == 200
    assert [result["errorCode"] for result in answer.json()["messagePublishResults"]] == [0]
    assert payloads(topic) == [stored]
    assert (topic.messages[0].key, topic.messages[0].properties) == (None, {})


async def test_the_query_says_what_a_raw_body_cannot(topic: FakeTopic, gateway: Gateway) -> None:
    query = "?key=N1&property=a%3Db%3Dc&property=d=&eventTime=7&deliverAt=9&producerName=tower&compressionType=ZSTD"
    answer = await post(gateway, b"x", "application/octet-stream", query)
    assert answer.status_code == 200
    [message] = topic.messages
    assert (message.key, message.properties, message.event_time_ms) == ("N1", {"a": "b=c", "d": ""}, 7)
    assert gateway.world.deliver_at == [9]
    options = gateway.world.producer_options
    assert (options["name"], options["compression"]) == ("tower", "zstd")


async def test_each_line_of_ndjson_is_a_message_as_it_was_sent(topic: FakeTopic, gateway: Gateway) -> None:
    body = '{"a" : 1.0}\r\n\n  "grüße"\nnull\n[1e400]'
    answer = await post(gateway, body, "application/x-ndjson; charset=utf-8", "?key=k")
    assert answer.status_code == 200
    assert payloads(topic) == [b'{"a" : 1.0}', '"grüße"'.encode(), b"null", b"[1e400]"]
    assert {message.key for message in topic.messages} == {"k"}


async def test_values_of_a_raw_body_fit_the_schema_of_the_query(topic: FakeTopic, gateway: Gateway) -> None:
    record = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}
    info = {"type": "AVRO", "schema": base64.b64encode(json.dumps(record).encode()).decode()}
    query = {"valueSchema": json.dumps(info)}
    sent = {"Content-Type": "application/x-ndjson"}
    answer = await gateway.http.post(URL, params=query, content=b'{"number": 1}\n{"number": 2}', headers=sent)
    assert (answer.status_code, payloads(topic)) == (200, [b"\x02", b"\x04"])
    answer = await gateway.http.post(URL, params=query, content=b'{"number": 1}\n{"number": "x"}', headers=sent)
    assert (answer.status_code, answer.json()["field"]) == (400, "lines.1.payload")
    assert len(topic.messages) == 2


@pytest.mark.parametrize(
    ("media_type", "body", "query", "status", "field"),
    [
        ("application/x-ndjson", b"", "", 400, "body"),
        ("application/x-ndjson", b"\n \n", "", 400, "body"),
        ("application/x-ndjson", b"1\n{\n", "", 400, "lines.1"),
        ("application/x-ndjson", b"NaN", "", 400, "lines.0"),
        ("application/x-ndjson", b"\xff", "", 400, "lines.0"),
        ("application/x-ndjson", b"1\x002\x00", "", 400, "lines.0"),
        ("application/x-ndjson", b"[" * 100_000, "", 400, "lines.0"),
        ("application/x-ndjson", b"1\n" * 10_001, "", 413, "lines"),
        ("text/plain", b"\xff", "", 400, "body"),
        ("text/plain; charset=idna", b"x", "", 415, "Content-Type"),
        ("application/octet-stream", b"x", "?property=a", 422, "property"),
        ("application/octet-stream", b"x", "?property=%3Da", 422, "property"),
        ("application/octet-stream", b"x", "?eventTime=-1", 422, "eventTime"),
        ("application/octet-stream", b"x", "?deliverAt=1&deliverAfterMs=1", 400, "deliverAt"),
        ("application/json", b'{"messages": [{"payload": "x"}]}', "?key=a", 400, "key"),
        (cloud_events.STRUCTURED, b"[]", "", 400, "event"),
        (cloud_events.BATCHED, b"{}", "", 400, "body"),
        (cloud_events.BATCHED, b"[1]", "", 400, "events.0"),
    ],
)
async def test_a_body_that_is_not_what_it_is_called_is_refused_and_nothing_is_stored(
    topic: FakeTopic, gateway: Gateway, media_type: str, body: bytes, query: str, status: int, field: str
) -> None:
    answer = await post(gateway, body, media_type, query)
    assert (answer.status_code, answer.json()["field"]) == (status, field), answer.text
    assert topic.messages == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"specversion": "0.3"}, "specversion"),
        ({"specversion": None}, "specversion"),
        ({"id": ""}, "id"),
        ({"source": None}, "source"),
        ({"type": 7.5}, "type"),
        ({"time": "noon"}, "time"),
        ({"time": "2026-01-01T00:00:00"}, "time"),
        ({"Upper": "x"}, "Upper"),
        ({"with_line": "x"}, "with_line"),
        ({"big": 1 << 31}, "big"),
        ({"half": "\ud800"}, "half"),
        ({"data": "\ud800"}, "data"),
        ({"data": 1, "data_base64": "AA=="}, "data"),
        ({"data_base64": "*"}, "data_base64"),
    ],
)
async def test_an_event_that_is_none_is_refused_and_names_the_attribute(
    topic: FakeTopic, gateway: Gateway, changes: dict[str, Any], field: str
) -> None:
    answer = await post(gateway, json.dumps([EVENT, EVENT | changes]), cloud_events.BATCHED)
    assert (answer.status_code, answer.json()["field"]) == (400, f"events.1.{field}"), answer.text
    assert topic.messages == []


async def test_an_event_is_stored_alike_in_every_mode(topic: FakeTopic, gateway: Gateway) -> None:
    more = {"time": "2026-02-03T04:05:06.789Z", "subject": "runway 4", "partitionkey": "N1", "urgent": "true"}
    event = EVENT | more | {"urgent": True, "datacontenttype": "application/json", "data": {"b": ["ü", 1.5], "a": None}}
    data = '{"b":["ü",1.5],"a":null}'.encode()
    headers = {f"ce-{name}": value for name, value in (EVENT | more).items()} | {"ce-subject": '"runway%204"'}
    for media_type, body, sent in (
        (cloud_events.STRUCTURED, json.dumps(event).encode(), {}),
        (cloud_events.BATCHED, json.dumps([event]).encode(), {}),
        ("application/json", data, headers),
    ):
        topic.messages.clear()
        assert (await post(gateway, body, media_type, **sent)).status_code == 200
        [message] = topic.messages
        assert (message.data, message.key, message.event_time_ms) == (data, "N1", 1_770_091_506_789)
        stored = {f"ce_{name}": value for name, value in more.items()} | {"content-type": "application/json"}
        assert message.properties == STORED | stored


@pytest.mark.parametrize(
    ("members", "payload", "content_type"),
    [
        ({}, b"", None),
        ({"data": "text"}, b'"text"', "application/json"),
        ({"data": "text", "datacontenttype": "text/html"}, b"text", "text/html"),
        ({"data": 7, "datacontenttype": "text/html"}, b"7", "text/html"),
        ({"data": "7", "datacontenttype": "application/x+json; v=1"}, b'"7"', "application/x+json; v=1"),
        ({"data_base64": "/wA=", "datacontenttype": "image/png"}, b"\xff\x00", "image/png"),
        ({"data_base64": "/wA="}, b"\xff\x00", None),
    ],
)
async def test_data_of_an_event_survives_and_is_read_back(
    topic: FakeTopic, gateway: Gateway, members: dict[str, Any], payload: bytes, content_type: str | None
) -> None:
    assert (await post(gateway, json.dumps(EVENT | members), cloud_events.STRUCTURED)).status_code == 200
    [message] = topic.messages
    assert (message.data, message.properties.get("content-type")) == (payload, content_type)
    answer = await gateway.http.post(TAKE, headers={"Accept": cloud_events.BATCHED})
    assert answer.headers["content-type"] == cloud_events.BATCHED
    [event] = answer.json()
    acknowledged = await gateway.http.post(f"{URL}/subscription/s/ack", json={"messageIds": [event.pop("messageid")]})
    assert acknowledged.json() == {"acknowledged": 1}
    assert event.pop("publishtime")
    assert event.pop("redeliverycount") == 0
    if "data" in members:
        members = {"datacontenttype": "application/json"} | members
        members["data"] = members["data"] if "json" in members["datacontenttype"] else str(members["data"])
    assert event == EVENT | members


async def test_messages_that_are_no_events_are_read_as_events_of_their_topic(gateway: Gateway) -> None:
    topic = gateway.world.add()
    properties = {"content-type": "application/json", "ce_Odd": "x", "plain": "y"}
    first = {"payload": "text", "key": "k", "eventTime": 1000, "properties": properties}
    body = {"messages": [first, {"payloadBase64": "/w=="}]}
    assert (await gateway.http.post(URL, json=body)).status_code == 200
    first, second = (await gateway.http.post(TAKE, headers={"Accept": cloud_events.BATCHED})).json()
    assert first["id"] == first["messageid"] != second["id"]
    assert (first["source"], first["type"]) == (topic.name, cloud_events.MESSAGE_TYPE)
    assert (first["partitionkey"], first["time"]) == ("k", "1970-01-01T00:00:01.000Z")
    assert base64.b64decode(first["data_base64"]) == b"text"  # it says JSON and is none
    assert base64.b64decode(second["data_base64"]) == b"\xff"
    assert not {"plain", "Odd", "key"} & first.keys()


async def test_an_event_before_1970_keeps_its_time_as_a_property(topic: FakeTopic, gateway: Gateway) -> None:
    body = json.dumps(EVENT | {"time": "1903-12-17T10:35:00-05:00"})
    assert (await post(gateway, body, cloud_events.STRUCTURED)).status_code == 200
    assert (topic.messages[0].event_time_ms, topic.messages[0].properties["ce_time"][:4]) == (None, "1903")


async def test_a_number_above_all_others_is_read_as_bytes(gateway: Gateway) -> None:
    gateway.world.add()
    query = "?property=content-type%3Dapplication%2Fjson"
    assert (await post(gateway, "[1e400]", "application/x-ndjson", query)).status_code == 200
    answer = await gateway.http.post(TAKE, headers={"Accept": cloud_events.BATCHED})
    assert b"Infinity" not in answer.content, "that is no JSON"
    [event] = answer.json()
    assert base64.b64decode(event["data_base64"]) == b"[1e400]"


@pytest.mark.parametrize("name", ["valueSchema", "value\\u0053chema"])
async def test_values_are_encoded_on_a_thread(gateway: Gateway, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    topic = gateway.world.add()
    threads: list[str] = []

    def note(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return unpacked(*arguments)

    monkeypatch.setattr(produce, "unpacked", note)
    record = {"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}
    info = json.dumps({"type": "AVRO", "schema": base64.b64encode(json.dumps(record).encode()).decode()})
    sent = {"Content-Type": "application/x-ndjson"}
    answer = await gateway.http.post(URL, params={"valueSchema": info}, content=b'{"number": 7}', headers=sent)
    assert answer.status_code == 200
    message = {"payload": '{"number": 8}'}
    body = json.dumps({"NAME": info, "messages": [message]}).replace("NAME", name)
    assert (await post(gateway, body, "application/json")).status_code == 200
    assert payloads(topic) == [b"\x0e", b"\x10"]
    assert threading.main_thread().name not in threads
