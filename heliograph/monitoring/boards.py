"""The boards for Grafana as data (pure): which panels, what each asks, and the JSON that Grafana loads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.metrics.table import METRICS
from heliograph.monitoring.alerts import p99

WIDTH, HEIGHT = 8, 8  # of a panel, in the grid of Grafana, which is 24 wide
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_MS, _RATE, _BYTES, _BYTES_RATE, _SHARE = "s", "cps", "bytes", "Bps", "percentunit"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its expressions, by their legends.

    Attributes:
        unit: one of Grafana's; empty: a plain number.
        description: empty: the meaning of the metric that the first expression begins with.
        is_now: show the latest value as a figure instead of a plot.
    """

    title: str
    queries: Mapping[str, str]
    unit: str = ""
    description: str = ""
    is_now: bool = False


@dataclass(frozen=True, slots=True)
class Board:
    """One board; its ``name`` names its file and is part of its uid."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def _latency(title: str, histogram: str, by: str) -> Panel:
    middle = f"histogram_quantile(0.5, sum by ({by}, le) (rate({histogram}_bucket[5m])))"
    queries = {f"p99 {{{{{by}}}}}": p99(histogram, by), f"p50 {{{{{by}}}}}": middle}
    return Panel(title, queries, _MS, METRICS[histogram].meaning)


def _rate(title: str, counter: str, by: str, unit: str = _RATE) -> Panel:
    expression = f"sum by ({by}) (rate({counter}[5m]))"
    return Panel(title, {f"{{{{{by}}}}}": expression}, unit, METRICS[counter].meaning)


def _calls(title: str, histogram: str, by: str) -> Panel:
    expression = f"sum by ({by}) (rate({histogram}_count[5m]))"
    return Panel(title, {f"{{{{{by}}}}}": expression}, _RATE, METRICS[histogram].meaning)


def _level(title: str, gauge: str, by: str = "", unit: str = "", *, is_now: bool = False) -> Panel:
    return Panel(title, {f"{{{{{by}}}}}" if by else title: gauge}, unit, METRICS[gauge].meaning, is_now)


def _top(title: str, gauge: str, legend: str, unit: str = "") -> Panel:
    return Panel(title, {legend: f'topk(20, {gauge}{{namespace=~"$namespace"}})'}, unit, METRICS[gauge].meaning)


_TOPIC, _SUBSCRIPTION = "{{topic}}", "{{subscription}} of {{topic}}"

BOARDS: tuple[Board, ...] = (
    Board(
        "overview",
        "Heliograph",
        (
            _latency("Probe: publish and consume", "heliograph_broker_probe_latency_seconds", "broker"),
            _level("Probe fails", "heliograph_broker_is_probe_failing", "broker", is_now=True),
            Panel(
                "Parts that are down",
                {"down": "count(heliograph_part_up == 0) or vector(0)"},
                description="parts that are expected and are not well",
                is_now=True,
            ),
            _level("Ledgers that miss copies", "heliograph_ledgers_underreplicated", is_now=True),
            _level("Reasons why publishing is limited", "heliograph_publishing_problems", is_now=True),
            _latency("Publish latency", "heliograph_broker_publish_latency_seconds", "broker"),
            _rate("Messages in", "heliograph_broker_messages_in_total", "broker"),
            _rate("Messages out", "heliograph_broker_messages_out_total", "broker"),
            _rate("Bytes in", "heliograph_broker_in_bytes_total", "broker", _BYTES_RATE),
            _level("Backlog by namespace", "heliograph_namespace_backlog_messages", "namespace"),
            _latency("Journal sync", "heliograph_bookie_journal_sync_latency_seconds", "bookie"),
            _level("Used share of the fullest disk", "heliograph_bookie_disk_used_share", "bookie", _SHARE),
            _level("Age of the report", "heliograph_report_age_seconds", unit=_MS),
        ),
    ),
    Board(
        "topics",
        "Heliograph: topics",
        (
            _top("Messages in", "heliograph_topic_in_messages_rate", _TOPIC, _RATE),
            _top("Bytes in", "heliograph_topic_in_bytes_rate", _TOPIC, _BYTES_RATE),
            _top("Stored", "heliograph_topic_stored_bytes", _TOPIC, _BYTES),
            _top("Producers", "heliograph_topic_producers", _TOPIC),
            _top("Consumers", "heliograph_topic_consumers", _TOPIC),
            _top("Subscriptions", "heliograph_topic_subscriptions", _TOPIC),
            _top("Dead letters", "heliograph_topic_dead_letters", _TOPIC),
            _level("Messages in by namespace", "heliograph_namespace_in_messages_rate", "namespace", _RATE),
            _level("Topics by namespace", "heliograph_namespace_topics", "namespace"),
            _level("Topics without series of their own", "heliograph_broker_topics_hidden", "broker"),
        ),
    ),
    Board(
        "subscriptions",
        "Heliograph: subscriptions",
        (
            _top("Backlog", "heliograph_subscription_backlog_messages", _SUBSCRIPTION),
            _top("Oldest message", "heliograph_subscription_oldest_unacknowledged_seconds", _SUBSCRIPTION, _MS),
            _top("Messages out", "heliograph_subscription_out_messages_rate", _SUBSCRIPTION, _RATE),
            _top("Bytes out", "heliograph_subscription_out_bytes_rate", _SUBSCRIPTION, _BYTES_RATE),
            _top("Acknowledged", "heliograph_subscription_acknowledged_entries_rate", _SUBSCRIPTION, _RATE),
            _top("Unacknowledged", "heliograph_subscription_unacknowledged_messages", _SUBSCRIPTION),
            _top("Given back", "heliograph_subscription_redelivered_entries_rate", _SUBSCRIPTION, _RATE),
            _top("Delayed", "heliograph_subscription_delayed_entries", _SUBSCRIPTION),
            _top("Blocked", "heliograph_subscription_is_blocked", _SUBSCRIPTION),
            _top("Consumers", "heliograph_subscription_consumers", _SUBSCRIPTION),
            _latency("Acknowledgement", "heliograph_broker_acknowledgement_latency_seconds", "broker"),
            _latency("Delivery latency", "heliograph_broker_delivery_latency_seconds", "broker"),
        ),
    ),
    Board(
        "brokers",
        "Heliograph: brokers",
        (
            _latency("Publish latency", "heliograph_broker_publish_latency_seconds", "broker"),
            _latency("Delivery latency", "heliograph_broker_delivery_latency_seconds", "broker"),
            _latency("Dispatch, a turn of a subscription", "heliograph_broker_dispatch_duration_seconds", "broker"),
            _latency("Adds, as brokers see bookies", "heliograph_broker_add_latency_seconds", "bookie"),
            _latency("Reads from bookies", "heliograph_broker_read_latency_seconds", "broker"),
            _level("Load", "heliograph_broker_load", "broker", _SHARE),
            _level("Entries sent and not confirmed", "heliograph_broker_publishes_pending", "broker"),
            _level("Memory", "heliograph_broker_memory_bytes", "broker", _BYTES),
            _level("Longest step of the event loop", "heliograph_part_loop_longest_step_seconds", "part", _MS),
            _level("Producers", "heliograph_broker_producers", "broker"),
            _level("Consumers", "heliograph_broker_consumers", "broker"),
            _level("Connections", "heliograph_broker_connections", "broker"),
            _rate("Topics taken by another broker", "heliograph_broker_topics_fenced_total", "broker"),
            _rate("Topics loaded after a failure", "heliograph_broker_topics_taken_over_total", "broker"),
        ),
    ),
    Board(
        "bookies",
        "Heliograph: bookies and journals",
        (
            _latency("Journal sync", "heliograph_bookie_journal_sync_latency_seconds", "bookie"),
            _rate("Written to journals", "heliograph_bookie_journal_fsynced_bytes_total", "bookie", _BYTES_RATE),
            _level("Waiting for a journal", "heliograph_bookie_journal_queue_bytes", "bookie", _BYTES),
            _rate("Entries added", "heliograph_bookie_entries_added_total", "bookie"),
            _rate("Adds refused", "heliograph_bookie_adds_refused_total", "bookie"),
            _rate("Read", "heliograph_bookie_read_bytes_total", "bookie", _BYTES_RATE),
            _latency("Reads of disks", "heliograph_bookie_read_latency_seconds", "bookie"),
            _level("Free on disk", "heliograph_bookie_free_bytes", "bookie", _BYTES),
            _level("Memory", "heliograph_bookie_memory_bytes", "bookie", _BYTES),
            _level("Write cache", "heliograph_bookie_write_cache_bytes", "bookie", _BYTES),
            _rate("Rewritten by compaction", "heliograph_bookie_compacted_bytes_total", "bookie", _BYTES_RATE),
            _rate("Damaged entries", "heliograph_bookie_entries_damaged_total", "bookie"),
        ),
    ),
    Board(
        "repair",
        "Heliograph: repair",
        (
            _level("Ledgers that miss copies", "heliograph_ledgers_underreplicated"),
            _level("Ledgers in repair", "heliograph_ledgers_in_repair"),
            _level("Ledgers that move", "heliograph_ledgers_moving"),
            _level("Ledgers with one copy left", "heliograph_auditor_ledgers_last_copy", "worker"),
            _level("Ledgers without a good copy", "heliograph_ledgers_damaged"),
            _level("Repair is paused", "heliograph_repair_is_paused", is_now=True),
            _rate("Copied", "heliograph_auditor_repaired_bytes_total", "worker", _BYTES_RATE),
            _rate("Entries copied", "heliograph_auditor_entries_repaired_total", "worker"),
            _latency("Repair of a ledger", "heliograph_auditor_repair_duration_seconds", "worker"),
            _rate("Audits", "heliograph_auditor_audits_total", "worker"),
            _rate("Failed attempts", "heliograph_auditor_failures_total", "worker"),
            _rate("Entries scrubbed", "heliograph_bookie_scrub_entries_total", "bookie"),
        ),
    ),
    Board(
        "metadata",
        "Heliograph: metadata",
        (
            _latency("Calls of brokers", "heliograph_broker_metadata_latency_seconds", "broker"),
            _calls("Calls of brokers in a second", "heliograph_broker_metadata_latency_seconds", "broker"),
            _level("Silent for", "heliograph_broker_metadata_silent_seconds", "broker", _MS),
            _latency("Writes of the store to its disk", "heliograph_metadata_commit_latency_seconds", "part"),
            _rate("Changes of the store", "heliograph_metadata_transactions_total", "part"),
            _level("Nodes of the store", "heliograph_metadata_nodes", "part"),
            _level("Sessions of the store", "heliograph_metadata_sessions", "part"),
            _level("Large records", "heliograph_broker_large_records", "broker"),
            _level("Bookie is registered", "heliograph_bookie_is_registered", "bookie"),
            _level("Broker leads", "heliograph_broker_is_leader", "broker"),
            _level("Auditor leads", "heliograph_auditor_is_leader", "worker"),
            _level("Operator leads", "heliograph_operator_is_leader", "part"),
            _latency("Looks of the operator", "heliograph_operator_look_duration_seconds", "part"),
            _level("Age of the report", "heliograph_report_age_seconds", unit=_MS),
        ),
    ),
    Board(
        "gateway",
        "Heliograph: gateway",
        (
            _rate("HTTP requests", "heliograph_gateway_http_requests_total", "status"),
            _latency("HTTP latency", "heliograph_gateway_http_latency_seconds", "route"),
            _rate("Messages published", "heliograph_gateway_messages_produced_total", "transport"),
            _rate("Bytes published", "heliograph_gateway_produced_bytes_total", "transport", _BYTES_RATE),
            _rate("Messages that could not be stored", "heliograph_gateway_messages_failed_total", "transport"),
            _rate("Messages delivered", "heliograph_gateway_messages_delivered_total", "transport"),
            _rate("Acknowledged", "heliograph_gateway_messages_acknowledged_total", "transport"),
            _level("Sessions", "heliograph_gateway_sessions", "kind"),
            _level("Memory", "heliograph_gateway_memory_bytes", unit=_BYTES),
        ),
    ),
    Board(
        "pipelines",
        "Heliograph: pipelines and streams",
        (
            _rate("Reads of several entries, as tasks make", "heliograph_bookie_batch_reads_total", "bookie"),
            _rate("Read from bookies", "heliograph_bookie_read_bytes_total", "bookie", _BYTES_RATE),
            _latency("Reads of disks", "heliograph_bookie_read_latency_seconds", "bookie"),
            _rate("Batches read ahead", "heliograph_bookie_read_aheads_total", "bookie"),
            _rate("Batches read ahead that were wanted", "heliograph_bookie_read_ahead_hits_total", "bookie"),
            _rate("Answers dropped for slow readers", "heliograph_bookie_unsent_closed_total", "bookie"),
            _top("Streams: backlog", "heliograph_subscription_backlog_messages", _SUBSCRIPTION),
            _top(
                "Streams: oldest message", "heliograph_subscription_oldest_unacknowledged_seconds", _SUBSCRIPTION, _MS
            ),
            _top("Written by tasks and others", "heliograph_topic_in_bytes_rate", _TOPIC, _BYTES_RATE),
        ),
    ),
)


def board_json(board: Board) -> str:
    """Return a board as a file for Grafana. Its data source is chosen on the board."""
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    namespaces = {
        "name": "namespace",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(heliograph_namespace_topics, namespace)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }
    asks_namespaces = any("$namespace" in query for panel in board.panels for query in panel.queries.values())
    return json.dumps(
        {
            "uid": f"heliograph-{board.name}",
            "title": board.title,
            "tags": ["heliograph"],
            "schemaVersion": 39,
            "refresh": "15s",
            "time": {"from": "now-1h", "to": "now"},
            "templating": {"list": [source, namespaces] if asks_namespaces else [source]},
            "links": [{"title": "Heliograph", "type": "dashboards", "tags": ["heliograph"], "keepTime": True}],
            "panels": [_panel_json(panel, place) for place, panel in enumerate(board.panels)],
        },
        indent=1,
    )


def file_name(board: Board) -> str:
    return f"heliograph_{board.name}_dashboard.json"


def _panel_json(panel: Panel, place: int) -> dict[str, Any]:
    across = 24 // WIDTH
    red = [{"color": "green", "value": None}, {"color": "red", "value": 1}]
    defaults: dict[str, Any] = {"unit": panel.unit or "short"}
    if panel.is_now:
        defaults["thresholds"] = {"mode": "absolute", "steps": red}
    return {
        "id": place + 1,
        "type": "stat" if panel.is_now else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": SOURCE,
        "gridPos": {"x": place % across * WIDTH, "y": place // across * HEIGHT, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": SOURCE}
            for number, (legend, expression) in enumerate(panel.queries.items())
        ],
    }
