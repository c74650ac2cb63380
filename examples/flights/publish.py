"""The publishers: over HTTP, over a WebSocket, and through Python handles in parallel Ray tasks."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import quote

import httpx
import ray
from websockets.asyncio.client import ClientConnection, connect

from examples.flights.flights import Flights
from heliograph import MessageId, Topic, connect_async
from heliograph.base.errors import PersistenceError

HTTP_BATCH_ROWS = 1000
HTTP_TIMEOUT_SECONDS = 30.0
WEBSOCKET_WINDOW_ROWS = 900  # sent and not yet acknowledged; the gateway allows 1000
HANDLE_BATCH_ROWS = 1000
WAIT_AT_SHARE = 0.8  # of a publisher's rows: on a busy machine the fault may come late, and the rest comes after it

Progress = Callable[[int], None]


@dataclass
class Published:
    """The result of one publisher."""

    rows_by_partition: Counter[int] = field(default_factory=Counter)
    latencies_ms: list[float] = field(default_factory=list)  # one per request or batch, from sending to acknowledgement
    started: float = field(default_factory=time.time)
    seconds: float = 0.0
    payload_bytes: int = 0

    @property
    def rows(self) -> int:
        """Return the number of acknowledged rows."""
        return self.rows_by_partition.total()

    def finished(self) -> Published:
        """Set the duration and return this result."""
        self.seconds = time.time() - self.started
        return self


async def publish_http(gateway_url: str, topic: str, flights: Flights, progress: Progress) -> Published:
    """POST the rows in batches, one batch at a time, so that their order is kept.

    Raises:
        PersistenceError: the gateway refused a batch or one of its messages; says why.
    """
    published = Published()
    url = f"{gateway_url}/topics/persistent/public/default/{quote(topic, safe='')}"
    rows = zip(flights.keys(), flights.payloads(), strict=True)
    async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_SECONDS, trust_env=False) as client:
        while batch := list(islice(rows, HTTP_BATCH_ROWS)):
            messages = [{"key": key, "payload": payload.decode()} for key, payload in batch]
            begun = time.perf_counter()
            answer = await client.post(url, json={"messages": messages})
            published.latencies_ms.append((time.perf_counter() - begun) * 1000)
            if answer.status_code != httpx.codes.OK:
                raise PersistenceError(f"the gateway answered {answer.status_code}: {answer.text:.200}")
            for result in answer.json()["messagePublishResults"]:
                if result["errorCode"]:
                    raise PersistenceError(f"the gateway could not publish a message: {result}")
                published.rows_by_partition[int(result["messageId"].split(":")[2])] += 1
            published.payload_bytes += sum(len(payload) for _, payload in batch)
            progress(len(batch))
    return published.finished()


async def publish_websocket(gateway_url: str, topic: str, flights: Flights, progress: Progress) -> Published:
    """Send the rows as Pulsar's WebSocket frames, pipelined, with a bounded number not yet acknowledged.

    Raises:
        PersistenceError: a message was refused; says why.
    """
    published = Published()
    url = f"{gateway_url.replace('http', 'ws', 1)}/ws/v2/producer/persistent/public/default/{quote(topic, safe='')}"
    rows = zip(flights.keys(), flights.payloads(), strict=True)
    async with connect(f"{url}?batchingEnabled=true", max_queue=None, compression=None, proxy=None) as session:
        sent: deque[float] = deque()
        for key, payload in rows:
            frame = {"payload": base64.b64encode(payload).decode(), "key": key}
            if len(sent) >= WEBSOCKET_WINDOW_ROWS:
                await _receipts(session, sent, WEBSOCKET_WINDOW_ROWS // 3, published, progress)
            sent.append(time.perf_counter())
            await session.send(json.dumps(frame))
            published.payload_bytes += len(payload)
        await _receipts(session, sent, len(sent), published, progress)
    return published.finished()


async def _receipts(
    session: ClientConnection, sent: deque[float], count: int, published: Published, progress: Progress
) -> None:
    """Receive the next ``count`` acknowledgements, which come in the order of the messages."""
    for _ in range(count):
        receipt = json.loads(await session.recv())
        if receipt["result"] != "ok":
            raise PersistenceError(f"the gateway could not publish a message: {receipt}")
        published.latencies_ms.append((time.perf_counter() - sent.popleft()) * 1000)
        published.rows_by_partition[MessageId.from_base64(receipt["messageId"]).partition] += 1
    progress(count)


def publish_handles(topic: Topic, flights: Flights, name: str, conductor: Any) -> Published:
    """Publish the rows through a Python producer, one batch at a time. Runs in a Ray task.

    Args:
        topic: a topic handle; Ray pickles it.
    """
    published = Published()
    keys, payloads = flights.keys(), flights.payloads()
    with topic.producer(batch_messages=HANDLE_BATCH_ROWS) as producer:
        for first in range(0, len(payloads), HANDLE_BATCH_ROWS):
            if first <= WAIT_AT_SHARE * len(payloads) < first + HANDLE_BATCH_ROWS:
                ray.get(conductor.wait_for_fault.remote())
            batch = payloads[first : first + HANDLE_BATCH_ROWS]
            begun = time.perf_counter()
            ids = producer.send_many(batch, keys=keys[first : first + HANDLE_BATCH_ROWS])
            published.latencies_ms.append((time.perf_counter() - begun) * 1000)
            published.rows_by_partition.update(message_id.partition for message_id in ids)
            published.payload_bytes += sum(map(len, batch))
            conductor.report.remote(name, len(batch))
    return published.finished()


async def publish_one_by_one(namespace: str, topic: str, flights: Flights) -> list[float]:
    """Send each row once the one before is durable.

    Returns:
        The milliseconds from sending to acknowledgement, for each row.
    """
    latencies = []
    async with await connect_async(namespace=namespace) as client, client.producer(topic) as producer:
        for key, payload in zip(flights.keys(), flights.payloads(), strict=True):
            begun = time.perf_counter()
            await producer.send(payload, key=key)
            latencies.append((time.perf_counter() - begun) * 1000)
    return latencies


def run_http(gateway_url: str, topic: str, flights: Flights, progress: Progress) -> Published:
    """Run ``publish_http`` to its end."""
    return asyncio.run(publish_http(gateway_url, topic, flights, progress))


def run_websocket(gateway_url: str, topic: str, flights: Flights, progress: Progress) -> Published:
    """Run ``publish_websocket`` to its end."""
    return asyncio.run(publish_websocket(gateway_url, topic, flights, progress))


def run_one_by_one(namespace: str, topic: str, flights: Flights) -> list[float]:
    """Run ``publish_one_by_one`` to its end."""
    return asyncio.run(publish_one_by_one(namespace, topic, flights))
