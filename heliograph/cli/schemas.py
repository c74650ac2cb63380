"""``helio schemas``: show, list, add, check and delete the schema of a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heliograph.cli.options import Home, Json, Namespace, Topic, admin_of, content_of
from heliograph.cli.output import Output
from heliograph.errors import BadRequestError

app = typer.Typer(help="Show and change the schema of a topic.", no_args_is_help=True, rich_markup_mode=None)

Type = Annotated[str, typer.Option("--type", help="AVRO, JSON, STRING, INT64, PROTOBUF_NATIVE, KEY_VALUE, ...")]
File = Annotated[Path | None, typer.Option("--file", help="The definition; primitives have none.", dir_okay=False)]


@app.command()
def show(
    topic: Topic,
    version: Annotated[int | None, typer.Option(help="The newest when left out.", min=0)] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show one version of a topic's schema."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = admin.schemas.get(topic, version)
    output.result(found)
    output.progress(f"{topic} version {found['version']}: {found['type']}")
    output.progress(found["schema"])


@app.command("list")
def list_(topic: Topic, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """List the versions of a topic's schema."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = admin.schemas.versions(topic)
    output.result({"topic": topic, "versions": found})
    output.table("", ("version", "type", "name"), [(one["version"], one["type"], one["name"]) for one in found])


@app.command()
def put(
    topic: Topic,
    kind: Type,
    file: File = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Make a definition the newest version of a topic's schema."""
    output, admin = Output(as_json), admin_of(namespace, home)
    version = admin.schemas.put(topic, _definition(kind, file))
    output.result({"topic": topic, "version": version})
    output.progress(f"{topic} has version {version}")


@app.command()
def check(
    topic: Topic,
    kind: Type,
    file: File = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Say whether a definition could follow. Ends with 1 when it could not."""
    output, admin = Output(as_json), admin_of(namespace, home)
    answer = admin.schemas.check(topic, _definition(kind, file))
    output.result(answer)
    output.progress(f"compatible ({answer['strategy']})" if answer["compatibility"] else answer["reason"])
    if not answer["compatibility"]:
        raise typer.Exit(1)


@app.command()
def delete(topic: Topic, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Have a topic start anew without a schema."""
    output, admin = Output(as_json), admin_of(namespace, home)
    version = admin.schemas.delete(topic)
    output.result({"topic": topic, "version": version})
    output.progress(f"{topic} has no schema any more")


def _definition(kind: str, file: Path | None) -> dict[str, Any]:
    try:
        return {"type": kind, "schema": content_of(file).decode() if file else ""}
    except UnicodeDecodeError as error:
        raise BadRequestError(f"{file} is no text in UTF-8", field="file") from error
