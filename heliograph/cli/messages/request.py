"""``helio request``: publish a request, and print the responder's answer."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from heliograph.cli.options import Address, Home, Namespace, Raw, Target, pairs_of
from heliograph.cli.output import write_message


def request(
    topic: Annotated[str, typer.Argument(help="Topic of the requests.")],
    value: Annotated[str, typer.Argument(help="The request.")],
    timeout: Annotated[float, typer.Option("--timeout", "-t", help="Seconds for the whole answer.", min=0.001)] = 30.0,
    stream: Annotated[bool, typer.Option("--stream", help="Print the parts of an answer as they come.")] = False,
    key: Annotated[str | None, typer.Option("-k", "--key", help="Key of the request.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", "-p", help="name=value of the request; repeatable.")
    ] = None,
    raw: Raw = False,
    address: Address = None,
    home: Home = None,
    namespace: Namespace = None,
) -> None:
    """Publish a request and print the answer.

    A failure of the responder's function is printed on standard error, with exit code 1.
    """
    target = Target.of(namespace, home, address)
    import asyncio

    given = pairs_of(properties, "property")
    asyncio.run(_ask(target, topic, value, timeout, key, given, takes_stream=stream, raw=raw))


async def _ask(
    target: Target,
    topic: str,
    value: str,
    seconds: float,
    key: str | None,
    properties: dict[str, str],
    *,
    takes_stream: bool,
    raw: bool,
) -> None:
    async with target.client() as client:
        if not takes_stream:
            answer = await client.request(topic, value, timeout=seconds, key=key, properties=properties)
            if answer is not None:
                write_message(answer, is_raw=raw)
            return
        async for part in client.stream_request(topic, value, timeout=seconds, key=key, properties=properties):
            write_message(part, is_raw=raw)
            sys.stdout.flush()
