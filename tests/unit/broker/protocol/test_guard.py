"""What strangers may hold of a broker: bytes before CONNECT, unfinished frames, connections of an address or role."""

from __future__ import annotations

import asyncio
import base64
import logging
import struct
from typing import Any

import pytest

from heliograph.actors.broker.protocol.connection import CONNECT_BYTES_MAX, NO_REQUEST_ID
from heliograph.auth.config import AuthConfig
from heliograph.base.guard.quiet_log import LINES_PER_MINUTE_MAX
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import encode_payload_frame
from tests.unit.auth.keys import SECRET, token
from tests.unit.broker.clients import ENTRY, Client, FakeTransport, LoneBroker, T
from tests.unit.broker.world import turns

TOPIC = "orders"
MIB = 1 << 20
FRAME = encode_payload_frame(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0)), b"x" * (5 * MIB))


async def test_a_client_that_is_not_connected_has_a_small_frame() -> None:
    async with LoneBroker() as lone:
        connection = lone.broker._server._connected()
        transport = FakeTransport()
        connection.connection_made(transport)
        connection.data_received(struct.pack(">I", CONNECT_BYTES_MAX + 1))
        assert transport.is_gone
        connection.connection_lost(None)
        client = Client(lone.broker)
        client.connection.data_received(FRAME[: MIB // 2])
        assert not client.transport.is_gone
        client.leave()


async def test_an_unfinished_frame_is_counted_and_ends_its_connection_with_a_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with LoneBroker() as lone:
        client, other = Client(lone.broker), Client(lone.broker)
        client.connection.data_received(FRAME[:100_000])
        assert lone.broker.statistics()["unfinished_bytes"] == 100_000
        client.connection.data_received(FRAME[100_000:][:100_000])
        other.connection.data_received(FRAME[:3])
        assert lone.broker.statistics()["unfinished_bytes"] == 200_003
        lone.broker._server.guard._budget.sweep(1e9)
        assert client.transport.is_gone
        error = client.transport.answers[-1].error
        assert (error.request_id, error.error) == (NO_REQUEST_ID, pb.TOO_MANY_REQUESTS)
        assert "unfinished_ms_max" in error.message
        assert "a frame did not arrive" in caplog.text
        statistics = lone.broker.statistics()
        assert (statistics["unfinished_bytes"], statistics["unfinished_closed_total"]) == (0, 2)
        for each in (client, other):
            each.leave()


async def test_a_connection_that_is_lost_gives_its_bytes_back() -> None:
    async with LoneBroker() as lone:
        client = Client(lone.broker)
        client.connection.data_received(FRAME[:100_000])
        client.leave()
        assert lone.broker.statistics()["unfinished_bytes"] == 0


async def test_a_socket_without_room_is_not_read_until_there_is_room() -> None:
    async with LoneBroker(unfinished_bytes_max=32 * MIB) as lone:
        clients = [Client(lone.broker) for _ in range(100)]
        for client in clients:
            client.connection.data_received(FRAME[: MIB // 5])
        waiting = [client for client in clients if not client.transport.is_read]
        assert waiting
        assert lone.broker.statistics()["unfinished_bytes"] <= 32 * MIB
        for client in clients:
            if client not in waiting:
                client.leave()
        for client in clients:
            if client in waiting and client.transport.is_read:
                client.leave()
        assert waiting[-1].transport.is_read
        for client in waiting:
            if client.transport.is_read and client.connection.is_open:
                client.leave()


async def test_one_address_has_as_many_connections_as_it_may_and_the_log_stays_short(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    async with LoneBroker(connections_per_address_max=1) as lone:
        first, *others = [Client(lone.broker) for _ in range(50)]
        assert first.connection.is_open
        assert all(other.transport.is_gone for other in others)
        assert len([record for record in caplog.records if "refused" in record.message]) == LINES_PER_MINUTE_MAX
        assert "peer has 1 connections, one address may have 1" in caplog.text
        statistics = lone.broker.statistics()
        assert (statistics["connections"], statistics["connections_refused_total"]) == (1, 49)
        for client in (first, *others):
            client.leave()
        again = Client(lone.broker)
        assert again.connection.is_open
        again.leave()


async def test_one_role_has_as_many_connections_as_it_may() -> None:
    def client(role: str) -> Client:
        return Client(lone.broker, auth_method_name="token", auth_data=token(role))

    given: dict[str, Any] = {"enabled": True, "token_secret_key": base64.b64encode(SECRET).decode()}
    async with LoneBroker(auth=AuthConfig(**given), connections_per_role_max=1) as lone:
        first = client("bob")
        await turns(lambda: first.answer(T.CONNECTED))
        second = client("bob")
        await turns(lambda: second.transport.is_gone)
        error = second.transport.answers[-1].error
        assert (error.request_id, error.error) == (NO_REQUEST_ID, pb.TOO_MANY_REQUESTS)
        assert "connections_per_role_max" in error.message
        other = client("carol")
        await turns(lambda: other.answer(T.CONNECTED))
        second.leave()
        first.leave()
        again = client("bob")
        await turns(lambda: again.answer(T.CONNECTED))
        for each in (other, again):
            each.leave()


async def test_a_whole_entry_in_pieces_arrives() -> None:
    async with LoneBroker(TOPIC) as lone:
        client = Client(lone.broker)
        wanted = pb.CommandProducer(topic=TOPIC, producer_id=1, request_id=1)
        client.say(T(type=T.PRODUCER, producer=wanted))
        await turns(lambda: client.answer(T.PRODUCER_SUCCESS))
        frame = encode_payload_frame(T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=0)), ENTRY)
        for number in range(len(frame)):
            client.connection.data_received(frame[number : number + 1])
        await turns(lambda: client.answer(T.SEND_RECEIPT))
        assert lone.broker.statistics()["unfinished_bytes"] == 0
        client.leave()


async def test_a_client_has_little_time_to_connect() -> None:
    async with LoneBroker() as lone:
        connection = lone.broker._server._connected()
        transport = FakeTransport()
        connection.connection_made(transport)
        assert connection._ticker is not None
        assert connection._ticker.when() <= asyncio.get_running_loop().time() + 10
        connection._ticker.cancel()
        connection._tick()
        assert transport.is_gone
        connection.connection_lost(None)
