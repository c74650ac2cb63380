"""``helio topics policies``: what a topic overrides of its namespace's policies."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli import policy_values
from heliograph.cli.options import Home, Json, Namespace, admin_of
from heliograph.cli.output import Output

app = typer.Typer(help="Show, set and remove a topic's own policies.", no_args_is_help=True, rich_markup_mode=None)

Topic = Annotated[str, typer.Argument(help="Name, such as orders or persistent://public/default/orders.")]


@app.command()
def get(
    topic: Topic,
    applied: Annotated[bool, typer.Option("--applied", help="Everything that holds, wherever it was set.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the topic's own policies."""
    output = Output(as_json)
    found = admin_of(namespace, home).namespaces.topic_policies(topic, applied)
    output.result({"topic": topic, "policies": found})
    policy_values.show(output, topic, found)


@app.command("set")
def set_(
    topic: Topic,
    policies: Annotated[list[str], typer.Argument(help="Such as retention_seconds=3600.")],
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Override policies for the topic with all its partitions."""
    output = Output(as_json)
    values = policy_values.parsed(policies)
    admin_of(namespace, home).namespaces.set_topic_policies(topic, values)
    output.result({"topic": topic, "set": values})
    output.progress(f"set {', '.join(values)} of {topic}")


@app.command()
def remove(
    topic: Topic,
    policies: Annotated[list[str], typer.Argument(help="Names of policies.")],
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Go by the namespace's policies again."""
    output = Output(as_json)
    admin_of(namespace, home).namespaces.remove_topic_policies(topic, policies)
    output.result({"topic": topic, "removed": policies})
    output.progress(f"removed {', '.join(policies)} of {topic}")
