"""The producers of a processor's partition while the broker refuses them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from heliograph.base.errors import ProducerBusyError
from heliograph.processors import outputs
from heliograph.processors.outputs import Outputs


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
