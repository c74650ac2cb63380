"""ADMIN_CALL: operations of the administration through a client's connection."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import msgpack
import pytest

from heliograph.actors.broker.protocol import admin_commands
from heliograph.actors.broker.protocol.admin_commands import AdminCommands
from heliograph.base.errors import BadRequestError, HeliographError, NotFoundError
from heliograph.operations.answer import unpacked
from heliograph.operations.table import OPERATIONS
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns
from tests.waits import until


async def call(client: Client, operation: str, arguments: bytes) -> Any:
    await turns(lambda: client.answer(T.CONNECTED))
    before = len(client.transport.answers)
    wanted = pb.CommandAdminCall(request_id=7, operation=operation, arguments=arguments)
    client.say(T(type=T.ADMIN_CALL, admin_call=wanted))
    await until(lambda: len(client.transport.answers) != before)
    answer = client.transport.answers[before].admin_answer
    assert answer.request_id == 7
    return unpacked(answer.answer, "the broker")


async def test_an_operation_runs_and_its_errors_keep_their_class(client: Client) -> None:
    await turns(lambda: client.answer(T.CONNECTED))
    assert client.transport.answers[0].connected.feature_flags.takes_admin_calls
    assert await call(client, "partitions", msgpack.packb({"topic": "orders"})) == 0
    await call(client, "create_topic", msgpack.packb({"topic": "many", "partitions": 3}))
    assert await call(client, "partitions", msgpack.packb({"topic": "many"})) == 3
    with pytest.raises(NotFoundError):
        await call(client, "delete_topic", msgpack.packb({"topic": "nowhere"}))


@pytest.mark.parametrize(
    ("operation", "arguments", "field"),
    [
        ("nothing", msgpack.packb({}), "operation"),
        ("list_topics", msgpack.packb([]), "arguments"),
        ("list_topics", msgpack.packb({"color": 1}), "arguments"),
        ("list_topics", b"\xc1", "arguments"),
        ("list_topics", b"", "arguments"),
        ("list_topics", b"\x91" * 100_000, "arguments"),
        ("list_topics", bytes(admin_commands.ARGUMENTS_BYTES_MAX + 1), "arguments"),
        ("create_topic", msgpack.packb({"topic": "t", "partitions": -1}), "partitions"),
        ("create_topic", msgpack.packb({"topic": 7}), "topic"),
        ("create_subscription", msgpack.packb({"topic": "orders", "name": 7}), "name"),
        ("remove_topic_properties", msgpack.packb({"topic": "orders", "names": ["a", b"b"]}), "names"),
        ("namespaces.set_policies", msgpack.packb({"namespace": "public/default", "values": {7: 7}}), "values"),
    ],
)
async def test_bad_calls_name_their_field(client: Client, operation: str, arguments: bytes, field: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        await call(client, operation, arguments)
    assert caught.value.field == field
    assert client.connection.is_open


async def test_an_answer_above_the_largest_message_is_an_error(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_commands, "packed_value", lambda value: bytes((5 << 20) + 1))
    with pytest.raises(BadRequestError, match="ask for less"):
        await call(client, "list_topics", msgpack.packb({}))


@pytest.mark.parametrize(("operation", "ends"), [("delete_topic", True), ("topic_stats", False)])
async def test_a_change_goes_on_when_its_connection_is_lost(
    lone: LoneBroker, monkeypatch: pytest.MonkeyPatch, operation: str, ends: bool
) -> None:
    client = Client(lone.broker)
    await turns(lambda: client.answer(T.CONNECTED))
    gate, outcomes = asyncio.Event(), list[str]()

    async def run(*_: Any) -> None:
        try:
            await gate.wait()
            outcomes.append("done")
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise

    AdminCommands(client.connection, run)
    monkeypatch.setattr(admin_commands, "CHANGES_OF_ROLE_MAX", 1)
    call = pb.CommandAdminCall(request_id=7, operation=operation, arguments=msgpack.packb({}))
    for _ in range(2):
        client.say(T(type=T.ADMIN_CALL, admin_call=call))
    await turns(lambda: len(client.connection._tasks) == 2)
    for _ in range(5):
        await asyncio.sleep(0)
    role = client.connection.principal.role
    assert client.connection.context.admin_changes[role] == int(ends)
    client.leave()
    gate.set()
    await turns(lambda: len(outcomes) == 2)
    assert sorted(outcomes) == (["cancelled", "done"] if ends else ["cancelled"] * 2), "a role has one here"
    assert client.connection.context.admin_changes[role] == 0


ODD: list[Any] = [7, "x", b"x", [7], [[]], {"a": []}, {"a": 7}, {7: 7}, {"type": 7}, {"type": "AVRO", "schema": 7},
                  {"placement": []}, None, True, 1.5, float("nan"), 1 << 63, -1, "", "\0", "a/b/c/d"]  # fmt: skip
GOOD: dict[str, Any] = {"topic": "orders", "namespace": "public/default", "names": ["x"], "payloads": [b"x"]}


async def test_no_value_of_an_argument_fails_without_a_name(lone: LoneBroker) -> None:
    calls = 0
    for operation in OPERATIONS.values():
        parameters = operation.signature.parameters
        given = {name: GOOD.get(name, "x") for name, each in parameters.items() if each.default is each.empty}
        for name, odd in itertools.product(parameters, ODD):
            calls += 1
            with contextlib.suppress(HeliographError):
                await lone.broker.admin.run(operation.name, {**given, name: odd})
    assert calls > 3_000
