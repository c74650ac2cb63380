"""ACTIVE_CONSUMER_CHANGE comes when the client listens: after the answer to its SUBSCRIBE, and after its first FLOW."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.broker.protocol import active_consumer
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns

FLOW = T(type=T.FLOW, flow=pb.CommandFlow(consumer_id=1, message_permits=1))


def told(client: Client) -> list[bool]:
    changes = [answer for answer in client.transport.answers if answer.type == T.ACTIVE_CONSUMER_CHANGE]
    return [change.active_consumer_change.is_active for change in changes]


async def join(lone: LoneBroker, name: str, priority: int = 0) -> Client:
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(
        topic="orders", subscription="s", sub_type=pb.CommandSubscribe.FAILOVER, consumer_id=1, request_id=1
    )
    wanted.consumer_name, wanted.priority_level = name, priority
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    return client


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_consumer_is_told_at_its_first_flow(lone: LoneBroker) -> None:
    """The Go client drops a change that comes directly behind the answer to its SUBSCRIBE."""
    first = await join(lone, "a", priority=1)
    await settle()
    assert told(first) == []
    first.say(FLOW)
    await turns(lambda: told(first) == [True])
    first.say(FLOW)
    second = await join(lone, "b")
    await turns(lambda: told(first) == [True, False])  # it listens already
    await settle()
    assert told(second) == []
    second.say(FLOW)
    await turns(lambda: told(second) == [True])
    second.leave()
    await turns(lambda: told(first) == [True, False, True])
    first.leave()


async def test_only_the_last_of_several_changes_is_told(lone: LoneBroker) -> None:
    first = await join(lone, "a", priority=1)
    second = await join(lone, "b")
    await settle()
    first.say(FLOW)
    await settle()
    assert told(first) == [False]
    first.leave()
    second.leave()


async def test_a_silent_consumer_is_told_after_a_while(lone: LoneBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer without a receiver queue sends no FLOW before its user asks for a message."""
    monkeypatch.setattr(active_consumer, "SILENT_SECONDS_MAX", 0.01)
    client = await join(lone, "a")
    while not told(client):  # noqa: ASYNC110 - a timer decides
        await asyncio.sleep(0.01)
    assert told(client) == [True]
    client.leave()
    gone = await join(lone, "b")
    gone.leave()
    await asyncio.sleep(0.1)
    assert told(gone) == []
