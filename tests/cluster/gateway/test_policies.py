"""Policies that are set over HTTP are honoured by the brokers: what they refuse, and what stays as it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.errors import UnsupportedError
from tests.cluster.gateway.stack import Stack, running_stack

NAMESPACE = "/admin/v2/namespaces/public/strict"
POLICIES = {
    "schema_compatibility_strategy": "UNDEFINED",
    "max_topics_per_namespace": 2,
    "subscription_types_enabled": ["Shared"],
    "retention_policies": None,
}


async def test_brokers_honour_what_was_set(tmp_path: Path) -> None:
    async with running_stack(tmp_path, brokers=1) as stack:
        assert (await stack.http.put(NAMESPACE, json=POLICIES)).status_code == 204
        await limited_topics(stack)
        await limited_subscriptions(stack)
        await required_encryption(stack)


async def limited_topics(stack: Stack) -> None:
    topics = "/admin/v2/persistent/public/strict"
    assert (await stack.http.put(f"{topics}/a")).status_code == 204
    refused = await stack.http.put(f"{topics}/b/partitions", json=2)
    assert (refused.status_code, refused.json()["limit"]) == (412, "2 topics")
    assert (await stack.http.delete(f"{NAMESPACE}/maxTopicsPerNamespace")).status_code == 204
    assert (await stack.http.put(f"{topics}/b/partitions", json=2)).status_code == 204


async def limited_subscriptions(stack: Stack) -> None:
    topic = "persistent://public/strict/a"
    with pytest.raises(UnsupportedError, match="does not allow Exclusive subscriptions"):
        await (await stack.client.consumer(topic, "audit", type="exclusive")).receive(timeout=60)
    consumer = await stack.client.consumer(topic, "audit", type="shared")
    await consumer.close()


async def required_encryption(stack: Stack) -> None:
    topic = "persistent://public/strict/a"
    producer = await stack.client.producer(topic)
    await producer.send(b"plain")
    await producer.close()
    assert (await stack.http.post(f"{NAMESPACE}/encryptionRequired", json="true")).status_code == 204
    with pytest.raises(UnsupportedError, match="requires encrypted messages"):
        await asyncio.wait_for(produce_until_refused(stack, topic), 120)


async def produce_until_refused(stack: Stack, topic: str) -> None:
    while True:  # the broker is told within moments
        await (await stack.client.producer(topic)).close()
