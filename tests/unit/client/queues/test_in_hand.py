"""Callers of one client that wait for each other's messages: none is forgotten, none waits longer than it asked for."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.client.aio.consumer import consumer as module
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.handle import HandleState
from heliograph.client.aio.in_hand import InHand
from heliograph.client.options import ConsumerOptions

SECONDS = 30  # that a fault takes to show


class Held:
    """A delivery that callers have; it counts how often it is looked at."""

    def __init__(self) -> None:
        self.bits = 1
        self.looks = 0

    @property
    def in_hand(self) -> int:
        self.looks += 1
        return self.bits

    def tell_in_hand(self, *, is_alone: bool) -> asyncio.Future[Any] | None:
        return None


def lost_delivery() -> Any:
    """A delivery of one message that was lost with a consumer once. The broker never says that it knows it in hand."""
    schedule = SimpleNamespace(note=lambda delivery: None)
    part = SimpleNamespace(epoch=0, on_delivery_taken=lambda delivery: None, redelivery=schedule)
    delivery = SimpleNamespace(
        consumer=part, epoch=0, crashes=1, lone_crashes=0, unacknowledged=1, in_hand=1, permits=1, needs_unpacking=False
    )
    delivery = cast(Any, type("Delivery", (SimpleNamespace,), {"__hash__": object.__hash__})(**vars(delivery)))
    message = SimpleNamespace(_delivery=delivery, redelivery_count=0)
    delivery.messages = lambda: iter([message])
    delivery.tell_in_hand = lambda *, is_alone: asyncio.get_running_loop().create_future()
    return delivery


def opened() -> AsyncConsumer:
    consumer: AsyncConsumer = AsyncConsumer(cast(Any, None), ConsumerOptions(("t",), "s", type="shared", max_crashes=1))
    consumer._state, consumer._loop, consumer._in_hand = HandleState.OPEN, asyncio.get_running_loop(), InHand()
    return consumer


@pytest.mark.slow
@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_caller_that_gives_up_wakes_another(is_cancelled: bool) -> None:
    """It was woken for a message that has to wait until callers have nothing else."""
    consumer, held = opened(), Held()
    consumer._in_hand.hand_out(held, was_lost=False)
    first = asyncio.create_task(consumer.receive_many(1, SECONDS if is_cancelled else 0.05))
    await asyncio.sleep(0)
    second = asyncio.create_task(consumer.receive_many(1))
    await asyncio.sleep(0)
    consumer._inbox.put(lost_delivery())
    await asyncio.sleep(0.01)
    if is_cancelled:
        first.cancel()
    await asyncio.wait([first])
    held.bits = 0
    consumer._in_hand.changed()
    async with asyncio.timeout(SECONDS):
        assert len(await second) == 1


async def test_a_caller_does_not_wait_longer_for_the_broker_than_it_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOLD_SECONDS", 10 * SECONDS)
    consumer = opened()
    consumer._inbox.put(lost_delivery())
    async with asyncio.timeout(SECONDS):
        assert len(await consumer.receive_many(1, 0.05)) == 1


async def test_an_acknowledgement_does_not_look_at_all_that_callers_have() -> None:
    known, held = InHand(), [Held() for _ in range(1_000)]
    for one in held:
        known.hand_out(one, was_lost=False)
    before = sum(one.looks for one in held)
    for one in held[:-1]:
        one.bits = 0
        assert not known.may_hand_out(was_lost=True)
    assert sum(one.looks for one in held) - before <= 3 * len(held)
    held[-1].bits = 0
    assert known.may_hand_out(was_lost=True)
