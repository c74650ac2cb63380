"""``helio schemas``: show, list, add, check and delete the schema of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.base.errors import BadRequestError
from heliograph.cli.context import CommandContext, command
from heliograph.cli.options import Topic, content_of
from heliograph.cli.relays import relays

app = relays("schemas", "Show and change the schema of a topic.")

Type = Annotated[str, typer.Option("--type", help="AVRO, JSON, STRING, INT64, PROTOBUF_NATIVE, KEY_VALUE, ...")]
File = Annotated[Path | None, typer.Option("--file", help="The definition; primitives have none.", dir_okay=False)]


@command(app)
def show(
    context: CommandContext,
    topic: Topic,
    version: Annotated[int | None, typer.Option(help="Version. [default: the newest]", min=0)] = None,
) -> None:
    """Show one version of a topic's schema."""
    found = context.admin.schemas.get(topic, version)
    context.report(found, f"{topic} version {found['version']}: {found['type']}", *found["schema"].split("\n"))


@command(app)
def put(context: CommandContext, topic: Topic, kind: Type, file: File = None) -> None:
    """Make a definition the newest version of a topic's schema."""
    version = context.admin.schemas.put(topic, _definition(kind, file))
    context.report({"topic": topic, "version": version}, f"{topic} has version {version}")


@command(app)
def check(context: CommandContext, topic: Topic, kind: Type, file: File = None) -> None:
    """Say whether a definition could follow. Ends with 1 when it could not."""
    answer = context.admin.schemas.check(topic, _definition(kind, file))
    context.report(answer, f"compatible ({answer['strategy']})" if answer["compatibility"] else answer["reason"])
    if not answer["compatibility"]:
        raise typer.Exit(1)


def _definition(kind: str, file: Path | None) -> dict[str, Any]:
    try:
        return {"type": kind, "schema": content_of(file).decode() if file else ""}
    except UnicodeDecodeError as error:
        raise BadRequestError(f"{file} is no text in UTF-8", field="file") from error
