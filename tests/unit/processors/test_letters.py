"""Letters of handlers that fail in ways that once held a partition."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import heliograph
from heliograph.tasks.records import REASON
from tests.unit.processors.conftest import Begin, Made, read
from tests.unit.processors.test_features import send, texts


async def test_a_timer_of_a_long_key_that_fails_stops_nothing(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    class Later(heliograph.Processor):
        state = dict

        async def on_message(self, message: Any, context: Any) -> None:
            if message.data == b"last":
                context.send(f"{name}-out", message.data)
            elif message.data == b"first":
                context.timer("t", after=0.0)

        async def on_timer(self, timer: str, context: Any) -> None:
            raise ValueError("no")

    key = "k" * 4_096
    await send(client, name, (key, "first"))
    begin(made(Later, retries=0))
    await send(client, name, ("b", "later"))
    await send(client, name, ("b", "last"))
    assert texts(await read(client, f"{name}-out", 1)) == [(None, "last")]
    await send(client, name, ("b", "last"))
    (letter,) = await read(client, f"{name}-letters", 1)
    assert (letter.key, letter.properties[REASON]) == (key, "ValueError: no")
    assert len(await read(client, f"{name}-out", 2)) == 2


@pytest.mark.parametrize(("timer", "after"), [("\ud800", 1.0), ("t", 1e20)])
async def test_a_timer_that_cannot_be_stored_stops_nothing(
    client: heliograph.Client, name: str, made: Made, begin: Begin, timer: str, after: float
) -> None:
    class Odd(heliograph.Processor):
        state = dict

        async def on_message(self, message: Any, context: Any) -> None:
            if message.data == b"first":
                context.timer(timer, after=after)
            context.send(f"{name}-out", message.data)

        async def on_timer(self, timer: str, context: Any) -> None: ...

    await send(client, name, ("a", "first"), ("b", "last"))
    begin(made(Odd, retries=0))
    assert texts(await read(client, f"{name}-out", 1)) == [(None, "last")]
    assert len(await read(client, f"{name}-letters", 1)) == 1


@pytest.mark.parametrize("kept", ["heliograph.traceback", "heliograph.note"])
async def test_a_message_with_a_long_property_of_our_names_stops_nothing(
    client: heliograph.Client, name: str, made: Made, begin: Begin, kept: str
) -> None:
    def fail(message: Any, context: Any) -> None:
        if message.data == b"first":
            raise ValueError("no")
        context.send(f"{name}-out", message.data)

    async with heliograph.AsyncClient(client.options) as own, own.producer(name) as producer:
        await producer.send(b"first", properties={kept: "x" * 7_100})
        await producer.send(b"second")
    begin(made(fail, retries=0))
    assert texts(await read(client, f"{name}-out", 1)) == [(None, "second")]
    (letter,) = await read(client, f"{name}-letters", 1)
    assert letter.properties[REASON] == "ValueError: no"
    await send(client, name, ("b", "third"))
    assert len(await read(client, f"{name}-out", 2)) == 2


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_handler_whose_own_task_was_cancelled_stops_nothing(
    client: heliograph.Client, name: str, made: Made, begin: Begin, is_async: bool
) -> None:
    async def awaits(message: Any, context: Any) -> None:
        if message.data == b"first":
            own = asyncio.ensure_future(asyncio.sleep(60))
            own.cancel()
            await own
        context.send(f"{name}-out", message.data)

    def raises(message: Any, context: Any) -> None:
        if message.data == b"first":
            raise asyncio.CancelledError("of another loop")
        context.send(f"{name}-out", message.data)

    await send(client, name, ("a", "first"), ("b", "last"))
    begin(made(awaits if is_async else raises, retries=0))
    assert texts(await read(client, f"{name}-out", 1)) == [(None, "last")]
    (letter,) = await read(client, f"{name}-letters", 1)
    assert letter.properties[REASON].startswith("CancelledError")


async def test_the_letter_of_the_last_message_waits_for_no_other(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    def fail(message: Any, context: Any) -> None:
        raise ValueError("no")

    await send(client, name, ("a", "first"))
    begin(made(fail, retries=0))
    assert len(await read(client, f"{name}-letters", 1)) == 1


async def test_the_letter_of_the_last_timer_waits_for_no_other(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    class Later(heliograph.Processor):
        async def on_message(self, message: Any, context: Any) -> None:
            context.timer("t", after=0.0)

        async def on_timer(self, timer: str, context: Any) -> None:
            raise ValueError("no")

    await send(client, name, ("a", "first"))
    begin(made(Later, retries=0))
    assert len(await read(client, f"{name}-letters", 1)) == 1
