"""Every fuzzer can fail: a check is taken out of each listener, and the fuzzer finds that it is gone."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from heliograph.auth.principal import INTERNAL
from heliograph.protocol import pulsar_pb2 as pb
from tests.fuzz.campaign import campaign
from tests.fuzz.listeners.listeners import LISTENERS
from tests.patience import patience

SEED = 7
CONVERSATIONS_MAX = 2_000  # every sabotage is found within so many
FIRST = {  # a conversation shortly before the one that finds it
    "payloads are base64": 830,
    "texts of commands are UTF-8": 1_490,
}


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    with patience():
        yield


def allow(*_: Any, **__: Any) -> None:
    """Check nothing."""


def take_anything(reader: Any, count: int) -> bytes:
    """Read beyond the end."""
    start, reader._offset = reader._offset, reader._offset + count
    return bytes(reader._data[start : reader._offset])


# By what is missing: the listener, and what replaces what.
SABOTAGES: dict[str, tuple[str, str, Any]] = {
    "texts of commands are UTF-8": ("broker", "heliograph.protocol.frame.fault_of_texts", lambda _: ""),
    "producers end with their connection": (
        "broker", "heliograph.actors.broker.protocol.producer_commands.ProducerCommands._connection_lost", allow,
    ),
    "brokers refuse strangers": (
        "broker-door", "heliograph.actors.broker.protocol.auth_commands.AuthCommands._refuse",
        lambda commands, _: commands._accept(pb.CommandConnect(), INTERNAL),
    ),
    "numbers of requests have ranges": (
        "bookie", "heliograph.actors.bookie.server.connection.range_fault", lambda _: "",
    ),
    "bookies refuse strangers": (
        "bookie-door", "heliograph.base.guard.handshake.ServerHandshake.accepts", lambda *_: True,
    ),
    "arguments have types": ("metadata", "heliograph.metadata.backends.embedded.server.service.check_arguments", allow),
    "the store refuses strangers": (
        "metadata-door", "heliograph.base.guard.handshake.ServerHandshake.accepts", lambda *_: True,
    ),
    "reads end with the frame": ("zookeeper", "heliograph.metadata.endpoint.wire.jute.JuteReader.take", take_anything),
    "the endpoint refuses strangers": (
        "zookeeper-door", "heliograph.metadata.endpoint.session.caller.EndpointCaller.may_request", lambda *_: True,
    ),
    "payloads are base64": (
        "http", "heliograph.gateway.shapes.publish_bodies.from_base64", lambda text, _: base64.b64decode(text),
    ),
    "refused upgrades are answers": (
        "websocket", "heliograph.gateway.http.protocols.WebSocketProtocol.send", WebSocketsSansIOProtocol.send,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    listener, target, replacement = SABOTAGES[name]
    monkeypatch.setattr(target, replacement)
    monkeypatch.setattr("tests.fuzz.campaign.SHRINK_TRIES_MAX", 0)
    monkeypatch.setattr("tests.fuzz.campaign.SETTLE_SECONDS_MAX", 0.5)
    report = asyncio.run(campaign(LISTENERS[listener], SEED, first=FIRST.get(name, 0), count=CONVERSATIONS_MAX))
    assert report.failure is not None, f"{report.conversations} conversations have not found it"
    assert "replay: python -m tests.fuzz" in str(report.failure)


def test_every_fuzzer_is_sabotaged() -> None:
    assert {listener for listener, _, _ in SABOTAGES.values()} == set(LISTENERS)
