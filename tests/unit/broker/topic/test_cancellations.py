"""Clients that leave in the middle of a request: it is completed all the same, and later clients find no half of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import ConflictError, TopicNotFoundError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.producers.test_access import Channel
from tests.unit.broker.topic_world import listen, publish, topic_on
from tests.unit.broker.world import Outcomes, World, turns

EXCLUSIVE = pb.CommandSubscribe.EXCLUSIVE


class Gate:
    """Holds the calls of one method back until it is opened."""

    def __init__(self, method: Callable[..., Awaitable[object]]) -> None:
        self.method = method
        self.arrived = asyncio.Event()
        self.open = asyncio.Event()
        self.is_late = False  # the call has its effect at once, and only its answer is held back

    async def __call__(self, *arguments: object, **options: object) -> object:
        done = await self.method(*arguments, **options) if self.is_late else None
        self.arrived.set()
        await self.open.wait()
        return done if self.is_late else await self.method(*arguments, **options)


def subscribe(client: Client, name: str, number: int, *, is_durable: bool = True) -> None:
    wanted = pb.CommandSubscribe(
        topic="orders",
        subscription=name,
        sub_type=EXCLUSIVE,
        consumer_id=number,
        request_id=number,
        durable=is_durable,
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))


async def test_a_client_that_leaves_while_its_subscription_is_deleted_leaves_none_behind() -> None:
    """A half-deleted subscription would refuse every consumer for as long as the topic is served."""
    async with LoneBroker("orders") as lone:
        topic = await lone.broker.topics.get(TopicName.parse("orders"))
        client = Client(lone.broker)
        subscribe(client, "billing", 1)
        await turns(lambda: client.answer(T.SUCCESS))
        store = lone.broker._store
        gate = Gate(store.delete)
        store.delete = gate  # type: ignore[method-assign,assignment]
        client.say(T(type=T.UNSUBSCRIBE, unsubscribe=pb.CommandUnsubscribe(consumer_id=1, request_id=2)))
        await gate.arrived.wait()
        client.leave()
        await asyncio.sleep(0)
        gate.open.set()
        await turns(lambda: "billing" not in topic.subscriptions)
        again = Client(lone.broker)
        subscribe(again, "billing", 1)
        await turns(lambda: again.answer(T.SUCCESS))
        assert topic.is_open
        again.leave()


async def test_a_record_whose_writer_was_cancelled_is_still_ours(world: World, store: MemoryStore) -> None:
    """The record in the store may be what the cancelled caller wrote: no other owner wrote it (I13)."""
    world.policies = replace(world.policies, ledger_entries_max=2)
    topic = await topic_on(world, store)
    gate = Gate(store.set)
    gate.is_late = True
    write, store.set = store.set, gate  # type: ignore[method-assign,assignment]
    claiming = asyncio.create_task(topic.ledger.store_property("topic_epoch", "7"))
    await gate.arrived.wait()
    claiming.cancel()
    await asyncio.wait([claiming])
    store.set = write  # type: ignore[method-assign]
    gate.open.set()
    await topic.ledger.check_ownership()
    await publish(topic.ledger, *"abc")
    assert topic.is_open
    assert topic.ledger.record.properties["topic_epoch"] == "7"
    await topic.close()
    again = await topic_on(world, await world.session())
    assert again.ledger.record.properties["topic_epoch"] == "7"


async def test_a_subscription_that_is_used_again_at_the_last_moment_is_not_deleted(topic: BrokerTopic) -> None:
    """The caller found it unused, then waited for another operation. Its new consumer would lose messages."""
    billing = await topic.subscribe("billing", start=0)
    await publish(topic.ledger, "a")
    async with topic._subscribing:
        ending = asyncio.create_task(topic.unsubscribe("billing"))
        await asyncio.sleep(0)
        _, heard = listen(billing, SubscriptionType.EXCLUSIVE)
    with pytest.raises(ConflictError):
        await ending
    await turns(lambda: heard.keys == ["a"])
    assert not heard.is_closed
    await topic.unsubscribe("billing", force=True)
    assert heard.is_closed


async def test_a_client_whose_unsubscribing_failed_is_told_to_subscribe_again() -> None:
    """Its consumer is removed by then; it would wait for messages for ever."""
    async with LoneBroker("orders") as lone:
        await lone.broker.topics.get(TopicName.parse("orders"))
        client = Client(lone.broker)
        subscribe(client, "billing", 1)
        await turns(lambda: client.answer(T.SUCCESS))

        async def refuse(path: str, version: int = -1) -> None:
            raise ConnectionLossError("metadata is out of reach")

        store = lone.broker._store
        delete, store.delete = store.delete, refuse  # type: ignore[method-assign]
        client.say(T(type=T.UNSUBSCRIBE, unsubscribe=pb.CommandUnsubscribe(consumer_id=1, request_id=2)))
        await turns(lambda: client.answer(T.CLOSE_CONSUMER))
        store.delete = delete  # type: ignore[method-assign]
        told = [answer.type for answer in client.transport.answers[-2:]]
        assert told == [T.ERROR, T.CLOSE_CONSUMER], "in this order: a client that unsubscribes does not come back"
        subscribe(client, "billing", 1)
        await turns(lambda: [a.type for a in client.transport.answers].count(T.SUCCESS) == 2)


async def test_a_topic_is_terminated_although_its_caller_left(topic: BrokerTopic, world: World) -> None:
    """A half-terminated topic would accept entries and never store them."""
    channel = Channel()
    producer = TopicProducer(1, "p", 0, channel)
    await topic.admission.admit(producer, "b")
    world.ledgers.held = True
    outcomes = Outcomes()
    outcomes.publish(topic.ledger, "a")
    ending = asyncio.create_task(topic.terminate())
    await turns(lambda: topic.ledger.state is WriteState.DRAINING)
    ending.cancel()
    await asyncio.wait([ending])
    world.ledgers.held = False
    topic.ledger.writer.release()  # type: ignore[attr-defined]
    await turns(lambda: topic.ledger.state is WriteState.TERMINATED)
    assert outcomes.texts == ["a"]
    await turns(lambda: channel.told == ["closed"])


async def test_a_producer_creates_a_topic_that_statistics_look_for_at_the_moment() -> None:
    """It joined the load of a caller that may not create the topic, and heard that there is none, which is final."""
    async with LoneBroker("orders") as lone:
        topics, name = lone.broker.topics, TopicName.parse("invoices")
        looking = asyncio.ensure_future(topics.get(name))
        await asyncio.sleep(0)
        topic = await topics.get(name, may_create=True)
        with pytest.raises(TopicNotFoundError):
            await looking
        assert topic.is_open
