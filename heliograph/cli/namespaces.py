"""``helio tenants`` and ``helio namespaces``: who has which namespaces, their policies and bundles."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli import policy_values
from heliograph.cli.options import Home, Json, Namespace, admin_of
from heliograph.cli.output import Output
from heliograph.cli.policies import NAMESPACE, policies_app

tenants = typer.Typer(help="Create, list and delete tenants.", no_args_is_help=True, rich_markup_mode=None)
app = typer.Typer(help="Namespaces, their policies and their bundles.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(policies_app(NAMESPACE, "Show, set and remove a namespace's policies."), name="policies")

Name = Annotated[str, typer.Argument(help="tenant/namespace", metavar="TENANT/NAMESPACE")]
Tenant = Annotated[str, typer.Argument(help="Name of the tenant.")]
Bundle = Annotated[str, typer.Argument(help="Such as 0x40000000_0x80000000; see `helio namespaces bundles`.")]
Force = Annotated[bool, typer.Option("--force", help="With everything in it.")]


@tenants.command("list")
def list_tenants(home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """List the tenants."""
    output = Output(as_json)
    found = admin_of(namespace, home).namespaces.tenants()
    output.result({"tenants": found})
    output.table("", ("tenant",), [(name,) for name in found])


@tenants.command("create")
def create_tenant(tenant: Tenant, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Create a tenant, which namespaces can then be made for."""
    output = Output(as_json)
    admin_of(namespace, home).namespaces.create_tenant(tenant)
    output.result({"tenant": tenant, "created": True})
    output.progress(f"created {tenant}")


@tenants.command("delete")
def delete_tenant(tenant: Tenant, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Delete a tenant that has no namespaces."""
    output = Output(as_json)
    admin_of(namespace, home).namespaces.delete_tenant(tenant)
    output.result({"tenant": tenant, "deleted": True})
    output.progress(f"deleted {tenant}")


@app.command("list")
def list_(
    tenant: Annotated[str | None, typer.Argument(help="Only those of one tenant.")] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """List namespaces."""
    output = Output(as_json)
    found = list(admin_of(namespace, home).namespaces.list(tenant))
    output.result({"namespaces": found})
    output.table("", ("namespace",), [(name,) for name in found])


@app.command()
def create(
    name: Name,
    policies: Annotated[list[str] | None, typer.Argument(help="Policies, such as retention_seconds=3600.")] = None,
    bundles: Annotated[int | None, typer.Option(help="Parts that its topics are spread over.", min=1)] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Create a namespace of an existing tenant."""
    output = Output(as_json)
    admin_of(namespace, home).namespaces.create(name, bundles, policy_values.parsed(policies or []))
    output.result({"namespace": name, "created": True})
    output.progress(f"created {name}")


@app.command()
def delete(
    name: Name, force: Force = False, home: Home = None, namespace: Namespace = None, as_json: Json = False
) -> None:
    """Delete a namespace."""
    output = Output(as_json)
    admin_of(namespace, home).namespaces.delete(name, force)
    output.result({"namespace": name, "deleted": True})
    output.progress(f"deleted {name}")


@app.command()
def bundles(name: Name, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Show a namespace's bundles: who owns each, and how busy it is."""
    output = Output(as_json)
    found = admin_of(namespace, home).brokers.bundles(name)
    output.result({"namespace": name, **found})
    columns = ("name", "owner", "topics", "messages_per_second", "bytes_per_second")
    output.table(name, columns, [[row[column] for column in columns] for row in found["bundles"]])


@app.command()
def unload(
    name: Name,
    bundle: Annotated[str | None, typer.Argument(help="One bundle; all of them when left out.")] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Have bundles given away by their owners. Clients find their topics again by themselves."""
    output, brokers = Output(as_json), admin_of(namespace, home).brokers
    count = brokers.unload_namespace(name) if bundle is None else int(brokers.unload_bundle(name, bundle))
    output.result({"namespace": name, "unloaded": count})
    output.progress(f"{count} bundles of {name} given away")


@app.command()
def split(
    name: Name,
    bundle: Bundle,
    boundary: Annotated[str | None, typer.Option(help="Where the second half begins. [default: by topics]")] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Cut a bundle in two; no client notices."""
    output = Output(as_json)
    halves = admin_of(namespace, home).brokers.split_bundle(name, bundle, boundary)
    output.result({"namespace": name, "bundle": bundle, "halves": list(halves)})
    output.progress(f"{bundle} is now {' and '.join(halves)}")
