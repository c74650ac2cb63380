"""What comes and goes. Each piece makes something, uses it, checks what it received, and removes it."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from websockets.asyncio.client import connect as connect_socket

from heliograph.client.access import connect_async
from heliograph.client.aio.client import AsyncClient

MESSAGES = 20  # of one round of a piece
RECEIVE_SECONDS_MAX = 60.0
PARTITIONS = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """The value of a message with a schema."""

    celsius: float


@dataclass(slots=True)
class Soak:
    """The load on one cluster.

    Attributes:
        rounds: of each piece that ended well.
        failures: of each piece, the latest with its reason.
    """

    client: AsyncClient
    service_url: str
    http_url: str
    rounds: dict[str, int] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)
    messages: int = 0

    async def run(self, until: Callable[[], bool]) -> None:
        """Run all pieces side by side, again and again; a piece that fails is noted and goes on."""
        await asyncio.gather(*(self._repeat(name, until) for name in PIECES))

    async def _repeat(self, name: str, until: Callable[[], bool]) -> None:
        number = 0
        while not until():
            try:
                await PIECES[name](self, f"soak-{name}-{number}")
                self.rounds[name] = self.rounds.get(name, 0) + 1
            except Exception as error:
                self.failures.setdefault(name, []).append(f"round {number}: {type(error).__name__}: {error}")
            number += 1


async def _pass(soak: Soak, client: AsyncClient, topic: str, **consumer: Any) -> None:
    """Publish numbers and receive them in their order."""
    async with client.consumer(topic, "s", initial_position="earliest", **consumer) as received:
        async with client.producer(topic) as producer:
            await producer.send_many([str(number) for number in range(MESSAGES)])
        await _receive_all(received)
    soak.messages += MESSAGES


async def _receive_all(consumer: Any, *, ordered: bool = True) -> None:
    found = list[int]()
    while len(found) < MESSAGES:
        message = await consumer.receive(timeout=RECEIVE_SECONDS_MAX)
        found.append(int(message.value))
        await consumer.ack(message)
    assert (found if ordered else sorted(found)) == list(range(MESSAGES)), f"received {found}"


async def connections(soak: Soak, name: str) -> None:
    """Open a connection, ask for something, and close it."""
    client = await connect_async(soak.service_url)
    await client.close()


async def topics(soak: Soak, name: str) -> None:
    """Make a topic by using it, and delete it."""
    await _pass(soak, soak.client, name)
    await soak.client.admin.delete_topic(name, force=True)


async def handles(soak: Soak, name: str) -> None:
    """Open and close handles of a topic that stays."""
    await _pass(soak, soak.client, "soak-kept")


async def subscriptions(soak: Soak, name: str) -> None:
    """Make a subscription of a topic that stays, and delete it."""
    topic = "soak-subscribed"
    async with soak.client.producer(topic) as producer:
        await producer.send("x")
    await soak.client.admin.create_subscription(topic, name)
    await soak.client.admin.delete_subscription(topic, name)


async def partitions(soak: Soak, name: str) -> None:
    """Make a topic of partitions, add one, and delete it."""
    await soak.client.admin.create_topic(name, partitions=PARTITIONS)
    await soak.client.admin.update_partitions(name, PARTITIONS + 1)
    async with soak.client.consumer(name, "s", initial_position="earliest") as consumer:
        async with soak.client.producer(name) as producer:
            await producer.send_many([str(number) for number in range(MESSAGES)])
        await _receive_all(consumer, ordered=False)
    soak.messages += MESSAGES
    await soak.client.admin.delete_topic(name, force=True)


async def schemas(soak: Soak, name: str) -> None:
    """Give a topic a schema, and delete both."""
    async with soak.client.producer(name, schema=Reading) as producer:
        await producer.send(Reading(21.5))
    soak.messages += 1
    await soak.client.admin.delete_topic(name, force=True)


async def compactions(soak: Soak, name: str) -> None:
    """Publish keys, have them compacted, and delete the topic."""
    async with soak.client.producer(name) as producer:
        for number in range(MESSAGES):
            await producer.send(str(number), key=str(number % 3))
    soak.messages += MESSAGES
    await soak.client.admin.compact_topic(name)
    while (await soak.client.admin.compaction_status(name))["status"] == "RUNNING":  # noqa: ASYNC110  # nothing tells its end
        await asyncio.sleep(0.1)
    await soak.client.admin.delete_topic(name, force=True)


async def nacks(soak: Soak, name: str) -> None:
    """Refuse each message once, and take it when it comes again."""
    async with soak.client.consumer(
        name, "s", type="shared", initial_position="earliest", nack_delay_ms=100
    ) as consumer:
        async with soak.client.producer(name) as producer:
            await producer.send_many([str(number) for number in range(MESSAGES)])
        for _ in range(MESSAGES):
            await consumer.nack(await consumer.receive(timeout=RECEIVE_SECONDS_MAX))
        await _receive_all(consumer, ordered=False)
    soak.messages += MESSAGES
    await soak.client.admin.delete_topic(name, force=True)


async def delays(soak: Soak, name: str) -> None:
    """Publish messages that are delivered later."""
    async with soak.client.consumer(name, "s", type="shared", initial_position="earliest") as consumer:
        async with soak.client.producer(name) as producer:
            for number in range(MESSAGES):
                await producer.send(str(number), deliver_after=timedelta(seconds=1))
        await _receive_all(consumer, ordered=False)
    soak.messages += MESSAGES
    await soak.client.admin.delete_topic(name, force=True)


async def websockets(soak: Soak, name: str) -> None:
    """Publish and consume by WebSocket."""
    url, topic = soak.http_url.replace("http", "ws", 1), f"persistent/public/default/{name}"
    async with (
        connect_socket(f"{url}/ws/v2/consumer/{topic}/s?subscriptionInitialPosition=Earliest") as consumer,
        connect_socket(f"{url}/ws/v2/producer/{topic}") as producer,
    ):
        await producer.send(json.dumps({"payload": base64.b64encode(b"0").decode()}))
        async with asyncio.timeout(RECEIVE_SECONDS_MAX):
            assert json.loads(await producer.recv())["result"] == "ok"
            message = json.loads(await consumer.recv())
            await consumer.send(json.dumps({"messageId": message["messageId"]}))
    assert base64.b64decode(message["payload"]) == b"0"
    soak.messages += 1
    await soak.client.admin.delete_topic(name, force=True)


PIECES: dict[str, Callable[[Soak, str], Awaitable[None]]] = {
    piece.__name__: piece
    for piece in (
        connections, handles, topics, subscriptions, partitions, schemas, compactions, nacks, delays, websockets,
    )
}  # fmt: skip
