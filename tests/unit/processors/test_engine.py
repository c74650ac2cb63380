"""Processors in one process: states, outputs, failures, and what goes on after an end."""

from __future__ import annotations

from typing import Any

import heliograph
from tests.unit.processors.conftest import Begin, Made, ended, read


class Totals(heliograph.Processor):
    """Adds the values of each key, and sends each sum."""

    state = dict

    async def on_message(self, message: Any, context: Any) -> None:
        context.state["sum"] = context.state.get("sum", 0) + int(message.value)
        context.send(f"{message.topic.partition('-partition-')[0]}-out", context.state["sum"], key=message.key)


async def test_states_and_outputs_follow_the_input(
    client: heliograph.Client, name: str, made: Made, begin: Begin
) -> None:
    async with heliograph.AsyncClient(client.options) as own, own.producer(name) as producer:
        await producer.send_many(["1", "2", "3", "4"], keys=["a", "b", "a", "b"])
        working = begin(made(Totals))
        found = await read(client, f"{name}-out", 4)
        assert [(each.key, each.data) for each in found] == [("a", b"1"), ("b", b"2"), ("a", b"4"), ("b", b"6")]
        await ended(working)
        await producer.send("10", key="a")
        begin(made(Totals))
        found = await read(client, f"{name}-out", 5)
        assert [(each.key, each.data) for each in found][4:] == [("a", b"14")]
