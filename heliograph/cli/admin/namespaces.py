"""``helio tenants`` and ``helio namespaces``: tenants, namespaces, their policies and bundles."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.admin.policies import NAMESPACE, policies_app, values_of
from heliograph.cli.context import CommandContext, command
from heliograph.cli.options import pairs_of
from heliograph.cli.relays import relays

tenants = relays("tenants", "Create, list and delete tenants.")
app = relays("namespaces", "Namespaces, their policies and their bundles.")
app.add_typer(policies_app(NAMESPACE, "Show, set and remove a namespace's policies."), name="policies")

Name = Annotated[str, typer.Argument(help="tenant/namespace", metavar="TENANT/NAMESPACE")]
Tenant = Annotated[str, typer.Argument(help="Name of the tenant.")]
Bundle = Annotated[str, typer.Argument(help="Such as 0x40000000_0x80000000; see `helio namespaces bundles`.")]
Force = Annotated[bool, typer.Option("--force", help="Delete its contents, too.")]


@command(app, "list")
def list_(
    context: CommandContext,
    tenant: Annotated[str | None, typer.Argument(help="Only namespaces of this tenant.")] = None,
) -> None:
    """List namespaces."""
    found = list(context.admin.namespaces.list(tenant))
    context.show({"namespaces": found}, ("namespace",), [(name,) for name in found])


@command(app)
def create(
    context: CommandContext,
    name: Name,
    policies: Annotated[list[str] | None, typer.Argument(help="Policies, such as retention_seconds=3600.")] = None,
    bundles: Annotated[int | None, typer.Option(help="Bundles over which its topics are spread.", min=1)] = None,
) -> None:
    """Create a namespace of an existing tenant."""
    context.admin.namespaces.create(name, bundles, values_of(policies or []))
    context.report({"namespace": name, "created": True}, f"created {name}")


@command(app)
def properties(
    context: CommandContext,
    name: Name,
    wanted: Annotated[
        list[str] | None, typer.Option("--set", help="name=value; replaces all properties. Repeatable.")
    ] = None,
    add: Annotated[list[str] | None, typer.Option("--add", help="name=value; the others stay. Repeatable.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A name. Repeatable.")] = None,
) -> None:
    """Show a namespace's properties, after changing them."""
    if wanted is not None:
        context.admin.namespaces.set_properties(name, pairs_of(wanted, "set"))
    if add:
        context.admin.namespaces.update_properties(name, pairs_of(add, "add"))
    if remove:
        context.admin.namespaces.remove_properties(name, remove)
    found = context.admin.namespaces.properties(name)
    context.show({"namespace": name, "properties": found}, ("property", "value"), sorted(found.items()), name)


@command(app)
def unload(
    context: CommandContext,
    name: Name,
    bundle: Annotated[str | None, typer.Argument(help="Only topics of this bundle. [default: all]")] = None,
) -> None:
    """Make owners give bundles away. Clients find their topics again by themselves."""
    if bundle is None:
        count = context.admin.brokers.unload_namespace(name)
    else:
        count = int(context.admin.brokers.unload_bundle(name, bundle))
    context.report({"namespace": name, "unloaded": count}, f"{count} bundles of {name} given away")


@command(app)
def split(
    context: CommandContext,
    name: Name,
    bundle: Bundle,
    boundary: Annotated[str | None, typer.Option(help="Where the second half begins. [default: by topics]")] = None,
) -> None:
    """Split a bundle in two. Clients notice nothing."""
    halves = list(context.admin.brokers.split_bundle(name, bundle, boundary))
    result = {"namespace": name, "bundle": bundle, "halves": halves}
    context.report(result, f"{bundle} is now {' and '.join(halves)}")
