"""Each command of Pulsar's protocol with every field as large as it may be: what it costs the broker's event loop."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from heliograph.actors.broker.protocol.command_limits import WORDS_MAX, check_command, limit_of
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.texts import names_of_repeated
from tests.unit.broker.clients import Client, LoneBroker, T
from tests.unit.broker.world import turns
from tests.unit.limits.measuring import BYTES_MAX, Costs

pytestmark = pytest.mark.slow

_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


@pytest.fixture
async def lone() -> AsyncIterator[LoneBroker]:
    async with LoneBroker("orders") as running:
        yield running


def largest(kind: int) -> list[BaseCommand]:
    """Return a command with all of its texts as long as they may be, and one for each of its lists."""
    name = next(field.name for field in BaseCommand.DESCRIPTOR.fields if field.number == kind)
    texts, lists = _begun(kind, name), []
    wanted = getattr(texts, name)
    repeated = names_of_repeated(wanted.DESCRIPTOR)
    for field in wanted.DESCRIPTOR.fields:
        limit = limit_of(name, field.name)
        if limit is None or field.name in ("topic", "namespace"):
            continue
        if field.type in _TEXTS:
            size = min(limit.bytes_max, 4_000_000)
            setattr(wanted, field.name, "x" * size if field.type == FieldDescriptor.TYPE_STRING else b"x" * size)
        elif field.name in repeated:
            lists.append(_listed(kind, name, field.name, limit.count_max, limit.bytes_max))
            if field.message_type is pb.MessageIdData.DESCRIPTOR:
                lists.append(_listed(kind, name, field.name, 1, limit.bytes_max))
                getattr(getattr(lists[-1], name), field.name)[0].ack_set.extend([-1] * WORDS_MAX)
    return [texts, *lists]


def _begun(kind: int, name: str) -> BaseCommand:
    """Return a command with what it needs."""
    made = BaseCommand(type=BaseCommand.Type.Name(kind))
    wanted = getattr(made, name)
    wanted.SetInParent()
    for field in wanted.DESCRIPTOR.fields:
        if field.name in ("topic", "namespace"):
            setattr(wanted, field.name, "orders" if field.name == "topic" else "public/default")
        elif field.name in ("consumer_id", "producer_id", "request_id", "sequence_id"):
            setattr(wanted, field.name, 1)
        elif not wanted.IsInitialized() and field.type == FieldDescriptor.TYPE_STRING:
            setattr(wanted, field.name, "x")
    _complete(wanted)
    return made


def _complete(message: Any) -> None:
    """Set the numbers that a message needs, and those of the messages that it needs."""
    for path in message.FindInitializationErrors():
        part, *inner = path.split(".")
        if inner:
            _complete(getattr(message, part))
            continue
        field = message.DESCRIPTOR.fields_by_name[part]
        if field.message_type is not None:
            getattr(message, part).SetInParent()
            _complete(getattr(message, part))
        else:
            setattr(
                message, part, {FieldDescriptor.TYPE_BYTES: b"", FieldDescriptor.TYPE_STRING: "x"}.get(field.type, 0)
            )


def _listed(kind: int, name: str, field: str, count: int, size: int) -> BaseCommand:
    made = _begun(kind, name)
    parts = getattr(getattr(made, name), field)
    for number in range(count):
        one = parts.add()
        if "ledger_id" in one.DESCRIPTOR.fields_by_name:
            one.ledger_id, one.entry_id = 1, number
        else:
            one.key = f"k{number}"
            one.value = 1 if "Long" in one.DESCRIPTOR.name else ""
    while parts and sum(one.ByteSize() for one in parts) > size:
        del parts[len(parts) * 9 // 10 :]
    return made


async def test_no_command_holds_the_loop_or_fills_the_memory(lone: LoneBroker) -> None:
    kinds = sorted(Client(lone.broker).connection.handlers)
    assert len(kinds) > 20
    for kind in kinds:
        name = next((field.name for field in BaseCommand.DESCRIPTOR.fields if field.number == kind), "")
        for command in largest(kind):
            check_command(command)
            section = b"\x0e\x01damaged" if kind == T.SEND else None
            costs = Costs()
            for _ in costs.attempts():
                client = await _subscribed(lone)
                with costs.measured():
                    client.say(command, section)
                await _leave(client)
            costs.check(name)
            client = await _subscribed(lone)
            tracemalloc.start()
            client.say(command, section)
            await turns(lambda client=client: not client.connection._tasks)  # type: ignore[misc]
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < BYTES_MAX, f"{name} takes {peak >> 20} MiB"
            await _leave(client)


async def _subscribed(lone: LoneBroker) -> Client:
    """Return a client that has a consumer with number 1, so that commands about one find it."""
    client = Client(lone.broker)
    wanted = pb.CommandSubscribe(
        topic="orders", subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1
    )
    client.say(T(type=T.SUBSCRIBE, subscribe=wanted))
    await turns(lambda: client.answer(T.SUCCESS))
    return client


async def _leave(client: Client) -> None:
    await asyncio.sleep(0)  # what was begun begins, and its client leaves
    client.leave()
