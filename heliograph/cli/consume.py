"""``helio consume``: print the messages of a topic; with a subscription, acknowledge each after it was printed."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from typing import Annotated

import typer

from heliograph.aio.consumer import AsyncConsumer
from heliograph.cli.options import Address, Home, Namespace, Target
from heliograph.errors import TopicTerminatedError
from heliograph.message import Message
from heliograph.types import InitialPosition, SubscriptionType

BATCH_MESSAGES_MAX = 500


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    subscription: Annotated[
        str | None, typer.Option("-s", "--subscription", help="Acknowledge under this name. [default: only read]")
    ] = None,
    position: Annotated[InitialPosition, typer.Option("--from", help="Where a new subscription starts.")] = "latest",
    kind: Annotated[SubscriptionType, typer.Option("--type", help="Type of the subscription.")] = "exclusive",
    messages: Annotated[int | None, typer.Option("-n", "--messages", help="Stop after so many.", min=1)] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more, until interrupted.")] = False,
    idle: Annotated[float, typer.Option(help="Without -f, stop after so many seconds without a message.")] = 3.0,
    address: Address = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per message, one per line.")] = False,
) -> None:
    """Print messages. Their text, or one JSON object per line with --json."""
    target = Target.of(namespace, home, address)
    limit = messages if messages is not None else sys.maxsize
    work = _consume(target, topic, subscription, position, kind, limit, None if follow else idle, as_json)
    asyncio.run(work)


async def _consume(
    target: Target,
    topic: str,
    subscription: str | None,
    position: InitialPosition,
    kind: SubscriptionType,
    limit: int,
    idle_seconds: float | None,
    as_json: bool,
) -> None:
    async with target.client() as client:
        queue = min(limit, 1000)  # no more than asked for, so that another consumer gets the rest at once
        if subscription is None:
            receiver: AsyncConsumer = client.reader(topic, position, receiver_queue=queue)
        else:
            receiver = client.consumer(topic, subscription, type=kind, initial_position=position, receiver_queue=queue)
        async with receiver:
            with contextlib.suppress(TopicTerminatedError):  # read to its end, which is what was asked for
                await _print_all(receiver, limit, idle_seconds, as_json, acknowledge=subscription is not None)


async def _print_all(
    receiver: AsyncConsumer, limit: int, idle_seconds: float | None, as_json: bool, *, acknowledge: bool
) -> None:
    printed = 0
    while printed < limit:
        received = await receiver.receive_many(min(limit - printed, BATCH_MESSAGES_MAX), idle_seconds)
        if not received:
            return
        for message in received:
            _print(message, as_json)
        sys.stdout.flush()
        if acknowledge:
            await receiver.ack_many(received)
        printed += len(received)


def _print(message: Message, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(message.value + b"\n")
        return
    line = {
        "topic": message.topic,
        "message_id": str(message.message_id),
        "key": message.key,
        **_value(message.value),
        "properties": dict(message.properties),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "redelivery_count": message.redelivery_count,
    }
    sys.stdout.buffer.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


def _value(value: bytes) -> dict[str, str]:
    """``value`` as text, or ``value_base64`` when it is no UTF-8."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
