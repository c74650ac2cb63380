"""``helio produce``: publish messages from arguments, from files or from the lines of standard input."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.base.errors import BadRequestError, MessageTooLargeError
from heliograph.cli.options import Address, Home, Json, Namespace, Target, content_of, pairs_of
from heliograph.cli.output import Output
from heliograph.client.types import Compression

READ_BYTES = 64 * 1024
BATCH_LINES_MAX = 1000

Keyed = tuple[str | None, bytes]


def produce(
    topic: Annotated[str, typer.Argument(help="Topic; created if the namespace allows it.")],
    messages: Annotated[list[str] | None, typer.Argument(help="Messages. [default: lines of standard input]")] = None,
    files: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Publish a file as one message; repeatable.", dir_okay=False),
    ] = None,
    times: Annotated[int, typer.Option("-n", "--times", help="Publish the given messages this many times.", min=1)] = 1,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of every message.")] = None,
    key_separator: Annotated[
        str | None, typer.Option(help="Separator: each line is a key, this text and the message.")
    ] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="name=value of every message; repeatable.")
    ] = None,
    deliver_after: Annotated[
        float | None, typer.Option(help="Seconds before shared subscriptions deliver the messages.", min=0)
    ] = None,
    compression: Annotated[
        Compression, typer.Option("--compression", "-c", help="Codec of the entries that are stored.")
    ] = "none",
    address: Address = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Publish messages and wait until all are acknowledged."""
    if key is not None and key_separator is not None:
        raise BadRequestError("give --key or --key-separator, not both", field="key")
    given = [message.encode() for message in messages or []] + [content_of(path) for path in files or []]
    if times > 1 and not given:
        raise BadRequestError("--times repeats messages that are given as arguments or files", field="times")
    target = Target.of(namespace, home, address)
    source = _repeated(given, times) if given else _lines_of_stdin()
    work = _produce(
        target, topic, source, key, key_separator, pairs_of(properties, "property"), deliver_after, compression
    )
    import asyncio

    count, last = asyncio.run(work)
    output = Output(as_json)
    output.result({"topic": topic, "messages": count, "last_message_id": last})
    output.progress(
        f"{count} message{'' if count == 1 else 's'} published to {topic}" + (f", last {last}" if last else "")
    )


async def _produce(
    target: Target,
    topic: str,
    source: AsyncIterator[list[bytes]],
    key: str | None,
    key_separator: str | None,
    properties: dict[str, str],
    deliver_after: float | None,
    compression: Compression,
) -> tuple[int, str | None]:
    import asyncio

    count, last = 0, None
    async with target.client() as client:
        producer = await client.producer(topic, compression=compression)
        async for lines in source:
            keyed = [_split(line, key, key_separator) for line in lines]
            sent = [
                await producer.enqueue(value, key=own, properties=properties, deliver_after=deliver_after)
                for own, value in keyed
            ]
            ids = await asyncio.gather(*sent)
            count, last = count + len(ids), str(ids[-1])
        await producer.close()
    return count, last


def _split(line: bytes, key: str | None, separator: str | None) -> Keyed:
    if separator is None:
        return key, line
    head, found, tail = line.partition(separator.encode())
    if not found:
        raise BadRequestError(f"a line lacks the separator {separator!r}: {line[:60]!r}", field="key_separator")
    return head.decode(errors="replace"), tail


async def _repeated(messages: Sequence[bytes], times: int) -> AsyncIterator[list[bytes]]:
    repeated = (message for _ in range(times) for message in messages)
    while batch := list(islice(repeated, BATCH_LINES_MAX)):
        yield batch


async def _lines_of_stdin() -> AsyncIterator[list[bytes]]:
    """Yield the lines of standard input as they come, without line ends, a bounded number at a time.

    Raises:
        MessageTooLargeError: A line is longer than a message may be; the lines before it were yielded.
    """
    import asyncio

    from heliograph.client.aio.producer.arguments import HEAD_BYTES_MAX
    from heliograph.protocol.frame import MESSAGE_BYTES_MAX

    line_bytes_max = MESSAGE_BYTES_MAX + HEAD_BYTES_MAX  # of a key, its separator and the message
    stream: Any = sys.stdin.buffer
    rest: list[bytes] = []  # pieces of the last line, whose end was not read yet
    size = count = 0
    while chunk := await asyncio.to_thread(stream.read1, READ_BYTES):
        head, end, tail = chunk.rpartition(b"\n")
        if end:
            lines = b"".join((*rest, head)).split(b"\n")
            rest, size, count = [], 0, count + len(lines)
            for first in range(0, len(lines), BATCH_LINES_MAX):
                yield [line.removesuffix(b"\r") for line in lines[first : first + BATCH_LINES_MAX]]
        rest.append(tail)
        size += len(tail)
        if size > line_bytes_max:  # I15
            raise MessageTooLargeError(
                f"line {count + 1} of standard input has more than {line_bytes_max} bytes: each line is one message; "
                "publish a file as one message with --file",
                field="messages",
                limit=f"{line_bytes_max} bytes",
            )
    if last := b"".join(rest):
        yield [last]
