"""``helio brokers``: who serves, how busy each is, and emptying one before it goes."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.options import Home, Json, Namespace, admin_of
from heliograph.cli.output import Output

app = typer.Typer(help="List, drain and compare brokers.", no_args_is_help=True, rich_markup_mode=None)

Broker = Annotated[str, typer.Argument(help="Such as broker-2.")]


@app.command("list")
def list_(home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """List the brokers that serve now."""
    output = Output(as_json)
    found = admin_of(namespace, home).brokers.list()
    output.result({"brokers": list(found)})
    columns = ("broker_id", "service_url", "service_url_tls", "is_leader", "is_draining")
    output.table("", columns, [[row[column] for column in columns] for row in found])


@app.command()
def load(home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Show the load that each broker last reported."""
    output = Output(as_json)
    found = admin_of(namespace, home).brokers.loads()
    output.result({"loads": list(found)})
    columns = (
        "broker_id", "cpu_share", "memory_share", "messages_in_per_second", "messages_out_per_second",
        "bytes_in_per_second", "bytes_out_per_second", "topics", "bundles_owned",
    )  # fmt: skip
    output.table("", columns, [[row[column] for column in columns] for row in found])


@app.command()
def drain(broker: Broker, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Have a broker give all its topics away. It takes no more until `undrain` or its restart."""
    output = Output(as_json)
    count = admin_of(namespace, home).brokers.drain(broker)
    output.result({"broker": broker, "bundles": count})
    output.progress(f"{broker} gave {count} bundles away")


@app.command()
def undrain(broker: Broker, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Let a broker take topics again."""
    output = Output(as_json)
    admin_of(namespace, home).brokers.undrain(broker)
    output.result({"broker": broker, "undrained": True})
    output.progress(f"{broker} takes topics again")
