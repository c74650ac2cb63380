"""Messages are stored in the order of their calls, whatever the calls wait for and in whichever turn they begin."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.world import client_of, stored


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
