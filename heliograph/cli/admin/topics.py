"""``helio topics``: create, list, grow, delete and inspect topics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from heliograph.base.errors import InvalidQuorumError
from heliograph.cli.admin.policies import TOPIC, policies_app
from heliograph.cli.admin.subscriptions import show_subscriptions
from heliograph.cli.context import CommandContext, command
from heliograph.cli.figures import for_people
from heliograph.cli.options import AckQuorum, EnsembleSize, Topic, WriteQuorum, given, pairs_of
from heliograph.cli.relays import relays
from heliograph.operations.table import PARTITIONS_MAX, TOPICS_LISTED_MAX

app = relays("topics", "Create, list, delete and inspect topics.")
app.add_typer(policies_app(TOPIC, "Show, set and remove a topic's own policies."), name="policies")

POLL_SECONDS = 0.2


@command(app)
def create(
    context: CommandContext,
    topic: Topic,
    partitions: Annotated[int, typer.Option(help="0: a topic without partitions.", min=0, max=PARTITIONS_MAX)] = 0,
    ensemble_size: EnsembleSize = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    attach: Annotated[list[str] | None, typer.Option("--property", help="name=value; may be repeated.")] = None,
) -> None:
    """Create a topic. The three numbers of copies are given together, or left to the namespace."""
    persistence = persistence_of(ensemble_size, write_quorum, ack_quorum)
    context.admin.create_topic(topic, partitions, persistence, pairs_of(attach, "property"))
    result = {"topic": topic, "partitions": partitions, "created": True}
    context.report(result, f"created {topic}" + (f" with {partitions} partitions" if partitions else ""))


@command(app, "list")
def list_(
    context: CommandContext,
    heliograph_namespace: Annotated[str, typer.Argument(help="tenant/namespace", metavar="[TENANT/NAMESPACE]")] = (
        "public/default"
    ),
    prefix: Annotated[str, typer.Option(help="Only names that begin with this.")] = "",
    after: Annotated[str, typer.Option(help="Full name of the last topic of the page before.")] = "",
    limit: Annotated[int, typer.Option(help="Topics of one page; 0: all.", min=0, max=TOPICS_LISTED_MAX)] = 0,
) -> None:
    """List the topics of a namespace."""
    if limit:
        topics = context.admin.list_topics(heliograph_namespace, after, limit, prefix)
    else:
        pages = context.admin.topic_pages(heliograph_namespace, prefix, "", after)
        topics = [topic for page in pages for topic in page]
    rows = [(topic["name"], topic["partitions"] or "") for topic in topics]
    context.show({"namespace": heliograph_namespace, "topics": topics}, ("topic", "partitions"), rows)


@command(app)
def properties(
    context: CommandContext,
    topic: Topic,
    change: Annotated[list[str] | None, typer.Option("--set", help="name=value; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option("--remove", help="A name; may be repeated.")] = None,
) -> None:
    """Show a topic's properties, after setting and removing some."""
    if change:
        context.admin.update_topic_properties(topic, pairs_of(change, "set"))
    if remove:
        context.admin.remove_topic_properties(topic, remove)
    found = context.admin.topic_properties(topic)
    context.show({"topic": topic, "properties": found}, ("name", "value"), sorted(found.items()))


@command(app)
def ledgers(
    context: CommandContext,
    topic: Topic,
    after: Annotated[int, typer.Option(help="Begin with the newest ledger up to this id.")] = -1,
) -> None:
    """List a topic's ledgers, oldest first, in pages. The next page begins --after the last id of this one."""
    found = context.admin.topic_ledgers(topic, after)
    rows = [(row["ledger_id"], row["entries"], row["bytes"], row["closed_ms"] or "open") for row in found["ledgers"]]
    context.show({"topic": topic, **found}, ("ledger", "entries", "bytes", "closed_ms"), rows)


@command(app)
def grow(
    context: CommandContext,
    topic: Topic,
    partitions: Annotated[int, typer.Argument(help="New number of partitions.", min=1, max=PARTITIONS_MAX)],
) -> None:
    """Add partitions to a partitioned topic. Missing ones are created; clients notice by themselves."""
    context.admin.update_partitions(topic, partitions)
    context.admin.create_missing_partitions(topic)
    context.report({"topic": topic, "partitions": partitions}, f"{topic} has {partitions} partitions")


@command(app)
def lookup(context: CommandContext, topic: Topic) -> None:
    """Show which broker serves a topic."""
    found = context.admin.lookup(topic)
    line = f"{topic} is served by {found['broker_id']} at {found['service_url'] or found['service_url_tls']}"
    context.report({"topic": topic, **found}, line)


@command(app)
def stats(
    context: CommandContext,
    topic: Topic,
    internal: Annotated[bool, typer.Option("--internal", help="Ledgers and cursors instead of rates.")] = False,
) -> None:
    """Show rates, counts and subscriptions. With --internal ledgers and cursors; --json has all of it."""
    found = context.admin.topic_internal_stats(topic) if internal else context.admin.topic_stats(topic)
    output = context.output
    output.result(found)
    output.facts(topic, _shown(found))
    if subscriptions := found.get("subscriptions"):
        show_subscriptions(output, "subscriptions", subscriptions)
    for name, cursor in sorted((found.get("cursors") or {}).items()):
        output.facts(f"cursor {name}", _shown(cursor))
    ledgers = found.get("ledgers") or []
    if ledgers:
        columns = [name for name, value in ledgers[0].items() if not _is_nested(value)]
        rows = [[*(ledger.get(column) for column in columns), _bookies_of(ledger)] for ledger in ledgers]
        output.table("ledgers", [*columns, "bookies"], rows)


@command(app)
def history(
    context: CommandContext,
    topic: Topic,
    minutes: Annotated[int, typer.Option(help="Minutes to show, up to now.", min=1, max=120)] = 10,
) -> None:
    """Show past rates, latency and backlogs of a topic. Its broker keeps them; --json has every sample."""
    found = context.admin.topic_history(topic)
    context.output.result(found)
    steps = max(1, round(minutes * 60 / found["step_seconds"]))
    rows = []
    for key, samples in found["series"]:
        values = [value for value in samples[-steps:] if value is not None]
        if values:
            of_all = [min(values), sum(values) / len(values), max(values), values[-1]]
            rows.append([" ".join([key[0], *key[2:]]), key[1], *of_all])
    context.output.table(f"the last {minutes} minutes", ["series", "of", "least", "mean", "most", "last"], rows)


@command(app)
def compact(
    context: CommandContext,
    topic: Topic,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end; 0: do not wait.", min=0)] = 60.0,
) -> None:
    """Keep the latest message of each key. For readers of the compacted topic; ends with 1 when that failed."""
    context.admin.compact_topic(topic)
    deadline = time.monotonic() + wait
    with context.output.timed():
        status = context.admin.compaction_status(topic)
        while status["status"] == "RUNNING" and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            status = context.admin.compaction_status(topic)
    context.report({"topic": topic, **status}, f"{topic}: {status['status']} {status['lastError']}".rstrip())
    if status["status"] == "ERROR":
        raise typer.Exit(1)


def persistence_of(
    ensemble_size: int | None, write_quorum: int | None, ack_quorum: int | None
) -> dict[str, int] | None:
    """Return the three numbers as ``create_topic`` takes them, or None when none is given.

    Raises:
        InvalidQuorumError: only some are given.
    """
    numbers = given(ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum)
    if numbers and len(numbers) < 3:
        raise InvalidQuorumError(
            "give --ensemble-size, --write-quorum and --ack-quorum together",
            field="ensemble_size,write_quorum,ack_quorum",
        )
    return numbers or None


def _bookies_of(ledger: dict[str, Any]) -> str:
    """Return the bookies of each segment: ``0: bookie-1 bookie-2, 17: bookie-1 bookie-3``."""
    segments = ledger.get("ensembles") or []
    return ", ".join(f"{one.get('firstEntryId')}: {' '.join(one.get('bookies', ()))}" for one in segments)


def _shown(found: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, for_people(name, value)) for name, value in found.items() if not _is_nested(value)]


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)
