"""``helio top``: the busiest topics, subscriptions, brokers or bookies, again and again.

On a terminal, keys choose what is shown and by which column it is sorted.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from heliograph.base.errors import BadRequestError, ClusterNotFoundError
from heliograph.base.home import ClusterHome
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.figures import size_text
from heliograph.cli.output import Output
from heliograph.cli.watching.keyboard import END, LEFT, RIGHT, TAB, has_keyboard, keyboard
from heliograph.metrics.exposition import samples_in

HELP = "1-9, left, right: sort by a column; r: turn round; tab: topics, subscriptions, ...; q: end"
ENDING = ("q", "Q", END)
ANSWER_SECONDS = 30.0  # the first answer of `helio dev` takes longer


class TopKind(StrEnum):
    """The things that rows show."""

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
            "oldest s": "heliograph_subscription_oldest_unacknowledged_seconds",
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


@dataclass(frozen=True, slots=True)
class TopView:
    """The rows and columns that are shown, and their order.

    Attributes:
        column: the rows are sorted by it, the largest values first.
        is_reversed: the smallest come first.
    """

    kind: TopKind
    column: str
    is_reversed: bool = False

    def after(self, key: str) -> TopView:
        """Return the view once a key was pressed; keys that mean nothing, and none, leave it."""
        columns = list(_VIEWS[self.kind][1])
        if key == TAB:
            kinds = list(TopKind)
            kind = kinds[(kinds.index(self.kind) + 1) % len(kinds)]
            return TopView(kind, next(iter(_VIEWS[kind][1])))
        if key in (LEFT, RIGHT):
            step = 1 if key == RIGHT else -1
            return replace(self, column=columns[(columns.index(self.column) + step) % len(columns)])
        if key in map(str, range(1, len(columns) + 1)):
            return replace(self, column=columns[int(key) - 1])
        return replace(self, is_reversed=not self.is_reversed) if key in ("r", "R") else self


@single_command
def top(
    context: CommandContext,
    kind: Annotated[TopKind, typer.Argument(help="topics, subscriptions, brokers or bookies.")] = TopKind.TOPICS,
    sort: Annotated[str | None, typer.Option(help="Column with the largest values first. [default: the first]")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Rows to show.")] = 20,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once and end.")] = False,
) -> None:
    """Show the busiest topics, subscriptions, brokers or bookies."""
    from heliograph.client.admin.over_http import GatewayAwayError, GatewayCalls
    from heliograph.client.discovery import tls_options
    from heliograph.client.identity import Identity

    target, output = context.target, context.output
    state = ClusterHome(target.home).load()
    if state is None or not state.gateway_url:
        raise ClusterNotFoundError(f"no gateway is noted in {target.home}: `helio status` shows the running parts")
    columns = _VIEWS[kind][1]
    view = TopView(kind, sort or next(iter(columns)))
    if view.column not in columns:
        raise BadRequestError(f"there is no column {view.column}", field="sort", limit=", ".join(columns))
    gateway = GatewayCalls(state.gateway_url, target.namespace, tls_options(target.namespace))
    if once or output.as_json:
        _show(output, view, gateway.metrics(Identity.from_environment(), ANSWER_SECONDS), lines)
        return
    text, due = "", time.monotonic()
    with keyboard() as wait:
        while True:
            trouble = ""
            if time.monotonic() >= due:
                try:
                    text = gateway.metrics(Identity.from_environment(), ANSWER_SECONDS)
                except GatewayAwayError as error:
                    trouble = f"no answer, and asked again in {interval:g} s: {error}"
                due = time.monotonic() + interval
            output.clear()
            _show(output, view, text, lines)
            if has_keyboard():
                output.progress(HELP)
            if trouble:
                output.warn(trouble)
            key = wait(max(0.0, due - time.monotonic()))
            if key in ENDING:
                return
            view = view.after(key)


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


def _show(output: Output, view: TopView, text: str, lines: int) -> None:
    names, columns = _VIEWS[view.kind]
    rows = _rows(view.kind, samples_in(text))
    rows.sort(key=lambda row: float(row[view.column]), reverse=not view.is_reversed)
    count, rows = len(rows), rows[:lines]
    output.result({view.kind.value: rows})
    mark = "^" if view.is_reversed else "v"
    shown = [[*(_short(row[name]) for name in names), *(_figure(each, row[each]) for each in columns)] for row in rows]
    heads = [f"{each} {mark}" if each == view.column else each for each in columns]
    output.table(f"{len(rows)} of {count} {view.kind.value}", [*names, *heads], shown)


def _short(name: str) -> str:
    return name.removeprefix("persistent://public/default/")


def _figure(column: str, value: float) -> str:
    if "bytes" in column:
        return size_text(value)
    if column in ("load", "disk used"):
        return f"{value:.0%}"
    return f"{value:,.1f}" if column.endswith("/s") else f"{value:,.0f}"
