"""Values of every type by a broker: own handles, REST and the stock client read what the others wrote."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import Any

import pulsar
import pytest
import websockets

import heliograph
from heliograph.client.schemas.models import ModelSchema
from heliograph.client.schemas.records import AvroSchema, JsonSchema
from tests.unit.client.values.table import AVRO_ROWS, MODEL_ROWS, model_of, model_of_value, record_of
from tests.websocket import connect

pytestmark = pytest.mark.slow

SECONDS = 60


def post(cluster: heliograph.LocalCluster, topic: str, schema: ModelSchema | AvroSchema, payload: str) -> int:
    """Publish by REST with a schema; return the status."""
    info = {
        "name": schema.info.name,
        "type": schema.info.type.name,
        "schema": base64.b64encode(schema.info.data).decode(),
        "properties": {},
    }
    body = json.dumps({"valueSchema": json.dumps(info), "messages": [{"payload": payload}]})
    url = f"{cluster.http_url}/topics/persistent/public/default/{topic}"
    request = urllib.request.Request(url, body.encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_fields_of_models_come_back_from_brokers_and_rest(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    for shown, kind, value in MODEL_ROWS:
        schema, topic = ModelSchema(model_of(kind)), f"model-{uuid.uuid4().hex}"
        sent = model_of_value(schema, value)
        client.producer(topic, schema=schema).send(sent)
        assert post(cluster, topic, schema, schema.encode(sent).decode()) == 200
        with client.reader(topic, "earliest", schema=schema) as reader:
            messages = [reader.receive(SECONDS) for _ in range(2)]
        assert [message.value for message in messages] == [sent, sent], shown
        assert [message.schema_version for message in messages] == [0, 0]


def test_fields_of_records_come_back_from_brokers_and_rest(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    for form, value, in_json in AVRO_ROWS:
        schema, topic = AvroSchema(record_of(form)), f"record-{uuid.uuid4().hex}"
        client.producer(topic, schema=schema).send({"x": value})
        is_taken = value is None or in_json is not None
        assert post(cluster, topic, schema, json.dumps({"x": in_json})) == (200 if is_taken else 400), form
        with client.reader(topic, "earliest", schema=schema) as reader:
            messages = [reader.receive(SECONDS) for _ in range(1 + is_taken)]
        assert [message.value for message in messages] == [{"x": value}] * len(messages), form


def info_of(schema: ModelSchema | AvroSchema) -> str:
    definition = base64.b64encode(schema.info.data).decode()
    return json.dumps({"name": "", "type": schema.info.type.name, "schema": definition, "properties": {}})


def received(client: heliograph.Client, topic: str, schema: Any, count: int) -> list[heliograph.Message]:
    with client.reader(topic, "earliest", schema=schema) as reader:
        return [reader.receive(SECONDS) for _ in range(count)]


async def one_frame(url: str) -> dict[str, Any]:
    async with connect(url) as peer, asyncio.timeout(SECONDS):
        return dict(json.loads(await peer.recv()))


async def test_fields_of_records_come_back_over_websockets(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    base = cluster.http_url.replace("http", "ws", 1) + "/ws/v2"
    for form, value, in_json in AVRO_ROWS:
        schema, topic = AvroSchema(record_of(form)), f"socket-{uuid.uuid4().hex}"
        query = urllib.parse.urlencode({"valueSchema": info_of(schema), "payloadFormat": "json"})
        is_taken = value is None or in_json is not None
        async with connect(f"{base}/producer/persistent/public/default/{topic}?{query}") as peer:
            await peer.send(json.dumps({"payload": {"x": in_json}}))
            answer = json.loads(await peer.recv())
        assert answer["result"] == ("ok" if is_taken else "send-error:7"), (form, answer)
        await asyncio.to_thread(client.producer(topic, schema=schema).send, {"x": value})
        messages = await asyncio.to_thread(received, client, topic, schema, 1 + is_taken)
        assert [message.value for message in messages] == [{"x": value}] * len(messages), form
        frame = await one_frame(f"{base}/reader/persistent/public/default/{topic}?messageId=earliest&{query}")
        shown = {"payload": {"x": in_json}} if is_taken else {"payload": None}
        more = {} if is_taken else {"payloadBase64": base64.b64encode(messages[0].data).decode()}
        assert {name: frame[name] for name in frame if "payload" in name} == shown | more, form


async def test_a_websocket_with_a_schema_is_held_to_it(
    cluster: heliograph.LocalCluster, client: heliograph.Client
) -> None:
    topic = f"held-{uuid.uuid4().hex}"
    base = cluster.http_url.replace("http", "ws", 1) + "/ws/v2"
    place = f"persistent/public/default/{topic}"
    schema = AvroSchema(record_of("float"))
    old, other = (
        urllib.parse.urlencode({"valueSchema": info_of(each), "payloadFormat": "text"})
        for each in (schema, AvroSchema(record_of("string")))
    )
    async with connect(f"{base}/producer/{place}?{old}") as peer:
        for text, result in (
            ('{"x": 0.5}', "ok"),
            ('{"x": 0.1}', "send-error:7"),  # no float is 0.1
            ('{"x": "a"}', "send-error:7"),
            ("{", "send-error:7"),
            (None, "ok"),
        ):
            await peer.send(json.dumps({"payload": text, "context": "c"}))
            answer = json.loads(await peer.recv())
            assert (answer["result"], answer["context"]) == (result, "c"), answer
    for kind in ("producer/", "reader/", "consumer/"):
        with pytest.raises(websockets.exceptions.InvalidStatus) as refused:
            await one_frame(f"{base}/{kind}{place}{'/s' if kind == 'consumer/' else ''}?{other}")
        assert refused.value.response.status_code == 409, kind
    url = f"{base}/consumer/{place}/s?subscriptionInitialPosition=earliest&{old}"
    await asyncio.to_thread(client.producer(topic).send, b"\xff")  # too short for a float
    async with connect(url.replace("Position=earliest", "Position=Earliest")) as peer, asyncio.timeout(SECONDS):
        frames = [json.loads(await peer.recv()) for _ in range(3)]
    shown = [{name: frame[name] for name in frame if "payload" in name} for frame in frames]
    assert shown == [{"payload": '{"x":0.5}'}, {"payload": None}, {"payload": None, "payloadBase64": "/w=="}]


async def test_null_values_pass_every_door(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    topic = f"null-{uuid.uuid4().hex}"
    place = f"persistent/public/default/{topic}"
    base = cluster.http_url.replace("http", "ws", 1) + "/ws/v2"
    await asyncio.to_thread(client.producer(topic, schema=str).send, None, key="k")
    info = json.dumps({"type": "STRING", "schema": ""})
    for body in ({"messages": [{"payload": None, "key": "k"}]}, {"messages": [{"payload": None}], "valueSchema": info}):
        url = f"{cluster.http_url}/topics/{place}"
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with await asyncio.to_thread(urllib.request.urlopen, request, timeout=SECONDS) as answer:
            assert answer.status == 200
    for form in ("base64", "text", "json"):
        async with connect(f"{base}/producer/{place}?payloadFormat={form}") as peer:
            await peer.send(json.dumps({"payload": None, "key": "k"}))
            assert json.loads(await peer.recv())["result"] == "ok"
        frame = await one_frame(f"{base}/reader/{place}?messageId=earliest&payloadFormat={form}")
        assert (frame["payload"], "payloadBase64" in frame) == (None, False)
    own = await asyncio.to_thread(received, client, topic, str, 6)
    assert [message.value for message in own] == [None] * 6
    url = f"{cluster.http_url}/topics/{place}/subscription/s/messages?max=6&timeoutMs=5000&initialPosition=earliest"
    with await asyncio.to_thread(urllib.request.urlopen, urllib.request.Request(url, b"")) as answer:
        found = json.load(answer)["messages"]
    assert {(each["payload"], each["payloadBase64"]) for each in found} == {(None, "")}


class TheirPlace(pulsar.schema.Record):  # type: ignore[misc]
    city = pulsar.schema.String()


class Theirs(pulsar.schema.Record):  # type: ignore[misc]
    flag = pulsar.schema.Boolean()
    number = pulsar.schema.Long()
    share = pulsar.schema.Double()
    name = pulsar.schema.String()
    tags = pulsar.schema.Array(pulsar.schema.String())
    counts = pulsar.schema.Map(pulsar.schema.Long())
    home = TheirPlace()


@dataclasses.dataclass
class OurPlace:
    city: str | None


@dataclasses.dataclass
class Ours:
    flag: bool | None
    number: int | None
    share: float | None
    name: str | None
    tags: list[str] | None
    counts: dict[str, int] | None
    home: OurPlace | None


VALUES = {
    "flag": True,
    "number": -(1 << 63),
    "share": 0.1,
    "name": "é",
    "tags": ["a", ""],
    "counts": {"a": 1, "": 0},
    "home": {"city": "B"},
}


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_the_stock_client_and_this_one_read_each_others_records(
    cluster: heliograph.LocalCluster, client: heliograph.Client, kind: str
) -> None:
    their_class = pulsar.schema.JsonSchema if kind == "json" else pulsar.schema.AvroSchema
    schema: Any = their_class(Theirs)
    definition = schema.schema_info().schema()
    ours: Any = JsonSchema(definition) if kind == "json" else AvroSchema(definition)
    topic = f"stock-{kind}-{uuid.uuid4().hex}"
    with client.producer(topic, schema=ours) as producer:
        producer.send(VALUES)
    stock = pulsar.Client(cluster.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = stock.create_reader(topic, pulsar.MessageId.earliest, schema=schema)
        found = reader.read_next(SECONDS * 1000).value()
        assert {name: getattr(found, name) for name in VALUES if name != "home"} == {
            name: value for name, value in VALUES.items() if name != "home"
        }
        home = found.home if isinstance(found.home, dict) else {"city": found.home.city}
        assert home == VALUES["home"]
        place = TheirPlace(city="B")
        stock.create_producer(topic, schema=schema).send(Theirs(**{**VALUES, "home": place}))
    finally:
        stock.close()
    with client.reader(topic, "earliest", schema=ours) as own:
        read = [own.receive(SECONDS).value for _ in range(2)]
    assert [{name: value[name] for name in VALUES} for value in read] == [VALUES, VALUES]
    if kind == "json":
        decode = ModelSchema(Ours).decoder(None)
        with client.reader(topic, "earliest") as raw:
            shown = [decode(raw.receive(SECONDS).data) for _ in range(2)]
        assert [dataclasses.asdict(each) for each in shown] == [VALUES, VALUES]
