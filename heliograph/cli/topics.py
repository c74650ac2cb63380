"""``helio topics``: create, list, grow, delete, stats."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from heliograph.cli import topic_policies
from heliograph.cli.options import Home, Json, Namespace, admin_of, given
from heliograph.cli.output import Output
from heliograph.errors import InvalidQuorumError

app = typer.Typer(help="Create, list, delete and inspect topics.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(topic_policies.app, name="policies")

POLL_SECONDS = 0.2

Topic = Annotated[str, typer.Argument(help="Name, such as orders or persistent://public/default/orders.")]


@app.command()
def create(
    topic: Topic,
    partitions: Annotated[int, typer.Option(help="0: a topic without partitions.", min=0, max=10_000)] = 0,
    ensemble_size: Annotated[int | None, typer.Option(help="Bookies a fragment is spread over.")] = None,
    write_quorum: Annotated[int | None, typer.Option(help="Copies of each message.")] = None,
    ack_quorum: Annotated[int | None, typer.Option(help="Fsynced copies before an ack.")] = None,
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
    """End a topic: it can be read to its end, and nothing is published to it any more."""
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
    """Add partitions to a partitioned topic, and make those that are missing; clients notice by themselves."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.update_partitions(topic, partitions)
    admin.create_missing_partitions(topic)
    output.result({"topic": topic, "partitions": partitions})
    output.progress(f"{topic} has {partitions} partitions")


@app.command()
def unload(topic: Topic, home: Home = None, namespace: Namespace = None, as_json: Json = False) -> None:
    """Have a topic closed where it is served; clients open it again by themselves."""
    output, admin = Output(as_json), admin_of(namespace, home)
    admin.unload_topic(topic)
    output.result({"topic": topic, "unloaded": True})
    output.progress(f"unloaded {topic}")


@app.command()
def stats(
    topic: Topic,
    internal: Annotated[bool, typer.Option("--internal", help="Ledgers and cursors instead of rates.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show rates, counts and subscriptions of a topic, or its ledgers."""
    output, admin = Output(as_json), admin_of(namespace, home)
    found = admin.topic_internal_stats(topic) if internal else admin.topic_stats(topic)
    output.result(found)
    output.table(topic, ("", ""), [(name, value) for name, value in found.items() if not _is_nested(value)])
    for title, key in (("subscriptions", "subscriptions"), ("cursors", "cursors")):
        _nested_table(output, title, found.get(key) or {})
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
    """Keep the latest message of each key for those who read compacted; ends with 1 when that failed."""
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


def _nested_table(output: Output, title: str, entries: dict[str, dict[str, Any]]) -> None:
    if not entries:
        return
    columns = [name for name, value in next(iter(entries.values())).items() if not _is_nested(value)]
    rows = [[name, *(entry.get(column) for column in columns)] for name, entry in sorted(entries.items())]
    output.table(title, ["name", *columns], rows)


def _bookies_of(ledger: dict[str, Any]) -> str:
    """The bookies of each fragment: ``0: bookie-1 bookie-2, 17: bookie-1 bookie-3``."""
    fragments = ledger.get("ensembles") or []
    return ", ".join(f"{one.get('firstEntryId')}: {' '.join(one.get('bookies', ()))}" for one in fragments)


def _is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)
