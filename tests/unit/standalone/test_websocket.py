"""WebSocket at ``heliograph.local`` and ``helio dev``: producer, consumer and reader of Pulsar's protocol."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

import heliograph
from tests.unit.standalone.test_dev import running

pytestmark = pytest.mark.slow

TOPIC = "persistent/public/default/sensors"
SECONDS_MAX = 120


def exchange(http_url: str, number: int) -> None:
    """Publish numbers, consume half of them, and find the other half after a new connection; a reader sees all."""
    url = http_url.replace("http://", "ws://", 1)
    with connect(f"{url}/ws/v2/producer/{TOPIC}", open_timeout=SECONDS_MAX, max_queue=None) as producer:
        for each in range(number):
            payload = base64.b64encode(b"%d" % each).decode()
            producer.send(json.dumps({"payload": payload, "key": "kitchen", "context": str(each)}))
        answers = [_frame(producer) for _ in range(number)]
    assert [(answer["result"], answer["context"]) for answer in answers] == [("ok", str(n)) for n in range(number)]
    consumer_url = f"{url}/ws/v2/consumer/{TOPIC}/display?subscriptionInitialPosition=Earliest"
    for half in (range(number // 2), range(number // 2, number)):
        with connect(
            f"{consumer_url}&receiverQueueSize={number}", open_timeout=SECONDS_MAX, max_queue=None
        ) as consumer:
            for each in half:
                message = _frame(consumer)
                assert (_value(message), message["key"]) == (str(each), "kitchen")
                consumer.send(json.dumps({"messageId": message["messageId"], "context": str(each)}))
            confirmed: list[str] = []
            while len(confirmed) < len(half):  # deliveries of the other half may stand between the answers
                if (answer := _frame(consumer)).get("result") == "ok":
                    confirmed.append(answer["context"])
        assert confirmed == [str(each) for each in half]
    with connect(f"{url}/ws/v2/reader/{TOPIC}?messageId=earliest", open_timeout=SECONDS_MAX, max_queue=None) as reader:
        for each in range(number):
            message = _frame(reader)
            assert _value(message) == str(each)
            reader.send(json.dumps({"messageId": message["messageId"]}))


def _frame(socket: ClientConnection) -> dict[str, Any]:
    frame = json.loads(socket.recv(SECONDS_MAX))
    assert isinstance(frame, dict)
    return frame


def _value(message: dict[str, Any]) -> str:
    return base64.b64decode(message["payload"]).decode()


def test_websocket_of_a_cluster_in_this_process_and_what_a_handle_sees_of_it(tmp_path: Path) -> None:
    with heliograph.local(tmp_path) as cluster:
        exchange(cluster.http_url, 20)
        with cluster.connect() as client, client.reader("sensors", start="earliest") as reader:
            assert [reader.receive(timeout=SECONDS_MAX).value for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_websocket_of_helio_dev() -> None:
    with running() as (_, printed):
        exchange(printed["http_url"], 20)
