"""Processors in one process: states, outputs, failures, refused producers, the example, and work after an end."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import heliograph
from examples import processor
from heliograph.base.errors import ProducerBusyError
from heliograph.processors import outputs
from heliograph.processors.outputs import Outputs
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


class Producer:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def open(self) -> None:
        self._client.attempts += 1
        if self._client.attempts < 3:
            raise ProducerBusyError("the connection has as many producers as it may")

    async def close(self) -> None:
        self._client.closed += 1


class Client:
    def __init__(self) -> None:
        self.attempts = self.closed = 0

    def producer(self, topic: str, **_: Any) -> Producer:
        return Producer(self)


async def test_a_producer_that_is_refused_is_tried_again_and_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Most often the owner before is about to lose its connection; a limit of the broker does not go away."""
    monkeypatch.setattr(outputs, "BUSY_SECONDS", 0)
    client: Any = Client()
    with caplog.at_level(logging.WARNING):
        await Outputs(client, "count/0", {})._opened(("t", 1), "count/0/5", 0)
    assert (client.attempts, client.closed) == (3, 2)
    assert "persistent://public/default/t-partition-1" in caplog.text
    assert "as many producers as it may" in caplog.text


@pytest.mark.slow
def test_the_example_counts_each_payment_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    processor.main(str(tmp_path))
    assert "500 payments of 20 customers; each counts once" in capsys.readouterr().out
