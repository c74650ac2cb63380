"""``helio subscriptions``: list, create, delete, move and inspect subscriptions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import typer

from heliograph.base.errors import BadRequestError
from heliograph.cli.admin.policies import values_of
from heliograph.cli.context import CommandContext, command
from heliograph.cli.figures import rows_for_people
from heliograph.cli.options import Raw, Topic, pairs_of
from heliograph.cli.output import Output, write_message
from heliograph.cli.relays import relays
from heliograph.operations.table import PEEK_MAX

app = relays("subscriptions", "Create, move and inspect subscriptions.")

_MESSAGE_ID = re.compile(r"-?\d+(:-?\d+){1,4}")
Subscription = Annotated[str, typer.Argument(help="Name of the subscription.")]


def show_subscriptions(output: Output, title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the most important figures of a topic's subscriptions; ``--json`` has all of them."""
    columns: tuple[str, ...] = ("type", "backlogMessages", "msgDelayed", "unackedMessages", "msgRateOut")
    columns = (*columns, "msgRateRedeliver", "isDurable")
    rows = []
    for name in sorted(found):
        shown = {"backlogMessages": found[name].get("msgBacklog"), **found[name]}  # a broker of an earlier release
        rows.append((name, *map(shown.get, columns), len(found[name].get("consumers") or ())))
    columns = ("name", *columns, "consumers")
    output.table(title, columns, rows_for_people(columns, rows))


@command(app, "list")
def list_(context: CommandContext, topic: Topic) -> None:
    """List a topic's subscriptions with their backlogs."""
    found = context.admin.topic_stats(topic)["subscriptions"]
    context.report({"topic": topic, "subscriptions": found})
    show_subscriptions(context.output, "", found)


@command(app)
def create(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    position: Annotated[str, typer.Option(help="latest, earliest, or ledger:entry of the last message to skip")] = (
        "latest"
    ),
    attach: Annotated[list[str] | None, typer.Option("--property", help="name=value; may be repeated.")] = None,
) -> None:
    """Create a durable subscription."""
    context.admin.create_subscription(topic, subscription, position, pairs_of(attach, "property"))
    result = {"topic": topic, "subscription": subscription, "created": True}
    context.report(result, f"created {subscription} on {topic}")


@command(app)
def skip(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int | None, typer.Option(help="Number of entries. [default: all]", min=0)] = None,
    older_than: Annotated[int | None, typer.Option(help="Only messages older than this many seconds.", min=0)] = None,
) -> None:
    """Acknowledge messages that need not be delivered."""
    if count is not None and older_than is not None:
        raise BadRequestError("give --count or --older-than, not both", field="count")
    if older_than is not None:
        context.admin.cursors.expire(topic, subscription, older_than)
    elif count is not None:
        context.admin.cursors.skip(topic, subscription, count)
    else:
        context.admin.cursors.skip_all(topic, subscription)
    result = {"topic": topic, "subscription": subscription, "skipped": True}
    context.report(result, f"{subscription} of {topic} moved on")


@command(app)
def reset(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    to: Annotated[
        str,
        typer.Argument(
            help="earliest, latest, ledger:entry[:partition[:batch]], a time such as 2026-01-31T12:00:00Z, or ms since "
            "the epoch"
        ),
    ],
    excluded: Annotated[bool, typer.Option("--excluded", help="Start after this message, not at it.")] = False,
) -> None:
    """Move a subscription to another position."""
    context.admin.cursors.reset(topic, subscription, _moment_or_position(to), excluded)
    result = {"topic": topic, "subscription": subscription, "reset": to}
    context.report(result, f"{subscription} of {topic} goes on at {to}")


@command(app)
def peek(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int, typer.Option(help="Messages to show.", min=1, max=PEEK_MAX)] = 1,
    raw: Raw = False,
) -> None:
    """Show the next messages without acknowledging them. With --raw their bytes alone, each on a line."""
    peeked = context.admin.cursors.peek(topic, subscription, count)
    if raw and not context.output.as_json:
        for one in peeked:
            write_message(one["payload"], is_raw=True)
        return
    found = [{**one, "payload": one["payload"].decode(errors="backslashreplace")} for one in peeked]
    columns = ("message_id", "key", "publish_time_ms", "properties", "payload")
    result = {"topic": topic, "subscription": subscription, "messages": found}
    context.show(result, columns, [[one[column] for column in columns] for one in found])


@command(app)
def analyze(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    start: Annotated[str | None, typer.Option("--from", help="ledger:entry to begin at.")] = None,
) -> None:
    """Read a backlog and count its entries and messages. Nothing changes."""
    found = context.admin.cursors.analyze_backlog(topic, subscription, start)
    end = ", and more" if found["is_cut"] else ""
    line = f"{found['messages']} messages in {found['entries']} entries{end}"
    context.report({"topic": topic, "subscription": subscription, **found}, line)


@command(app)
def policies(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="Such as subscription_dispatch_bytes_per_second=9. Repeatable."),
    ] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="The name of a policy. Repeatable.")] = None,
    applied: Annotated[bool, typer.Option("--applied", help="Policies in effect, wherever set.")] = False,
) -> None:
    """Show the policies of one subscription, after changing some."""
    namespaces = context.admin.namespaces
    if change:
        namespaces.set_topic_policies(topic, values_of(change), subscription)
    if remove:
        namespaces.remove_topic_policies(topic, remove, subscription)
    found = namespaces.topic_policies(topic, applied, subscription)
    result = {"topic": topic, "subscription": subscription, "policies": found}
    context.show(result, ("policy", "value"), sorted(found.items()))


@command(app)
def properties(
    context: CommandContext,
    topic: Topic,
    subscription: Subscription,
    replace: Annotated[
        list[str] | None, typer.Option("--set", help="name=value; replaces all of them, may be repeated.")
    ] = None,
) -> None:
    """Show the properties of a subscription, or replace them."""
    if replace is not None:
        context.admin.cursors.set_properties(topic, subscription, pairs_of(replace, "set"))
    found = context.admin.cursors.properties(topic, subscription)
    result = {"topic": topic, "subscription": subscription, "properties": found}
    context.show(result, ("name", "value"), sorted(found.items()))


def _moment_or_position(text: str) -> int | str:
    """Return a time as milliseconds since the epoch, and anything else that names a position as it is.

    Raises:
        BadRequestError: it is neither, or a time without its zone.
    """
    if text.isdecimal():
        return int(text)
    if text in ("earliest", "latest") or _MESSAGE_ID.fullmatch(text):
        return text
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        reason = "is no position" if moment is None else "is a time without its zone"
        raise BadRequestError(
            f"{text!r:.80} {reason}: give earliest, latest, a message id such as 12:3, a time such as "
            "2026-01-31T12:00:00Z, or milliseconds since the epoch",
            field="to",
        )
    return round(moment.timestamp() * 1000)
