"""``helio bookies racks``: the racks by which placement spreads copies over bookies."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.context import CommandContext, command, group

app = group("Show and change the racks of bookies.")

Bookie = Annotated[str, typer.Argument(help="Such as bookie-2, or its address.")]


@command(app, "list")
def list_(context: CommandContext) -> None:
    """List the bookies with their racks."""
    found = context.admin.bookies.racks()
    columns = ("bookie_id", "address", "rack", "is_set", "group", "hostname")
    context.show({"racks": list(found)}, columns, [[row[column] for column in columns] for row in found])


@command(app, "set")
def set_(context: CommandContext, bookie: Bookie, rack: Annotated[str, typer.Argument(help="Such as r2.")]) -> None:
    """Set a rack instead of the one that the bookie registers. New segments and copies are placed by it."""
    context.admin.bookies.set_rack(bookie, rack)
    context.report({"bookie": bookie, "rack": rack}, f"{bookie} is in rack {rack}")


@command(app)
def remove(context: CommandContext, bookie: Bookie) -> None:
    """Remove a rack that was set, so that the registered one holds."""
    context.admin.bookies.remove_rack(bookie)
    context.report({"bookie": bookie}, f"{bookie} is in the rack that it registers")
