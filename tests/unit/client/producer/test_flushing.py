"""Calls are stored in their order whatever they wait for, and flushing and closing cover every call that began
before."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import client_of, stored
from tests.waits import until


@pytest.mark.parametrize("ending", ["flush", "close", "client"])
@pytest.mark.parametrize("window", [1000, 7])
async def test_calls_that_wait_for_the_opening_or_for_room_are_covered(ending: str, window: int) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = client.producer("t", pending_messages_max=window)
        calls: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(producer.send(b"%d" % number)) for number in range(100)
        ]
        calls.append(asyncio.ensure_future(producer.send_many([b"100", b"101"])))
        if ending == "flush":
            await producer.flush()
        elif ending == "close":
            await asyncio.sleep(0)  # the calls have begun
            await producer.close()
        else:
            await asyncio.sleep(0)
            await client.close()
        await asyncio.sleep(0)
        assert all(call.done() and call.exception() is None for call in calls)
        assert stored(broker.store) == [b"%d" % number for number in range(102)]


async def test_a_sync_script_that_only_flushes_has_stored_everything() -> None:
    async def serve(started: threading.Event, ended: asyncio.Event, found: list[FakeBroker]) -> None:
        async with FakeBroker() as broker:
            found.append(broker)
            started.set()
            await ended.wait()

    started, ended, found = threading.Event(), asyncio.Event(), list[FakeBroker]()
    serving = asyncio.ensure_future(serve(started, ended, found))
    await until(started.is_set)

    def script() -> int:
        with heliograph.connect(found[0].url) as client:
            producer = client.producer("t", pending_messages_max=100)
            futures = [producer.send_async(f"row {number}") for number in range(500)]
            producer.flush()
            return sum(future.done() for future in futures)

    assert await asyncio.to_thread(script) == 500
    assert len(stored(found[0].store)) == 500
    ended.set()
    await serving


async def test_a_call_whose_receipt_comes_as_the_flush_begins_is_done_when_the_flush_ends() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.hold_receipts()
        producer = await client.producer("t")
        call = asyncio.ensure_future(producer.send(b"x"))
        await until(lambda: broker.receipts_held)
        broker.release_receipts()
        await asyncio.sleep(0)  # the receipt is read in this turn of the event loop, after this step
        await producer.flush()
        assert call.done()


async def test_a_flush_of_a_closed_producer_is_refused() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t")
        await producer.close()
        with pytest.raises(errors.AlreadyClosedError):
            await producer.flush()


async def test_new_calls_are_refused_while_a_closing_serves_earlier_ones() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        broker.silent.add(T.PRODUCER)
        producer = client.producer("t")
        early = asyncio.ensure_future(producer.send(b"early"))
        await until(lambda: broker.of_type(T.PRODUCER))
        closing = asyncio.ensure_future(producer.close())
        await asyncio.sleep(0)
        with pytest.raises(errors.AlreadyClosedError):
            await producer.send(b"late")
        assert not closing.done()
        early.cancel()  # the last caller is gone: nothing is left to wait for
        await closing


async def test_flushing_ends_when_an_opening_fails() -> None:
    async with FakeBroker() as broker, await client_of(broker, operation_timeout_ms=50) as client:
        broker.silent.add(T.PRODUCER)
        producer = client.producer("t")
        call = asyncio.ensure_future(producer.send(b"x"))
        await producer.flush()
        with pytest.raises(errors.HeliographError):
            await call


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("window", [1000, 3])
async def test_a_call_that_begins_as_others_go_on_stays_behind_them(window: int, seed: int) -> None:  # I2
    """A call begins in each turn of the event loop: also in those between the end of a wait and what had waited."""
    chance = random.Random(seed)
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = client.producer("t", pending_messages_max=window)
        calls, sent = list[asyncio.Task[Any]](), 0
        while sent < 200:
            if chance.random() < 0.3:
                many = [b"%d" % number for number in range(sent, sent + chance.randint(1, 4))]
                calls.append(asyncio.create_task(producer.send_many(many)))
                sent += len(many)
            else:
                calls.append(asyncio.create_task(producer.send(b"%d" % sent)))
                sent += 1
            for _ in range(chance.choice((1, 1, 1, 5))):
                await asyncio.sleep(0)
        await asyncio.gather(*calls)
        assert stored(broker.store) == [b"%d" % number for number in range(sent)]


async def test_calls_that_are_cancelled_let_later_ones_go_on_in_order() -> None:  # I2
    chance = random.Random(1)
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = client.producer("t", pending_messages_max=3)
        calls = list[asyncio.Task[Any]]()
        for number in range(300):
            calls.append(asyncio.create_task(producer.send(b"%d" % number)))
            if chance.random() < 0.3:
                chance.choice(calls).cancel()
            await asyncio.sleep(0)
        results = await asyncio.gather(*calls, return_exceptions=True)
        found = [int(value) for value in stored(broker.store)]
        assert found == sorted(found)
        assert {number for number, result in enumerate(results) if not isinstance(result, BaseException)} <= {*found}
