"""``helio topics``: create, list, grow, delete, stats."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from heliograph.cli.options import AckQuorum, EnsembleSize, Home, Json, Namespace, Topic, WriteQuorum, admin_of, given
from heliograph.cli.output import Output
from heliograph.cli.policies import TOPIC, policies_app
from heliograph.cli.subscriptions import show_subscriptions
from heliograph.errors import InvalidQuorumError

app = typer.Typer(help="Create, list, delete and inspect topics.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(policies_app(TOPIC, "Show, set and remove a topic's own policies."), name="policies")

POLL_SECONDS = 0.2


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(help="0: a topic without partitions.", min=0, max=10_000)] = 0,
    ensemble_size: EnsembleSize = None,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Create a topic. The three numbers of copies are given together, or left to the namespace."""
    persistence = persistence_of(ensemble_size, write_quorum, ack_quorum)
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.create_topic(topic, partitions, persistence)
    output.result({"topic": topic, "partitions": partitions, "created": True})
    output.progress(f"created {topic}" + (f" with {partitions} partitions" if partitions else ""))


@app.command("list")
def list_(
    heliograph_namespace: Annotated[str, typer.Argument(help="tenant/namespace", metavar="[TENANT/NAMESPACE]")] = (
        "public/default"
    ),
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """List the topics of a namespace."""
    output, admin = Output(as_json), admin_of(namespace, home)
    topics = sorted(admin.list_topics(heliograph_namespace), key=lambda topic: str(topic["name"]))
    output.result({"namespace": heliograph_namespace, "topics": topics})
    output.table("", ("topic", "partitions"), [(topic["name"], topic["partitions"] or "") for topic in topics])


@app.command()
def delete(
    topic: Topic,
    force: Annotated[bool, typer.Option("--force", help="Even while it is in use.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Delete a topic with its subscriptions and all its messages."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.delete_topic(topic, force)
    output.result({"topic": topic, "deleted": True})
    output.progress(f"deleted {topic}")


@app.command()
def terminate(
    topic: Topic,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """End a topic. It can be read to its end, and nothing is published to it any more."""
    output, admin = Output(as_json), admin_of(namespace, home)
    last = admin.terminate_topic(topic)
    output.result({"topic": topic, "last": last})
    for name, position in last.items():
        output.progress(f"{name} ends with message {position}")


@app.command()
def grow(
    topic: Topic,
    partitions: Annotated[int, typer.Argument(help="How many it shall have.", min=1, max=10_000)],
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Add partitions to a partitioned topic. Missing ones are made; clients notice by themselves."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.update_partitions(topic, partitions)
    admin.create_missing_partitions(topic)
    output.result({"topic": topic, "partitions": partitions})
    output.progress(f"{topic} has {partitions} partitions")


@app.command()
def unload(topic: Topic, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Have a topic closed and opened again. Clients follow by themselves."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.unload_topic(topic)
    output.result({"topic": topic, "unloaded": True})
    output.progress(f"unloaded {topic}")


@app.command()
def lookup(topic: Topic, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Show which broker serves a topic."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = admin.lookup(topic)
    output.result({"topic": topic, **found})
    output.progress(f"{topic} is served by {found['broker_id']} at {found['service_url']}")


@app.command()
def stats(
    topic: Topic,
    internal: Annotated[bool, typer.Option("--internal", help="Ledgers and cursors instead of rates.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show rates, counts and subscriptions. With --internal ledgers and cursors; --json has all of it."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = admin.topic_internal_stats(topic) if internal else admin.topic_stats(topic)
    output.result(found)
    output.facts(topic, [(name, value) for name, value in found.items() if not _is_nested(value)])
    if subscriptions := found.get("subscriptions"):
        show_subscriptions(output, "subscriptions", subscriptions)
    for name, cursor in sorted((found.get("cursors") or {}).items()):
        output.facts(f"cursor {name}", [(key, value) for key, value in cursor.items() if not _is_nested(value)])
    ledgers = found.get("ledgers") or []
    if ledgers:
        columns = [name for name, value in ledgers[0].items() if not _is_nested(value)]
        rows = [[*(ledger.get(column) for column in columns), _bookies_of(ledger)] for ledger in ledgers]
        output.table("ledgers", [*columns, "bookies"], rows)


@app.command()
def compact(
    topic: Topic,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end; 0: do not wait.", min=0)] = 60.0,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Keep the latest message of each key. For those who read compacted; ends with 1 when that failed."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.compact_topic(topic)
    deadline = time.monotonic() + wait
    status = admin.compaction_status(topic)
    while status["status"] == "RUNNING" and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        status = admin.compaction_status(topic)
    output.result({"topic": topic, **status})
    output.progress(f"{topic}: {status['status']} {status['lastError']}".rstrip())
    if status["status"] == "ERROR":
        raise typer.Exit(1)


def persistence_of(
    ensemble_size: int | None, write_quorum: int | None, ack_quorum: int | None
) -> dict[str, int] | None:
    """The three numbers as the admin interface takes them, or None when none is given.

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
    """The bookies of each fragment: ``0: bookie-1 bookie-2, 17: bookie-1 bookie-3``."""
    fragments = ledger.get("ensembles") or []
    return ", ".join(f"{one.get('firstEntryId')}: {' '.join(one.get('bookies', ()))}" for one in fragments)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)
