"""Helpers of the consumer tests: publishing, receiving, and the broker's side of a subscription."""

from __future__ import annotations

import heliograph
from tests.unit.client.fake_broker import FakeBroker, FakeSubscription
from tests.unit.client.world import TOPIC


async def publish(client: heliograph.AsyncClient, *batches: list[str], topic: str = "t") -> None:
    async with client.producer(topic) as producer:
        for batch in batches:
            await producer.send_many(batch)


async def values_of(consumer: heliograph.AsyncConsumer, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        got += [message.value for message in await consumer.receive_many(count - len(got), 5)]
    return got


def subscription_of(broker: FakeBroker, name: str = "s", topic: str = TOPIC) -> FakeSubscription:
    return broker.store.topics[topic].subscriptions[name]
