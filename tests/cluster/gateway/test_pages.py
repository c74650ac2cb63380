"""A page's ``EventSource`` over real brokers: it resumes without a gap and without a double."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pulsar
import pytest

import heliograph
from tests.cluster.gateway.stack import Stack, running_stack

TOPIC = "persistent/public/default/flights"
URL = f"/topics/{TOPIC}"


async def received(stack: Stack, count: int, last: str, start: str = "latest") -> tuple[list[str], str]:
    """Open a stream, read so many messages, and leave; return them with the last id."""
    found: list[str] = []
    headers = {"Last-Event-ID": last} if last else {}
    async with (
        asyncio.timeout(60),
        stack.http.stream("GET", f"{URL}/events", params={"from": start}, headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for event in blocks(answer):
            last = event.get("id", last)
            if "data" in event:
                assert "event" not in event, event
                found.append(json.loads(event["data"])["payload"])
            if len(found) == count:
                return found, last
    raise AssertionError(f"the stream ended after {len(found)} of {count}")


def read_by_a_stock_client(url: str, count: int) -> list[bytes]:
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        reader = client.create_reader(TOPIC.replace("/", "://", 1), pulsar.MessageId.earliest)
        return [reader.read_next(30_000).data() for _ in range(count)]
    finally:
        client.close()


async def blocks(answer: httpx.Response) -> AsyncIterator[dict[str, str]]:
    event: dict[str, str] = {}
    async for line in answer.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            event[name] = value
        elif event:
            yield event
            event = {}


@pytest.mark.parametrize("partitions", [0, 3])
async def test_a_page_that_connects_again_and_again_gets_every_message_once(tmp_path: Path, partitions: int) -> None:
    async with running_stack(tmp_path, brokers=1) as stack:
        path = f"/admin/v2/{TOPIC}" + ("/partitions" if partitions else "")
        assert (await stack.http.put(path, json=partitions or None)).status_code in (200, 204)
        producer = await stack.client.producer(TOPIC.replace("/", "://", 1))
        read: list[str] = []
        nothing, last = await received(stack, 0, "", "latest")
        assert (nothing, bool(last)) == ([], True)
        for turn in range(12):
            values = [f"{turn}.{number}" for number in range(40)]
            keys = [str(number % 7) for number in range(40)]
            await producer.send_many([value.encode() for value in values], keys=keys)  # batches
            found, last = await received(stack, 7 * (turn % 6), last)  # in the middle of a batch, also none
            read += found
        found, _ = await received(stack, 12 * 40 - len(read), last)
        read += found
        assert len(read) == len(set(read)) == 480
        assert set(read) == {f"{turn}.{number}" for turn in range(12) for number in range(40)}


async def test_messages_that_a_caller_left_behind_go_to_another_consumer_at_once(tmp_path: Path) -> None:
    async with running_stack(tmp_path, brokers=1) as stack:
        assert (await stack.http.put(f"/admin/v2/{TOPIC}")).status_code == 204
        producer = await stack.client.producer(TOPIC.replace("/", "://", 1))
        take = f"{URL}/subscription/s/messages"
        with pytest.raises(httpx.ReadTimeout):
            await stack.http.post(take, params={"timeoutMs": 30_000}, timeout=1)
        await asyncio.sleep(0.5)
        await producer.send_many([str(number).encode() for number in range(50)])
        consumer: heliograph.AsyncConsumer = stack.client.consumer(TOPIC.replace("/", "://", 1), "s", type="shared")
        messages = await consumer.receive_many(50, timeout=60)
        assert len(messages) == 50


async def test_a_value_above_the_limit_of_an_entry_goes_through_http_and_handles_as_one_message(tmp_path: Path) -> None:
    async with running_stack(tmp_path, brokers=1) as stack:
        assert (await stack.http.put(f"/admin/v2/{TOPIC}")).status_code == 204
        large, zeros = random.Random(1).randbytes(12 << 20), bytes(12 << 20)
        raw = {"Content-Type": "application/octet-stream"}
        for body, codec in ((b"before", "NONE"), (large, "NONE"), (zeros, "ZSTD"), (b"after", "NONE")):
            answer = await stack.http.post(f"{URL}?compressionType={codec}&key=k", content=body, headers=raw)
            assert answer.status_code == 200, answer.text
        reader = stack.client.reader(TOPIC.replace("/", "://", 1), start="earliest")
        found = [await reader.receive(timeout=30) for _ in range(4)]
        assert [message.data for message in found] == [b"before", large, zeros, b"after"]
        assert {message.key for message in found} == {"k"}
        entries = {(message.message_id.ledger_id, message.message_id.entry_id) for message in found}
        assert max(entry_id for _, entry_id in entries) == 5  # three chunks, and one entry of the zeros
        url = stack.brokers[0].service_url
        assert await asyncio.to_thread(read_by_a_stock_client, url, 4) == [b"before", large, zeros, b"after"]
        taken: list[bytes] = []
        query = {"initialPosition": "earliest", "timeoutMs": "10000"}
        while len(taken) < 4:
            answer = await stack.http.post(f"{URL}/subscription/s/messages", params=query)
            assert answer.status_code == 200, answer.text
            messages = answer.json()["messages"]
            taken += [base64.b64decode(message["payloadBase64"]) for message in messages]
            ids = [message["messageId"] for message in messages]
            assert (await stack.http.post(f"{URL}/subscription/s/ack", json={"messageIds": ids})).status_code == 200
        assert taken == [b"before", large, zeros, b"after"]
