"""``helio top``: the busiest topics, subscriptions, brokers or bookies, again and again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from heliograph.base.errors import BadRequestError, ClusterNotFoundError
from heliograph.base.home import ClusterHome
from heliograph.cli.figures import size_text
from heliograph.cli.options import Home, Json, Namespace, Target
from heliograph.cli.output import Output

ANSWER_SECONDS = 30.0  # the first answer of `helio dev` takes longer


class TopKind(StrEnum):
    """What is shown."""

    TOPICS = "topics"
    SUBSCRIPTIONS = "subscriptions"
    BROKERS = "brokers"
    BOOKIES = "bookies"


# Of each kind: the labels that name a row, and the metric of each column.
_VIEWS: dict[TopKind, tuple[tuple[str, ...], dict[str, str]]] = {
    TopKind.TOPICS: (
        ("topic",),
        {
            "in/s": "heliograph_topic_in_messages_rate",
            "bytes/s": "heliograph_topic_in_bytes_rate",
            "stored bytes": "heliograph_topic_stored_bytes",
            "producers": "heliograph_topic_producers",
        },
    ),
    TopKind.SUBSCRIPTIONS: (
        ("topic", "subscription"),
        {
            "backlog": "heliograph_subscription_backlog_messages",
            "out/s": "heliograph_subscription_out_messages_rate",
            "acknowledged/s": "heliograph_subscription_acknowledged_entries_rate",
            "unacknowledged": "heliograph_subscription_unacknowledged_messages",
            "given back/s": "heliograph_subscription_redelivered_entries_rate",
            "consumers": "heliograph_subscription_consumers",
        },
    ),
    TopKind.BROKERS: (
        ("broker",),
        {
            "load": "heliograph_broker_load",
            "topics": "heliograph_broker_topics",
            "producers": "heliograph_broker_producers",
            "consumers": "heliograph_broker_consumers",
            "pending": "heliograph_broker_publishes_pending",
            "memory bytes": "heliograph_broker_memory_bytes",
        },
    ),
    TopKind.BOOKIES: (
        ("bookie",),
        {
            "disk used": "heliograph_bookie_disk_used_share",
            "free bytes": "heliograph_bookie_free_bytes",
            "queued bytes": "heliograph_bookie_journal_queue_bytes",
            "ledgers": "heliograph_bookie_ledgers",
            "memory bytes": "heliograph_bookie_memory_bytes",
        },
    ),
}


def top(
    kind: Annotated[TopKind, typer.Argument(help="topics, subscriptions, brokers or bookies.")] = TopKind.TOPICS,
    sort: Annotated[str | None, typer.Option(help="Column with the largest values first. [default: the first]")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Rows to show.")] = 20,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Show the busiest topics, subscriptions, brokers or bookies."""
    from heliograph.client.admin.over_http import GatewayCalls
    from heliograph.client.certificates import tls_options
    from heliograph.client.identity import Identity
    from heliograph.metrics.exposition import samples_in

    target = Target.of(namespace, home)
    state = ClusterHome(target.home).load()
    if state is None or not state.gateway_url:
        raise ClusterNotFoundError(f"no gateway is noted in {target.home}: `helio status` says what runs")
    columns = _VIEWS[kind][1]
    chosen = sort or next(iter(columns))
    if chosen not in columns:
        raise BadRequestError(f"there is no column {chosen}", field="sort", limit=", ".join(columns))
    gateway = GatewayCalls(state.gateway_url, target.namespace, tls_options(target.namespace))
    output = Output(as_json)
    while True:
        rows = _rows(kind, samples_in(gateway.metrics(Identity.from_environment(), ANSWER_SECONDS)))
        rows.sort(key=lambda row: -row[chosen])
        _show(output, kind, rows[:lines], len(rows), is_cleared=not (once or as_json))
        if once or as_json:
            return
        time.sleep(interval)


def _rows(kind: TopKind, samples: Iterable[tuple[str, Mapping[str, str], float]]) -> list[dict[str, Any]]:
    """Return the rows of a view: the labels that name each, and a value for each column."""
    names, columns = _VIEWS[kind]
    column_of = {metric: column for column, metric in columns.items()}
    rows: dict[tuple[str, ...], dict[str, Any]] = {}
    for metric, labels, value in samples:
        if (column := column_of.get(metric)) is not None and labels.keys() >= set(names):
            key = tuple(labels[name] for name in names)
            row = rows.setdefault(key, dict(zip(names, key, strict=True)) | dict.fromkeys(columns, 0.0))
            row[column] += value  # several namespaces have a row of what is not shown one by one
    return list(rows.values())


def _show(output: Output, kind: TopKind, rows: list[dict[str, Any]], count: int, *, is_cleared: bool) -> None:
    names, columns = _VIEWS[kind]
    output.result({kind.value: rows})
    if is_cleared:
        output.clear()
    shown = [[*(_short(row[name]) for name in names), *(_figure(each, row[each]) for each in columns)] for row in rows]
    output.table(f"{len(rows)} of {count} {kind.value}", [*names, *columns], shown)


def _short(name: str) -> str:
    return name.removeprefix("persistent://public/default/")


def _figure(column: str, value: float) -> str:
    if "bytes" in column:
        return size_text(value)
    if column in ("load", "disk used"):
        return f"{value:.0%}"
    return f"{value:,.1f}" if column.endswith("/s") else f"{value:,.0f}"
