"""``helio namespaces policies`` and ``helio topics policies``: the same commands for namespaces and for topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.base.errors import BadRequestError
from heliograph.cli.context import CommandContext, command, group

if TYPE_CHECKING:
    from heliograph.client.admin.blocking import NamespacesSync
    from heliograph.operations.namespaces import PolicyValue

Name = Annotated[str, typer.Argument(help="A namespace is named tenant/namespace, a topic as anywhere.")]
Applied = Annotated[
    bool, typer.Option("--applied", help="Show the policies in effect, wherever they were set; namespaces always do.")
]
Assignments = Annotated[list[str], typer.Argument(help="Such as retention_seconds=3600 message_ttl_seconds=60.")]
Names = Annotated[list[str], typer.Argument(help="Names of policies, as `get` shows them.")]
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class PolicyOwner:
    """A kind of thing that has policies, and the operations on them."""

    kind: str  # the key of its name in --json
    read: Callable[[NamespacesSync, str, bool], Mapping[str, Any]]
    write: Callable[[NamespacesSync, str, Mapping[str, PolicyValue]], None]
    remove: Callable[[NamespacesSync, str, Sequence[str]], None]


NAMESPACE = PolicyOwner(
    "namespace",
    lambda namespaces, name, applied: namespaces.policies(name),
    lambda namespaces, name, values: namespaces.set_policies(name, values),
    lambda namespaces, name, names: namespaces.remove_policies(name, names),
)
TOPIC = PolicyOwner(
    "topic",
    lambda namespaces, name, applied: namespaces.topic_policies(name, applied),
    lambda namespaces, name, values: namespaces.set_topic_policies(name, values),
    lambda namespaces, name, names: namespaces.remove_topic_policies(name, names),
)


def policies_app(owner: PolicyOwner, summary: str) -> typer.Typer:
    """Return the commands ``get``, ``set`` and ``remove`` for one kind of owner."""
    app = group(summary)

    @command(app)
    def get(context: CommandContext, name: Name, applied: Applied = False) -> None:
        """Show policies with their values."""
        found = owner.read(context.admin.namespaces, name, applied)
        result = {owner.kind: name, "policies": found}
        if found:
            context.show(result, ("policy", "value"), sorted(found.items()), name)
        else:
            context.report(result, f"{name} sets no policy itself; --applied shows the policies in effect")

    @command(app, "set")
    def set_(context: CommandContext, name: Name, policies: Assignments) -> None:
        """Set policies; they act within moments. A topic's hold for all its partitions."""
        values = values_of(policies)
        owner.write(context.admin.namespaces, name, values)
        context.report({owner.kind: name, "set": values}, f"set {', '.join(values)} of {name}")

    @command(app)
    def remove(context: CommandContext, name: Name, policies: Names) -> None:
        """Remove settings. For a topic its namespace's hold then, for a namespace the defaults."""
        owner.remove(context.admin.namespaces, name, policies)
        context.report({owner.kind: name, "removed": policies}, f"removed {', '.join(policies)} of {name}")

    return app


def values_of(assignments: Sequence[str]) -> dict[str, PolicyValue]:
    """Return the policies of texts ``name=value``: true, false and numbers as such, anything else as text.

    Raises:
        BadRequestError: a text has another form.
    """
    values: dict[str, PolicyValue] = {}
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        if not separator or not name:
            raise BadRequestError(f"{assignment!r} is no name=value", field="policy")
        values[name] = _WORDS[text] if text in _WORDS else _number_or_text(text)
    return values


def _number_or_text(text: str) -> int | float | str:
    number = text.removeprefix("-")
    if number.isdecimal():
        return int(text)
    return float(text) if number.replace(".", "", 1).isdecimal() else text
