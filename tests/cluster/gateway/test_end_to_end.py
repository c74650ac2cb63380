"""The gateway over real brokers and bookies in one process: HTTP, WebSocket and a stock Pulsar client together."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pulsar
import pytest
from websockets.asyncio.client import ClientConnection

from heliograph.protocol.message_id import MessageId
from tests.cluster.gateway.stack import Stack, running_stack
from tests.websocket import connect

NAMESPACE = "/admin/v2/persistent/public/default"
TOPIC = "persistent/public/default/flights"
EARLY = "subscriptionInitialPosition=Earliest"
WAIT_SECONDS = 60.0


def _frame(payload: str, **fields: Any) -> str:
    return json.dumps({"payload": base64.b64encode(payload.encode()).decode(), **fields})


def _value(frame: dict[str, Any]) -> str:
    return base64.b64decode(frame["payload"]).decode()


async def _receive(socket: ClientConnection) -> dict[str, Any]:
    frame = json.loads(await asyncio.wait_for(socket.recv(), WAIT_SECONDS))
    assert isinstance(frame, dict)
    return frame


async def _take(stack: Stack, subscription: str, count: int, **parameters: Any) -> list[dict[str, Any]]:
    """Take a number of messages over REST."""
    url = f"/topics/{TOPIC}/subscription/{subscription}/messages"
    query = {"initialPosition": "earliest", "timeoutMs": 60_000, "max": 1000, **parameters}
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        answer = await stack.http.post(url, params=query)
        assert answer.status_code == 200, answer.text
        assert answer.json()["messages"], f"only {len(messages)} of {count} came"
        messages += answer.json()["messages"]
    return messages


async def test_rest_publishes_to_partitions_by_key_and_consumes_what_is_not_acknowledged(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        assert (await stack.http.put(f"{NAMESPACE}/flights/partitions", json=4)).status_code == 204
        for start in (0, 500):
            body = {"messages": [{"payload": str(n), "key": f"N{n % 50}"} for n in range(start, start + 500)]}
            answer = await stack.http.post(f"/topics/{TOPIC}", json=body)
            assert {result["errorCode"] for result in answer.json()["messagePublishResults"]} == {0}
        messages = await _take(stack, "audit", 1000)
        assert sorted(int(message["payload"]) for message in messages) == list(range(1000))
        by_key: dict[str, list[int]] = {}
        for message in messages:
            by_key.setdefault(message["key"], []).append(int(message["payload"]))
        assert all(values == sorted(values) for values in by_key.values())

        url = f"/topics/{TOPIC}/subscription/audit"
        acknowledged = [message["messageId"] for message in messages if int(message["payload"]) % 2]
        answer = await stack.http.post(f"{url}/ack", json={"messageIds": acknowledged})
        assert answer.json() == {"acknowledged": 500}
        assert (await stack.http.delete(f"{url}/consumer")).status_code == 204
        again = await _take(stack, "audit", 500)
        assert sorted(int(message["payload"]) for message in again) == list(range(0, 1000, 2))


async def test_websocket_carries_messages_both_ways_and_its_acks_stick(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        url = stack.websocket_url
        async with connect(f"{url}/ws/v2/producer/{TOPIC}") as producer:
            for number in range(2000):
                await producer.send(_frame(str(number), context=str(number), properties={"n": str(number)}))
            await producer.send("not json")
            receipts = [await _receive(producer) for _ in range(2001)]
        assert [receipt.get("context") for receipt in receipts] == [*map(str, range(2000)), None]
        assert [receipt["result"] for receipt in receipts] == ["ok"] * 2000 + ["send-error:3"]
        ids = [MessageId.from_base64(receipt["messageId"]) for receipt in receipts[:2000]]
        assert ids == sorted(set(ids))

        consumer_url = f"{url}/ws/v2/consumer/{TOPIC}/audit?{EARLY}&receiverQueueSize=50"
        async with connect(consumer_url) as consumer:
            for number in range(1000):
                message = await _receive(consumer)
                assert (_value(message), message["properties"]) == (str(number), {"n": str(number)})
                await consumer.send(json.dumps({"messageId": message["messageId"]}))
            await consumer.send("not json")
            await consumer.send(json.dumps({"messageId": message["messageId"], "context": "last"}))
            frames = [frame for frame in [await _receive(consumer) for _ in range(52)] if "result" in frame]
            assert [frame["result"] for frame in frames] == ["command-error:3", "ok"]
        # I11: what was confirmed does not come again. No bound on the queue: the peer leaves with messages unread.
        async with connect(consumer_url, max_queue=None) as consumer:
            assert _value(await _receive(consumer)) == "1000"


async def test_what_is_redelivered_too_often_is_in_the_dead_letter_topic_with_its_payload(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        query = f"{EARLY}&subscriptionType=Shared&maxRedeliverCount=1&negativeAckRedeliveryDelay=50"
        url = f"{stack.websocket_url}/ws/v2/consumer/{TOPIC}/audit"
        letters_url = f"{stack.websocket_url}/ws/v2/consumer/{TOPIC}-audit-DLQ/all?{EARLY}"
        async with (
            connect(letters_url) as letters,
            connect(f"{stack.websocket_url}/ws/v2/producer/{TOPIC}") as producer,
            connect(f"{url}?{query}") as consumer,
        ):
            for value in ("bad", "good"):
                await producer.send(_frame(value, properties={"colour": "red"}))
                assert (await _receive(producer))["result"] == "ok"
            seen: list[str] = []
            while seen.count("bad") < 2 or "good" not in seen:
                frame = await _receive(consumer)
                seen.append(_value(frame))
                is_bad = seen[-1] == "bad"
                command = {"type": "negativeAcknowledge"} if is_bad else {}
                await consumer.send(json.dumps({**command, "messageId": frame["messageId"]}))
            letter = await _receive(letters)
            assert sorted(seen) == ["bad", "bad", "good"]
            assert _value(letter) == "bad"
            assert letter["properties"]["colour"] == "red"
            assert letter["properties"]["REAL_TOPIC"] == "persistent://public/default/flights"
        # The dead letter was acknowledged: nothing of the subscription is left.
        stats = (await stack.http.get(f"{NAMESPACE}/flights/stats")).json()
        assert stats["subscriptions"]["audit"]["msgBacklog"] == 0


@pytest.mark.parametrize("queue", [1, 1000])  # of 1: the window is full of what is late
async def test_a_message_that_is_not_acknowledged_in_time_comes_again(tmp_path: Path, queue: int) -> None:
    async with running_stack(tmp_path) as stack:
        query = f"{EARLY}&subscriptionType=Shared&ackTimeoutMillis=1000&receiverQueueSize={queue}"
        async with (
            connect(f"{stack.websocket_url}/ws/v2/producer/{TOPIC}") as producer,
            connect(f"{stack.websocket_url}/ws/v2/consumer/{TOPIC}/audit?{query}") as consumer,
        ):
            await producer.send(_frame("slow"))
            assert (await _receive(producer))["result"] == "ok"
            frames = [await _receive(consumer) for _ in range(2)]
            assert [_value(frame) for frame in frames] == ["slow", "slow"]
            assert frames[0]["messageId"] == frames[1]["messageId"]


async def test_seek_nack_cumulative_ack_and_unsubscribe(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        url = f"{stack.websocket_url}/ws/v2/consumer/{TOPIC}/audit?{EARLY}&negativeAckRedeliveryDelay=50"
        async with connect(url) as consumer, connect(f"{stack.websocket_url}/ws/v2/producer/{TOPIC}") as producer:
            for number in range(10):
                await producer.send(_frame(str(number)))
                assert (await _receive(producer))["result"] == "ok"
            frames = [await _receive(consumer) for _ in range(10)]
            assert [_value(frame) for frame in frames] == [str(number) for number in range(10)]

            await consumer.send(
                json.dumps({"type": "cumulativeAck", "messageId": frames[4]["messageId"], "context": "c"})
            )
            assert await _receive(consumer) == {"result": "ok", "context": "c"}
            await consumer.send(json.dumps({"type": "negativeAcknowledge", "messageId": frames[5]["messageId"]}))
            again = [_value(await _receive(consumer)) for _ in range(5)]
            assert again == ["5", "6", "7", "8", "9"]  # an exclusive subscription redelivers in order

            for seek, first in [
                ({"messageId": "earliest"}, "0"),
                ({"messageId": frames[3]["messageId"]}, "4"),
                ({"messageId": frames[3]["messageId"], "inclusive": True}, "3"),
                ({"timestamp": 0}, "0"),
            ]:
                await consumer.send(json.dumps({"type": "seek", "context": "s", **seek}))
                while (frame := await _receive(consumer)).get("context") != "s":
                    assert "payload" in frame
                assert frame["result"] == "ok", frame
                assert _value(await _receive(consumer)) == first
            await consumer.send(json.dumps({"type": "unsubscribe", "context": "u"}))
            while (frame := await _receive(consumer)).get("context") != "u":
                assert "payload" in frame
            assert frame["result"] == "ok", frame
        assert (await stack.http.get(f"{NAMESPACE}/flights/subscriptions")).json() == []


async def test_a_shared_subscription_splits_messages_over_peers_and_pull_mode_waits_for_permits(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        url = f"{stack.websocket_url}/ws/v2/consumer/{TOPIC}/audit?{EARLY}&subscriptionType=Shared"
        async with connect(url) as one:
            async with connect(f"{stack.websocket_url}/ws/v2/producer/{TOPIC}?batchingEnabled=false") as producer:
                for number in range(20):
                    await producer.send(_frame(str(number)))
                    assert (await _receive(producer))["result"] == "ok"
            assert {_value(await _receive(one)) for _ in range(20)} == {str(number) for number in range(20)}
        async with connect(f"{url}&pullMode=true&receiverQueueSize=1") as two:
            await two.send(json.dumps({"type": "permit", "permitMessages": 1}))
            pulled = _value(await _receive(two))
            async with connect(url) as one:
                await two.close()  # its message, and those sent ahead to it, go to the other consumer
                values = {_value(await _receive(one)) for _ in range(20)}
        assert values == {str(number) for number in range(20)}
        assert pulled in values


async def test_several_topics_and_readers(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        url = stack.websocket_url
        for name in ("one", "two"):
            assert (await stack.http.put(f"{NAMESPACE}/{name}")).status_code == 204
            body = {"messages": [{"payload": f"{name}-{number}"} for number in range(3)]}
            assert (await stack.http.post(f"/topics/persistent/public/default/{name}", json=body)).status_code == 200
        async with connect(f"{url}/ws/v3/consumer/audit?topicsPattern=public/default/(one|two)&{EARLY}") as consumer:
            frames = [await _receive(consumer) for _ in range(6)]
            for frame in frames:
                await consumer.send(json.dumps({"messageId": frame["messageId"], "context": "a"}))
                assert (await _receive(consumer))["result"] == "ok"
        async with connect(f"{url}/ws/v2/reader/persistent/public/default/one?messageId=earliest") as reader:
            read = [await _receive(reader) for _ in range(3)]
            assert [_value(frame) for frame in read] == ["one-0", "one-1", "one-2"]
        behind = base64_in_query(read[0]["messageId"])
        async with connect(f"{url}/ws/v2/reader/persistent/public/default/one?messageId={behind}") as reader:
            assert _value(await _receive(reader)) == "one-1"


async def test_a_topic_is_ended(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        body = {"messages": [{"payload": "only"}]}
        assert (await stack.http.put(f"{NAMESPACE}/flights")).status_code == 204
        (receipt,) = (await stack.http.post(f"/topics/{TOPIC}", json=body)).json()["messagePublishResults"]
        last = MessageId.parse(receipt["messageId"])
        ended = await stack.http.post(f"{NAMESPACE}/flights/terminate")
        assert ended.json() == {"ledgerId": last.ledger_id, "entryId": last.entry_id, "partitionIndex": -1}
        assert (await stack.http.post(f"/topics/{TOPIC}", json=body)).status_code == 409
        async with connect(f"{stack.websocket_url}/ws/v2/consumer/{TOPIC}/audit?{EARLY}") as consumer:
            message = await _receive(consumer)
            assert _value(message) == "only"
            assert not await _is_at_end(consumer)
            await consumer.send(json.dumps({"messageId": message["messageId"]}))
            await _end_of(consumer)
        async with connect(f"{stack.websocket_url}/ws/v2/reader/{TOPIC}?messageId=earliest") as reader:
            assert _value(await _receive(reader)) == "only"
            await _end_of(reader)


async def _end_of(socket: ClientConnection) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not await _is_at_end(socket):
            pass


async def _is_at_end(socket: ClientConnection) -> bool:
    await socket.send(json.dumps({"type": "isEndOfTopic"}))
    return bool((await _receive(socket))["endOfTopic"])


async def test_topics_that_store_nothing(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        volatile = "non-persistent/public/default/volatile"
        assert (await stack.http.put(f"/admin/v2/{volatile}")).status_code == 204
        async with connect(f"{stack.websocket_url}/ws/v2/consumer/{volatile}/audit") as consumer:
            async with connect(f"{stack.websocket_url}/ws/v2/producer/{volatile}") as producer:
                await producer.send(_frame("over WebSocket"))
                assert (await _receive(producer))["result"] == "ok"
            body = {"messages": [{"payload": "over HTTP"}]}
            assert (await stack.http.post(f"/topics/{volatile}", json=body)).status_code == 200
            messages = [await _receive(consumer) for _ in range(2)]
            assert [_value(message) for message in messages] == ["over WebSocket", "over HTTP"]
            for message in messages:
                await consumer.send(json.dumps({"messageId": message["messageId"], "context": "a"}))
                assert (await _receive(consumer))["result"] == "ok"
        assert (await stack.http.get("/admin/v2/non-persistent/public/default")).json() == [
            "non-persistent://public/default/volatile"
        ]
        assert (await stack.http.get(f"/admin/v2/{volatile}/stats")).json()["msgInCounter"] == 2
        assert (await stack.http.delete(f"/admin/v2/{volatile}?force=true")).status_code == 204
        assert (await stack.http.get("/admin/v2/non-persistent/public/default")).json() == []


def base64_in_query(text: str) -> str:
    return text.replace("=", "%3D").replace("/", "%2F")


async def test_a_stock_client_with_an_http_address_meets_the_gateways_messages(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        assert (await stack.http.put(f"{NAMESPACE}/flights/partitions", json=2)).status_code == 204
        body = {"messages": [{"payload": f"rest-{n}", "key": str(n), "properties": {"p": "v"}} for n in range(10)]}
        assert (await stack.http.post(f"/topics/{TOPIC}", json=body)).status_code == 200
        values = await asyncio.to_thread(_exchange_with_stock_client, stack.server.url)
        assert values == sorted(f"rest-{number}" for number in range(10))
        messages = await _take(stack, "mine", 11)
        assert "from-stock" in {message["payload"] for message in messages}


def _exchange_with_stock_client(url: str) -> list[str]:
    """Return what a stock client finds on the topic; the client also publishes one message."""
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        name = "persistent://public/default/flights"
        consumer = client.subscribe(name, "stock", initial_position=pulsar.InitialPosition.Earliest)
        found = []
        for _ in range(10):
            message = consumer.receive(timeout_millis=60_000)
            assert message.properties() == {"p": "v"}
            found.append(message.data().decode())
            consumer.acknowledge(message)
        producer = client.create_producer(name)
        producer.send(b"from-stock")
        return sorted(found)
    finally:
        client.close()


async def test_losing_a_broker_loses_nothing_that_the_gateway_confirmed(tmp_path: Path) -> None:
    async with running_stack(tmp_path) as stack:
        assert (await stack.http.put(f"{NAMESPACE}/flights/partitions", json=4)).status_code == 204
        confirmed: list[str] = []
        async with connect(f"{stack.websocket_url}/ws/v2/producer/{TOPIC}") as producer:
            for number in range(3000):
                if number == 1500:
                    await stack.brokers[1].stop()
                await producer.send(_frame(str(number), key=f"N{number % 40}", context=str(number)))
            for _ in range(3000):
                receipt = await _receive(producer)
                assert receipt["result"] == "ok", receipt
                confirmed.append(receipt["context"])
        assert confirmed == [str(number) for number in range(3000)]
        found = {message["payload"] for message in await _take(stack, "audit", 3000)}
        assert found >= set(confirmed)


async def test_limits_and_refusals_over_the_whole_way(tmp_path: Path) -> None:
    async with running_stack(tmp_path, max_message_bytes=1 << 20) as stack:
        assert (await stack.http.put(f"{NAMESPACE}/flights")).status_code == 204
        big = "x" * (1 << 20)
        answer = await stack.http.post(f"/topics/{TOPIC}", json={"messages": [{"payload": big}]})
        assert answer.status_code == 200  # exactly the limit
        answer = await stack.http.post(f"/topics/{TOPIC}", json={"messages": [{"payload": big + "x"}]})
        assert answer.status_code == 200  # in chunks
        answer = await stack.http.post("/topics/persistent/public/default/no", json={"messages": [{"payload": "x"}]})
        assert answer.status_code == 404
        copies = {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
        answer = await stack.http.put(f"{NAMESPACE}/odd", json=copies)
        assert (answer.status_code, answer.json()["limit"]) == (412, "E >= Qw >= Qa >= 1")
        copies = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
        answer = await stack.http.put(f"{NAMESPACE}/wide", json=copies)
        assert answer.status_code == 204  # spread over the three bookies that there are
        answer = await stack.http.put("/admin/v2/persistent/nobody/default/t")
        assert answer.status_code == 404
        busy = await stack.http.delete(f"{NAMESPACE}/flights")
        assert busy.status_code == 204  # only the gateway's own idle producer was attached
        assert (await stack.http.get(f"{NAMESPACE}/flights/stats")).status_code == 404
