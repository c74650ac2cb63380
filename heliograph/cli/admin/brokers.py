"""``helio brokers``: list brokers, show their load, and drain one before it is removed."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.cli.context import CommandContext, command, group

app = group("List, drain and compare brokers.")

Broker = Annotated[str, typer.Argument(help="Such as broker-2.")]


@command(app, "list")
def list_(context: CommandContext) -> None:
    """List the brokers that serve now."""
    found = context.admin.brokers.list()
    columns = ("broker_id", "service_url", "service_url_tls", "is_leader", "is_draining")
    context.show({"brokers": list(found)}, columns, [[row[column] for column in columns] for row in found])


@command(app)
def load(context: CommandContext) -> None:
    """Show the load that each broker last reported."""
    found = context.admin.brokers.loads()
    columns = (
        "broker_id", "cpu_share", "memory_share", "messages_in_per_second", "messages_out_per_second",
        "bytes_in_per_second", "bytes_out_per_second", "topics", "bundles_owned",
    )  # fmt: skip
    context.show({"loads": list(found)}, columns, [[row[column] for column in columns] for row in found])


@command(app)
def drain(context: CommandContext, broker: Broker) -> None:
    """Make a broker give all its topics away. It takes no more until `undrain` or its restart."""
    with context.output.timed():
        count = context.admin.brokers.drain(broker)
    context.report({"broker": broker, "bundles": count}, f"{broker} gave {count} bundles away")


@command(app)
def undrain(context: CommandContext, broker: Broker) -> None:
    """Let a broker take topics again."""
    context.admin.brokers.undrain(broker)
    context.report({"broker": broker, "undrained": True}, f"{broker} takes topics again")


@command(app)
def bundles(context: CommandContext, broker: Broker) -> None:
    """List the bundles that a broker owns."""
    found = context.admin.brokers.owned(broker)
    rows = [(namespace, name) for namespace, names in sorted(found.items()) for name in names]
    context.show({"broker": broker, "bundles": found}, ("namespace", "bundle"), rows)


@command(app)
def topics(context: CommandContext, broker: Broker) -> None:
    """List the topics that a broker has in memory."""
    found = context.admin.brokers.topics(broker)
    context.show({"broker": broker, "topics": found}, ("topic", "bundle"), sorted(found.items()))


@command(app)
def settings(context: CommandContext, broker: Broker) -> None:
    """Show a broker's settings. Secrets are left out."""
    found = context.admin.brokers.configuration(broker)
    context.show({"broker": broker, "settings": found}, ("setting", "value"), sorted(found.items()))


@command(app)
def check_quotas(context: CommandContext) -> None:
    """Make every broker check the backlog quotas of its topics now."""
    count = context.admin.brokers.check_quotas()
    context.report({"topics": count}, f"checked {count} topics")
