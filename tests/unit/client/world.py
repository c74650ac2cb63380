"""Helpers of the client's tests: scenarios with a time limit, clients with short pauses, the content of a store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import heliograph
from heliograph.protocol import entry as entries
from tests.unit.client.fake_broker import FakeBroker, FakeStore

TOPIC = "persistent://public/default/t"
QUICK: dict[str, Any] = {"retry_first_ms": 5, "retry_max_ms": 20}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario, which may take 60 seconds at most."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(bounded())


async def client_of(*brokers: FakeBroker, **options: Any) -> heliograph.AsyncClient:
    """Return a client that knows these brokers."""
    address = "pulsar://" + ",".join(broker.url.removeprefix("pulsar://") for broker in brokers)
    return await heliograph.connect_async(address, **{**QUICK, **options})


def stored(store: FakeStore, topic: str = TOPIC) -> list[bytes]:
    """Return the messages of a topic, in order."""
    values = []
    for section in store.topics[topic].entries:
        metadata, payload = entries.split(section)
        plain = entries.plain_payload(metadata, payload)
        if entries.is_batch(metadata):
            values += [value for _, value in entries.iterate_batch(metadata, plain)]
        else:
            values.append(plain)
    return values
