"""``helio namespaces policies`` and ``helio topics policies``: the same three commands over two kinds of things."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from heliograph.admin_namespaces import NamespacesSync
from heliograph.cli import policy_values
from heliograph.cli.options import Home, Json, Namespace, admin_of
from heliograph.cli.output import Output

Name = Annotated[str, typer.Argument(help="A namespace is named tenant/namespace, a topic as anywhere.")]
Applied = Annotated[
    bool, typer.Option("--applied", help="Everything that holds, wherever it was set; a namespace always shows that.")
]
Assignments = Annotated[list[str], typer.Argument(help="Such as retention_seconds=3600 message_ttl_seconds=60.")]
Names = Annotated[list[str], typer.Argument(help="Names of policies, as `get` shows them.")]


@dataclass(frozen=True, slots=True)
class Owner:
    """What has policies, and how the administration is asked for them. Picked when a command runs."""

    kind: str  # the key of its name in --json
    read: Callable[[NamespacesSync, str, bool], Mapping[str, Any]]
    write: Callable[[NamespacesSync, str, Mapping[str, bool | int | str]], None]
    remove: Callable[[NamespacesSync, str, Sequence[str]], None]


NAMESPACE = Owner(
    "namespace",
    lambda admin, name, applied: admin.policies(name),
    lambda admin, name, values: admin.set_policies(name, values),
    lambda admin, name, names: admin.remove_policies(name, names),
)
TOPIC = Owner(
    "topic",
    lambda admin, name, applied: admin.topic_policies(name, applied),
    lambda admin, name, values: admin.set_topic_policies(name, values),
    lambda admin, name, names: admin.remove_topic_policies(name, names),
)


def policies_app(owner: Owner, summary: str) -> typer.Typer:
    """The commands ``get``, ``set`` and ``remove`` for one kind of owner."""
    app = typer.Typer(help=summary, no_args_is_help=True, rich_markup_mode=None)

    @app.command()
    def get(
        name: Name, applied: Applied = False, home: Home = None, namespace: Namespace = None, as_json: Json = False
    ) -> None:
        """Show policies with their values."""
        output = Output(as_json)
        found = owner.read(admin_of(namespace, home).namespaces, name, applied)
        output.result({owner.kind: name, "policies": found})
        if found:
            output.table(name, ("policy", "value"), sorted(found.items()))
        else:
            output.progress(f"{name} sets no policy itself; --applied shows what holds")

    @app.command("set")
    def set_(
        name: Name, policies: Assignments, home: Home = None, namespace: Namespace = None, as_json: Json = False
    ) -> None:
        """Set policies; they act within moments. A topic's hold for all its partitions."""
        output = Output(as_json)
        values = policy_values.parsed(policies)
        owner.write(admin_of(namespace, home).namespaces, name, values)
        output.result({owner.kind: name, "set": values})
        output.progress(f"set {', '.join(values)} of {name}")

    @app.command()
    def remove(
        name: Name, policies: Names, home: Home = None, namespace: Namespace = None, as_json: Json = False
    ) -> None:
        """Take settings back. A topic goes by its namespace then, a namespace by the defaults."""
        output = Output(as_json)
        owner.remove(admin_of(namespace, home).namespaces, name, policies)
        output.result({owner.kind: name, "removed": policies})
        output.progress(f"removed {', '.join(policies)} of {name}")

    return app
