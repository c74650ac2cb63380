"""Callers that are cancelled while they open, close or connect: they leave nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.client.options import ClientOptions
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.topics import publish, subscription_of
from tests.unit.client.world import TOPIC, client_of, stored
from tests.waits import until


async def cancelled(task: asyncio.Future[Any]) -> None:
    await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert task.cancelled()


async def test_an_abandoned_opening_leaves_the_partitions_that_were_subscribed() -> None:
    """Otherwise they would keep messages of a shared subscription that no caller receives."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.store.partitions[TOPIC] = 2
        broker.silent_after[T.SUBSCRIBE] = 1
        opening = asyncio.ensure_future(client.consumer("t", "s", type="shared").open())
        await until(lambda: len(broker.of_type(T.SUBSCRIBE)) == 2)
        await until(lambda: broker.of_type(T.FLOW))
        await cancelled(opening)
        await until(
            lambda: (
                {c.subscribe.consumer_id for c in broker.of_type(T.SUBSCRIBE)}
                == {c.close_consumer.consumer_id for c in broker.of_type(T.CLOSE_CONSUMER)}
            )
        )


async def test_new_partitions_are_left_when_the_consumer_is_closed_while_it_opens_them() -> None:
    async with FakeBroker() as broker, await client_of(broker, partitions_update_ms=5) as client:
        broker.store.partitions[TOPIC] = 1
        consumer = await client.consumer("t", "s", type="shared")
        broker.silent_after[T.SUBSCRIBE] = 2
        broker.store.partitions[TOPIC] = 3
        await until(lambda: len(broker.of_type(T.SUBSCRIBE)) == 3)
        await until(lambda: len(broker.of_type(T.FLOW)) == 2)
        await consumer.close()
        await until(
            lambda: (
                {c.subscribe.consumer_id for c in broker.of_type(T.SUBSCRIBE)}
                == {c.close_consumer.consumer_id for c in broker.of_type(T.CLOSE_CONSUMER)}
            )
        )


async def test_a_closing_whose_caller_is_cancelled_runs_to_its_end() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", access_mode="exclusive")
        broker.hold_receipts()
        sent = asyncio.ensure_future(producer.send("one"))
        await until(lambda: broker.of_type(T.SEND))
        await cancelled(asyncio.ensure_future(producer.close()))
        assert not broker.of_type(T.CLOSE_PRODUCER), "a message is still unconfirmed"
        second = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        assert not second.done(), "a second closing waits for the end of the first"
        broker.release_receipts()
        await second
        assert (await sent).entry_id == 0
        assert len(broker.of_type(T.CLOSE_PRODUCER)) == 1
        assert stored(broker.store) == [b"one"]


async def test_a_consumer_whose_closing_caller_is_cancelled_keeps_no_messages() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        await publish(client, ["one"])
        consumer = await client.consumer("t", "s", type="shared", initial_position="earliest")
        message = await consumer.receive(60)
        broker.silent.add(T.ACK)
        acking = asyncio.ensure_future(consumer.ack(message))
        await until(lambda: broker.of_type(T.ACK))
        await cancelled(asyncio.ensure_future(consumer.close()))
        broker.silent.clear()
        broker.drop_connections()
        await acking
        await until(lambda: not subscription_of(broker).consumers)
        assert subscription_of(broker).acked == {0: 0}


async def test_a_client_waits_for_handles_that_are_being_closed() -> None:
    async with FakeBroker() as broker:
        client = await client_of(broker)
        producer = await client.producer("t")
        broker.hold_receipts()
        sent = asyncio.ensure_future(producer.send("one"))
        await until(lambda: broker.of_type(T.SEND))
        closings = [asyncio.ensure_future(producer.close()), asyncio.ensure_future(client.close())]
        await asyncio.sleep(0.01)
        broker.release_receipts()
        await asyncio.gather(*closings)
        assert (await sent).entry_id == 0


async def test_closing_fails_the_callers_that_wait_for_an_opening() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.silent.add(T.PRODUCER)
        producer = client.producer("t")
        opening = asyncio.ensure_future(producer.open())
        await until(lambda: broker.of_type(T.PRODUCER))
        await producer.close()
        with pytest.raises(errors.AlreadyClosedError):
            await opening


async def test_a_connection_whose_client_is_closed_before_the_handshake_ends_is_ended() -> None:
    async with FakeBroker() as broker:
        broker.silent.add(T.CONNECT)
        client = heliograph.AsyncClient(ClientOptions((broker.url,)))
        pinging = asyncio.ensure_future(client.ping())
        await until(lambda: broker.of_type(T.CONNECT))
        await client.close()
        with pytest.raises(errors.AlreadyClosedError):  # not CancelledError: the caller is not cancelled
            await pinging
        await until(lambda: not broker.connections)


async def test_a_cancelled_connecting_leaves_no_connection() -> None:
    async with FakeBroker() as broker:
        broker.silent.add(T.CONNECT)
        connecting = asyncio.ensure_future(heliograph.connect_async(broker.url))
        await until(lambda: broker.of_type(T.CONNECT))
        await cancelled(connecting)
        await until(lambda: not broker.connections)
