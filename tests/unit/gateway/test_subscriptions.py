"""Administration of subscriptions over REST, and delayed messages from REST and WebSocket producers."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from tests.unit.gateway.world import FLIGHTS, FLIGHTS_PATH, Gateway, run

SUBSCRIPTION = f"/admin/v2/{FLIGHTS_PATH}/subscription/s"


@pytest.mark.parametrize(
    ("path", "body", "call"),
    [
        ("skip/5", None, ("skip", FLIGHTS, "s", 5)),
        ("skip_all", None, ("skip_all", FLIGHTS, "s")),
        ("expireMessages/60", None, ("expire", FLIGHTS, "s", 60)),
        ("expireMessages", {"ledgerId": 3, "entryId": 4}, ("expire_to", FLIGHTS, "s", "3:4:-1", False)),
        ("resetcursor/1700000000000", None, ("reset", FLIGHTS, "s", 1_700_000_000_000, False)),
        ("resetcursor", {"ledgerId": -1, "entryId": -1}, ("reset", FLIGHTS, "s", "earliest", False)),
        ("resetcursor", {"ledgerId": 2**63 - 1, "entryId": 1}, ("reset", FLIGHTS, "s", "latest", False)),
        (
            "resetcursor",
            {"ledgerId": 3, "entryId": 4, "partitionIndex": 2, "batchIndex": 1, "isExcluded": True},
            ("reset", FLIGHTS, "s", "3:4:2:1", True),
        ),
        ("../../all_subscription/expireMessages/9", None, ("expire", FLIGHTS, None, 9)),
    ],
)
def test_moving_a_subscription(path: str, body: Any, call: tuple[Any, ...]) -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.world.add()
        url = f"/admin/v2/{FLIGHTS_PATH}/{path[6:]}" if path.startswith("../../") else f"{SUBSCRIPTION}/{path}"
        answer = await gateway.http.post(url, json=body)
        assert answer.status_code == 204, answer.text
        assert gateway.world.cursors.calls == [call]

    run(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("skip/-1", "", 422),
        ("resetcursor", "{", 400),
        ("resetcursor", "[]", 400),
        ("resetcursor", '{"ledgerId": "3"}', 400),
        ("expireMessages", '{"ledgerId": true, "entryId": 1}', 400),
    ],
)
def test_bad_input(path: str, body: str, status: int) -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.world.add()
        answer = await gateway.http.post(f"{SUBSCRIPTION}/{path}", content=body)
        assert answer.status_code == status, answer.text
        assert gateway.world.cursors.calls == []

    run(scenario)


def test_what_needs_one_partition_says_so() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.world.add(partitions=3)
        assert (await gateway.http.post(f"{SUBSCRIPTION}/skip/1")).status_code == 405
        assert (await gateway.http.get(f"{SUBSCRIPTION}/position/1")).status_code == 405
        assert (await gateway.http.post(f"{SUBSCRIPTION}/skip_all")).status_code == 204

    run(scenario)


def test_looking_at_messages() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.world.add()
        common = {
            "key": "k\u00e9", "properties": {"a": "b"}, "publish_time_ms": 1_700_000_000_123, "event_time_ms": 5,
            "deliver_at_ms": 0, "producer_name": "p", "sequence_id": 3, "is_raw": False, "is_marker": False,
        }  # fmt: skip
        gateway.world.cursors.messages = [
            {**common, "message_id": f"7:1:-1:{n}", "payload": b"m%d" % n, "batch_size": 2} for n in range(2)
        ]
        found = await gateway.http.get(f"{SUBSCRIPTION}/position/2")
        assert (found.status_code, found.content) == (200, b"m1")
        assert found.headers["X-Pulsar-Message-ID"] == "7:1"
        assert found.headers["X-Pulsar-batch-index"] == "1"
        assert found.headers["X-Pulsar-num-batch-message"] == "2"
        assert json.loads(found.headers["X-Pulsar-PROPERTY"]) == {"a": "b"}
        assert (await gateway.http.get(f"{SUBSCRIPTION}/position/3")).status_code == 404
        topic = f"/admin/v2/{FLIGHTS_PATH}"
        examined = await gateway.http.get(f"{topic}/examinemessage?initialPosition=earliest&messagePosition=1")
        assert examined.content == b"m0"
        assert (await gateway.http.get(f"{topic}/ledger/7/entry/1")).content == b"m1"
        at_time = (await gateway.http.get(f"{topic}/messageid/1700000000000")).json()
        assert at_time == {"ledgerId": 7, "entryId": 3, "partitionIndex": -1}
        last = (await gateway.http.get(f"{topic}/lastMessageId")).json()
        assert last == {"ledgerId": 7, "entryId": 9, "partitionIndex": -1, "batchIndex": 4}

    run(scenario)


def test_properties() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.world.add()
        assert (await gateway.http.put(f"{SUBSCRIPTION}/properties", json={"a": "b"})).status_code == 204
        assert (await gateway.http.get(f"{SUBSCRIPTION}/properties")).json() == {"a": "b"}

    run(scenario)


def test_delayed_messages() -> None:
    async def scenario(gateway: Gateway) -> None:
        gateway.world.add()
        before = time.time_ns() // 1_000_000
        body = {"messages": [{"payload": "a", "deliverAt": 7}, {"payload": "b", "deliverAfterMs": 60_000}]}
        assert (await gateway.http.post(f"/topics/{FLIGHTS_PATH}", json=body)).status_code == 200
        peer = await gateway.connect(f"/ws/v2/producer/{FLIGHTS_PATH}")
        peer.send({"payload": base64.b64encode(b"c").decode(), "deliverAfterMs": 60_000})
        assert (await peer.receive())["result"] == "ok"
        first, second, third = gateway.world.deliver_at
        assert first == 7
        for due in (second, third):
            assert due is not None
            assert due - before >= 60_000

    run(scenario)
