"""``helio consume``: print the messages of a topic; with a subscription, acknowledge each after it was printed."""

from __future__ import annotations

import base64
import contextlib
import difflib
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.base.errors import (
    BadRequestError,
    HeliographError,
    TopicNotFoundError,
    TopicTerminatedError,
    UnsupportedError,
)
from heliograph.cli.options import Address, Home, Namespace, Raw, Target
from heliograph.cli.output import note, write_message, write_object
from heliograph.client.types import InitialPosition, SubscriptionType
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message

BATCH_MESSAGES_MAX = 500
NEAR_MAX = 1_000  # names among which one is looked for that was meant
Create = Annotated[bool, typer.Option("--create", help="Create the topic if there is none.")]
Show = Callable[["Message"], None]  # prints a message


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to read.")],
    subscription: Annotated[
        str | None, typer.Option("-s", "--subscription", help="Acknowledge under this name. [default: only read]")
    ] = None,
    position: Annotated[InitialPosition, typer.Option("--from", help="Where a new subscription starts.")] = "latest",
    kind: Annotated[SubscriptionType, typer.Option("--type", help="Type of the subscription.")] = "exclusive",
    messages: Annotated[
        int | None, typer.Option("-n", "--messages", help="Stop after this many messages.", min=1)
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Wait for more messages until interrupted.")] = False,
    idle: Annotated[float, typer.Option(help="Without -f, stop after this many seconds without a message.")] = 3.0,
    raw: Raw = False,
    create: Create = False,
    address: Address = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per message and line.")] = False,
) -> None:
    """Print messages.

    Each message is printed as text on a line, or with --json as one JSON object on a line.
    """
    if raw and as_json:
        raise BadRequestError("give --raw or --json, not both", field="raw")
    target = Target.of(namespace, home, address)
    limit = messages if messages is not None else sys.maxsize
    show = _write_fields if as_json else partial(_write_value, is_raw=raw)
    work = _consume(target, topic, subscription, position, kind, limit, None if follow else idle, show, create=create)
    import asyncio

    asyncio.run(work)


async def _consume(
    target: Target,
    topic: str,
    subscription: str | None,
    position: InitialPosition,
    kind: SubscriptionType,
    limit: int,
    idle_seconds: float | None,
    show: Show,
    *,
    create: bool,
) -> None:
    async with target.client() as client:
        if not create:
            await require_topic(client, topic, "--create makes it")
        queue = min(limit, 1000)  # requests no more than the limit, so that other consumers get the rest at once
        if subscription is None:
            receiver: AsyncConsumer = client.reader(topic, position, receiver_queue=queue)
        else:
            receiver = client.consumer(topic, subscription, type=kind, initial_position=position, receiver_queue=queue)
        async with receiver:
            with contextlib.suppress(TopicTerminatedError):  # the topic is read to its end: done
                printed = await _print_all(receiver, limit, idle_seconds, show, acknowledge=subscription is not None)
                if not printed and position == "latest":
                    note("no message came; --from earliest starts at the oldest one")


async def require_topic(client: AsyncClient, topic: str, way: str) -> None:
    """Check that a topic exists, since subscribing to one creates it.

    Args:
        way: what makes the topic, for the error.

    Raises:
        TopicNotFoundError: it does not; names the nearest topic of its namespace.
    """
    name = TopicName.parse(topic)
    try:
        await client.admin.partitions(str(name))
    except UnsupportedError:  # a broker of an older release
        return
    except TopicNotFoundError as error:
        names: list[str] = []
        with contextlib.suppress(HeliographError):  # the caller may lack the right to list
            near = await client.admin.list_topics(name.namespace, limit=NEAR_MAX)
            names = [each["name"].rpartition("/")[2] for each in near]
        nearest = difflib.get_close_matches(str(name).rpartition("/")[2], names, n=1)
        meant = f"did you mean {nearest[0]}? " if nearest else ""
        raise TopicNotFoundError(f"there is no topic {name}: {meant}{way}", field="topic") from error


async def _print_all(
    receiver: AsyncConsumer, limit: int, idle_seconds: float | None, show: Show, *, acknowledge: bool
) -> int:
    """Print messages until the limit, or until none came for so long; return how many there were."""
    printed = 0
    while printed < limit:
        received = await receiver.receive_many(min(limit - printed, BATCH_MESSAGES_MAX), idle_seconds)
        if not received:
            break
        for message in received:
            show(message)
        sys.stdout.flush()
        if acknowledge:
            await receiver.ack_many(received)
        printed += len(received)
    return printed


def _write_value(message: Message, *, is_raw: bool) -> None:
    write_message(message.value, is_raw=is_raw)


def _write_fields(message: Message) -> None:
    line = {
        "topic": message.topic,
        "message_id": str(message.message_id),
        "key": message.key,
        **_value(message.value),
        "properties": dict(message.properties),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "index": message.index,
        "broker_publish_time_ms": message.broker_publish_time_ms,
        "redelivery_count": message.redelivery_count,
    }
    write_object(line)


def _value(value: bytes) -> dict[str, str]:
    """Return ``value`` as text, or ``value_base64`` if it is not UTF-8."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}
