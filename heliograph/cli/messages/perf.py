"""``helio perf produce`` and ``helio perf consume``: throughput, latency, and whether every message arrived."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.base.errors import Advice, HeliographError, TopicExistsError, TopicTerminatedError
from heliograph.cli.admin.topics import persistence_of
from heliograph.cli.figures import for_people
from heliograph.cli.messages.consume import require_topic
from heliograph.cli.messages.measure import MESSAGES_MAX, PAYLOAD_BYTES_MIN, Arrivals, MeasuredRun, read_payload
from heliograph.cli.options import AckQuorum, Address, EnsembleSize, Home, Json, Namespace, Target, WriteQuorum
from heliograph.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, Output
from heliograph.client.types import Compression, InitialPosition

if TYPE_CHECKING:
    from heliograph.cli.messages.load import MessageLoad
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message

app = typer.Typer(help="Measure a running cluster.", no_args_is_help=True, rich_markup_mode=None)


Topic = Annotated[str | None, typer.Argument(help="Topic. [default: a new one, deleted afterwards]")]


@app.command()
def produce(
    topic: Topic = None,
    messages: Annotated[int, typer.Option(help="Number of messages.", min=1, max=MESSAGES_MAX)] = 100_000,
    size: Annotated[int, typer.Option(help="Bytes of each message.", min=PAYLOAD_BYTES_MIN)] = 1024,
    window: Annotated[int, typer.Option(help="Messages sent and not yet acknowledged, at most.", min=1)] = 1_000,
    rate: Annotated[float, typer.Option(help="Messages per second; 0: as fast as they are acknowledged.", min=0)] = 0,
    batch_messages: Annotated[int, typer.Option(help="Messages per batch, at most; 1: no batches.", min=1)] = 1000,
    linger_ms: Annotated[float, typer.Option(help="How long a batch waits for more messages, in ms.", min=0)] = 1.0,
    compression: Annotated[Compression, typer.Option(help="Codec; the messages are random bytes.")] = "none",
    partitions: Annotated[int, typer.Option(help="Partitions of the topic, if it is created.", min=0)] = 0,
    ensemble_size: EnsembleSize = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    address: Address = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Publish as fast as the cluster acknowledges. Latency is from send to acknowledgement of each message."""
    import asyncio

    from heliograph.cli.messages.load import MessageLoad

    target = Target.of(namespace, home, address)
    persistence = persistence_of(ensemble_size, write_quorum, ack_quorum)
    load = MessageLoad(messages, size, window, rate, batch_messages, linger_ms, compression)
    run, facts = MeasuredRun(), {"size_bytes": size, "window": window, "rate": rate}
    output = Output(as_json)
    name = topic or f"perf-{uuid.uuid4().hex[:12]}"
    work = _measured_produce(target, name, topic is not None, partitions, persistence, load, run)
    with _told(output, run, lambda: {"topic": name, **facts, **run.report()}), output.timed():
        asyncio.run(work)


@app.command()
def consume(
    topic: Annotated[str, typer.Argument(help="Topic that `helio perf produce` wrote to.")],
    messages: Annotated[
        int, typer.Option(help="Stop after this many different messages.", min=1, max=MESSAGES_MAX)
    ] = 100_000,
    subscription: Annotated[str | None, typer.Option("-s", "--subscription", help="[default: a new one]")] = None,
    latest: Annotated[bool, typer.Option("--latest", help="Start at the end instead of the beginning.")] = False,
    idle: Annotated[float, typer.Option(help="Stop after this many seconds without a message.")] = 10.0,
    receiver_queue: Annotated[int, typer.Option(help="Messages requested in advance, at most.", min=1)] = 5_000,
    address: Address = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Consume and acknowledge. Latency is from send to receipt; missing and repeated messages are counted.

    Ends with 1 when no message came.
    """
    import asyncio

    target = Target.of(namespace, home, address)
    name = subscription or f"helio-perf-{uuid.uuid4().hex[:12]}"
    work = _measured_consume(
        target,
        topic,
        name,
        subscription is not None,
        "latest" if latest else "earliest",
        messages,
        idle,
        receiver_queue,
        run := MeasuredRun(),
        arrivals := Arrivals(),
    )
    output = Output(as_json)
    facts = {"topic": topic, "subscription": name}
    with _told(output, run, lambda: {**facts, **run.report(), **arrivals.report()}), output.timed():
        asyncio.run(work)


@contextlib.contextmanager
def _told(output: Output, run: MeasuredRun, report: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Show the result of the block, or after Ctrl-C the result so far."""
    code = 0
    try:
        yield
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    shown = report()
    output.result(shown)
    output.facts("", [(name, for_people(name, value)) for name, value in shown.items()])
    if code or run.errors or not run.messages:
        raise typer.Exit(code or EXIT_FAILED)


async def _measured_produce(
    target: Target,
    topic: str,
    is_kept: bool,
    partitions: int,
    persistence: dict[str, int] | None,
    load: MessageLoad,
    run: MeasuredRun,
) -> None:
    from heliograph.cli.messages.load import Sender

    async with target.client() as client, _topic(target, topic, is_kept, partitions, persistence):
        producer = await client.producer(
            topic, batch_messages=load.batch_messages, linger_ms=load.linger_ms, compression=load.compression
        )
        await Sender(producer, load, run).run()
        with contextlib.suppress(HeliographError):
            await producer.close()


@contextlib.asynccontextmanager
async def _topic(
    target: Target, topic: str, is_kept: bool, partitions: int, persistence: dict[str, int] | None
) -> AsyncIterator[None]:
    """Create a topic if it is missing; delete it afterwards unless it is kept, since the caller named it."""
    from heliograph.client.admin.admin import Admin

    if target.address is not None:  # of a cluster that may be noted nowhere: its broker creates the topic
        yield
        return
    admin = Admin(target.namespace, gateway=target.way_to_admin())
    with contextlib.suppress(TopicExistsError):
        await admin.create_topic(topic, partitions, persistence)
    try:
        yield
    finally:
        if not is_kept:
            with contextlib.suppress(HeliographError):
                await admin.delete_topic(topic, force=True)


async def _measured_consume(
    target: Target,
    topic: str,
    subscription: str,
    keep: bool,
    position: InitialPosition,
    messages: int,
    idle_seconds: float,
    receiver_queue: int,
    run: MeasuredRun,
    arrivals: Arrivals,
) -> None:
    async with target.client() as client:
        await require_topic(client, topic, "`helio perf produce` makes one")
        consumer = await client.consumer(topic, subscription, initial_position=position, receiver_queue=receiver_queue)
        try:
            with contextlib.suppress(TopicTerminatedError):
                await _receive(consumer, run, arrivals, messages, idle_seconds)
            if not run.messages:
                run.last_error = f"no message came within {idle_seconds:g} s"
        finally:
            if not keep:
                with contextlib.suppress(HeliographError):
                    await consumer.unsubscribe()
            await consumer.close()


async def _acknowledge(consumer: AsyncConsumer, messages: list[Message], run: MeasuredRun) -> None:
    import asyncio

    from heliograph.cli.messages.load import ATTEMPTS_MAX, RETRY_PAUSE_SECONDS

    for attempt in range(1, ATTEMPTS_MAX + 1):
        try:
            await consumer.ack_many(messages)
            return
        except HeliographError as error:
            if error.advice is Advice.STOP or attempt == ATTEMPTS_MAX:
                raise
            run.retries += 1
            run.last_error = f"{type(error).__name__}: {error}"
            await asyncio.sleep(RETRY_PAUSE_SECONDS)


async def _receive(
    consumer: AsyncConsumer, run: MeasuredRun, arrivals: Arrivals, messages: int, idle_seconds: float
) -> None:
    begun = None
    while arrivals.distinct + arrivals.foreign < messages:
        received = await consumer.receive_many(1000, idle_seconds)
        if not received:
            break
        begun = begun or time.perf_counter()
        now_ns = time.time_ns()
        for message in received:
            made = read_payload(message.value)
            arrivals.take(made)
            run.messages += 1
            run.bytes += len(message.value)
            if made:
                run.latencies.add((now_ns - made.sent_ns) / 1e6)
        run.seconds = time.perf_counter() - begun
        await _acknowledge(consumer, received, run)
