"""Values above the largest entry, published by HTTP: they are stored in chunks, and every reader gets them whole."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import random
from typing import Any

import httpx
import pytest

import heliograph
from heliograph.gateway.config import GatewayConfig
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic
from heliograph.pipelines.reading.range_reader import count_ranges, read_ranges
from tests.websocket import connect

pytestmark = pytest.mark.slow

SECONDS = 120
ENTRY = GatewayConfig().max_message_bytes
BODY = GatewayConfig().request_bytes_max
BYTES = {"Content-Type": "application/octet-stream"}


def of_size(size: int) -> bytes:
    """Return bytes that do not compress, other ones for each size."""
    return random.Random(size).randbytes(size)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


async def publish(cluster: heliograph.LocalCluster, topic: str, **request: Any) -> httpx.Response:
    async with httpx.AsyncClient(timeout=SECONDS, base_url=cluster.http_url) as http:
        await http.put(f"/admin/v2/persistent/public/default/{topic}")
        return await http.post(f"/topics/persistent/public/default/{topic}", **request)


def entries(cluster: heliograph.LocalCluster, topic: str) -> int:
    with cluster.connect() as client:
        return int(client.admin.topic_internal_stats(topic)["numberOfEntries"])


def received(cluster: heliograph.LocalCluster, topic: str, count: int) -> list[str]:
    with cluster.connect() as client, client.reader(topic, "earliest") as reader:
        return [digest(reader.receive(SECONDS).value) for _ in range(count)]


async def test_a_value_in_chunks_is_read_whole_by_every_door(cluster: heliograph.LocalCluster) -> None:
    raw, text = of_size(ENTRY + 1), of_size(ENTRY).hex()
    for request in ({"content": raw, "headers": BYTES}, {"json": {"messages": [{"payload": text, "key": "k"}]}}):
        answer = await publish(cluster, "large", **request)
        assert answer.status_code == 200, answer.text
        assert [result["errorCode"] for result in answer.json()["messagePublishResults"]] == [0]
    wanted = [digest(raw), digest(text.encode())]
    assert await asyncio.to_thread(entries, cluster, "large") == 2 + 2
    assert await asyncio.to_thread(received, cluster, "large", 2) == wanted

    def rows() -> list[str]:
        ranges = plan_topic("large", access=ClusterAccess(gateway=cluster.http_url))
        assert count_ranges(ranges) == 2
        return [digest(row["value"]) for batch in read_ranges(ranges, ("value",)) for row in batch.to_pylist()]

    assert await asyncio.to_thread(rows) == wanted
    url = f"{cluster.http_url.replace('http', 'ws', 1)}/ws/v2/reader/persistent/public/default/large"
    found = []
    async with connect(f"{url}?messageId=earliest", max_size=None) as peer, asyncio.timeout(SECONDS):
        for _ in wanted:
            frame = json.loads(await peer.recv())
            found.append(digest(base64.b64decode(frame["payload"])))
            await peer.send(json.dumps({"messageId": frame["messageId"]}))
    assert found == wanted
    found = []
    path = "/topics/persistent/public/default/large/subscription/s/messages?timeoutMs=30000&initialPosition=earliest"
    async with httpx.AsyncClient(timeout=SECONDS, base_url=cluster.http_url) as http:
        while len(found) < len(wanted):
            answer = await http.post(path)
            assert answer.status_code == 200, answer.text
            found += [digest(base64.b64decode(each["payloadBase64"])) for each in answer.json()["messages"]]
    assert found == wanted


async def test_values_are_taken_up_to_the_largest_body_and_refused_by_name_above(
    cluster: heliograph.LocalCluster,
) -> None:
    most = of_size(BODY)
    answer = await publish(cluster, "most", content=most, headers=BYTES)
    assert answer.status_code == 200, answer.text
    for request in ({"content": most + b"x"}, {"content": b'{"messages":[{"payload":"%s"}]}' % most.hex().encode()}):
        answer = await publish(cluster, "most", headers=BYTES, **request)
        assert answer.status_code == 413
        assert (answer.json()["field"], answer.json()["limit"]) == ("body", f"{BODY} bytes"), answer.text
    assert (await publish(cluster, "most", content=b"last", headers=BYTES)).status_code == 200
    assert await asyncio.to_thread(received, cluster, "most", 2) == [digest(most), digest(b"last")]


async def test_a_large_value_that_compresses_is_one_entry(cluster: heliograph.LocalCluster) -> None:
    zeros = bytes(BODY)
    answer = await publish(cluster, "zeros", content=zeros, headers=BYTES, params={"compressionType": "ZSTD"})
    assert answer.status_code == 200, answer.text
    assert await asyncio.to_thread(entries, cluster, "zeros") == 1
    assert await asyncio.to_thread(received, cluster, "zeros", 1) == [digest(zeros)]
