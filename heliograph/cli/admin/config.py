"""``helio config``: settings of brokers that change while they run."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.context import CommandContext, command, group

app = group("Change settings of the brokers while they run.")

Name = Annotated[str, typer.Argument(help="Such as connections_max, balance.shed_gap or brokerMaxConnections.")]


@command(app)
def live(context: CommandContext) -> None:
    """List the settings that can change while brokers run."""
    found = context.admin.settings.live()
    columns = ("name", "value", "changed_to", "limit", "pulsar_name")
    context.show({"settings": list(found)}, columns, [[row[column] for column in columns] for row in found])


@command(app, "set")
def set_(
    context: CommandContext, name: Name, value: Annotated[str, typer.Argument(help="In the name's unit.")]
) -> None:
    """Change a setting of all brokers at once. It stays so over restarts."""
    full = context.admin.settings.set(name, value)
    context.report({"setting": full, "value": value}, f"all brokers apply {name} = {value}")


@command(app)
def unset(context: CommandContext, name: Name) -> None:
    """Give each broker the value of its own configuration back."""
    full = context.admin.settings.unset(name)
    context.report({"setting": full}, f"{full} has the value of each broker's configuration again")
