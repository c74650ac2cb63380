"""``helio subscriptions``: list, create, delete, move and look into subscriptions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from heliograph.cli.options import Home, Json, Namespace, Topic, admin_of
from heliograph.cli.output import Output
from heliograph.errors import BadRequestError

app = typer.Typer(help="Create, move and inspect subscriptions.", no_args_is_help=True, rich_markup_mode=None)

Subscription = Annotated[str, typer.Argument(help="Name of the subscription.")]


def show_subscriptions(output: Output, title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """What people look for first in a topic's subscriptions; ``--json`` has all of it."""
    columns = ("type", "msgBacklog", "msgDelayed", "unackedMessages", "msgRateOut", "msgRateRedeliver", "isDurable")
    rows = [
        (name, *(found[name].get(column) for column in columns), len(found[name].get("consumers") or ()))
        for name in sorted(found)
    ]
    output.table(title, ("name", *columns, "consumers"), rows)


@app.command("list")
def list_(topic: Topic, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """List a topic's subscriptions with their backlogs."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = admin.topic_stats(topic)["subscriptions"]
    output.result({"topic": topic, "subscriptions": found})
    show_subscriptions(output, "", found)


@app.command()
def create(
    topic: Topic,
    subscription: Subscription,
    position: Annotated[str, typer.Option(help="latest, earliest, or ledger:entry of the last message to skip")] = (
        "latest"
    ),
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Create a durable subscription."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.create_subscription(topic, subscription, position)
    output.result({"topic": topic, "subscription": subscription, "created": True})
    output.progress(f"created {subscription} on {topic}")


@app.command()
def delete(
    topic: Topic,
    subscription: Subscription,
    force: Annotated[bool, typer.Option("--force", help="Even while it has consumers.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Delete a subscription."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.delete_subscription(topic, subscription, force)
    output.result({"topic": topic, "subscription": subscription, "deleted": True})
    output.progress(f"deleted {subscription} of {topic}")


@app.command()
def skip(
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int | None, typer.Option(help="So many entries; everything when left out.", min=0)] = None,
    older_than: Annotated[int | None, typer.Option(help="Only what is older, in seconds.", min=0)] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Acknowledge messages that nobody has to get."""
    if count is not None and older_than is not None:
        raise BadRequestError("give --count or --older-than, not both", field="count")
    output, admin = Output(as_json), admin_of(namespace, home)
    if older_than is not None:
        admin.cursors.expire(topic, subscription, older_than)
    elif count is not None:
        admin.cursors.skip(topic, subscription, count)
    else:
        admin.cursors.skip_all(topic, subscription)
    output.result({"topic": topic, "subscription": subscription, "skipped": True})
    output.progress(f"{subscription} of {topic} moved on")


@app.command()
def reset(
    topic: Topic,
    subscription: Subscription,
    to: Annotated[
        str, typer.Argument(help="earliest, latest, ledger:entry[:partition[:batch]], or ms since the epoch")
    ],
    excluded: Annotated[bool, typer.Option("--excluded", help="Behind the message that is named.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Have a subscription go on at another place."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.cursors.reset(topic, subscription, int(to) if to.isdigit() else to, excluded)
    output.result({"topic": topic, "subscription": subscription, "reset": to})
    output.progress(f"{subscription} of {topic} goes on at {to}")


@app.command()
def peek(
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int, typer.Option(help="Messages to show.", min=1, max=1_000)] = 1,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the next messages without taking them."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = [{**one, "payload": _text(one["payload"])} for one in admin.cursors.peek(topic, subscription, count)]
    output.result({"topic": topic, "subscription": subscription, "messages": found})
    columns = ("message_id", "key", "publish_time_ms", "properties", "payload")
    output.table("", columns, [[one[column] for column in columns] for one in found])


@app.command()
def properties(
    topic: Topic,
    subscription: Subscription,
    replace: Annotated[
        list[str] | None, typer.Option("--set", help="name=value; replaces all of them, may be repeated.")
    ] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show what is attached to a subscription, or replace it."""
    output, admin = Output(as_json), admin_of(namespace, home)
    if replace is not None:
        pairs = [text.partition("=") for text in replace]
        if not all(separator and name for name, separator, _ in pairs):
            raise BadRequestError("properties are given as name=value", field="set")
        admin.cursors.set_properties(topic, subscription, {name: value for name, _, value in pairs})
    found = admin.cursors.properties(topic, subscription)
    output.result({"topic": topic, "subscription": subscription, "properties": found})
    output.table("", ("name", "value"), sorted(found.items()))


def _text(payload: bytes) -> str:
    return payload.decode(errors="backslashreplace")
