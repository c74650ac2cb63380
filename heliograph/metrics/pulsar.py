"""The same numbers by the names of Pulsar and BookKeeper, for boards that were made for them (pure).

Their names break the rules of Prometheus (counters without ``_total``, abbreviated units, buckets that are not
cumulative), so they are given on request alone. All are gauges there, and so they are here; only what we count is
given, nothing is made up. ``tests/unit/metrics/boards`` lists what two public sets of boards ask for and do not get.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from heliograph.metrics.exposition import escaped
from heliograph.metrics.metric import LATENCY_BOUNDS, SIZE_BOUNDS
from heliograph.metrics.parts import MINUTE, Found

Lines = dict[str, list[str]]  # by Pulsar's name

# Ours by theirs. Samples keep their own labels (namespace, topic, subscription); that of the part becomes its pod.
_OF_TOPICS = {
    "pulsar_topics_count": "heliograph_namespace_topics",
    "pulsar_rate_in": "heliograph_topic_in_messages_rate",
    "pulsar_throughput_in": "heliograph_topic_in_bytes_rate",
    "pulsar_storage_size": "heliograph_topic_stored_bytes",
    "pulsar_storage_backlog_size": "heliograph_topic_backlog_bytes",
    "pulsar_producers_count": "heliograph_topic_producers",
    "pulsar_subscriptions_count": "heliograph_topic_subscriptions",
    "pulsar_consumers_count": "heliograph_topic_consumers",
    "pulsar_subscription_back_log": "heliograph_subscription_backlog_messages",
    "pulsar_subscription_delayed": "heliograph_subscription_delayed_entries",
    "pulsar_subscription_msg_rate_out": "heliograph_subscription_out_messages_rate",
    "pulsar_subscription_msg_throughput_out": "heliograph_subscription_out_bytes_rate",
    "pulsar_subscription_msg_rate_redeliver": "heliograph_subscription_redelivered_entries_rate",
    "pulsar_subscription_msg_ack_rate": "heliograph_subscription_acknowledged_entries_rate",
    "pulsar_subscription_unacked_messages": "heliograph_subscription_unacknowledged_messages",
    "pulsar_subscription_blocked_on_unacked_messages": "heliograph_subscription_is_blocked",
    "pulsar_subscription_consumers_count": "heliograph_subscription_consumers",
    "pulsar_subscription_storage_backlog_age_seconds": "heliograph_subscription_oldest_unacknowledged_seconds",
}
# Of a topic: the sums over its subscriptions.
_SUMS = {
    "pulsar_rate_out": "heliograph_subscription_out_messages_rate",
    "pulsar_throughput_out": "heliograph_subscription_out_bytes_rate",
    "pulsar_msg_backlog": "heliograph_subscription_backlog_messages",
}
_OF_PARTS = {
    "pulsar_broker_topics_count": "heliograph_broker_topics",
    "pulsar_broker_subscriptions_count": "heliograph_broker_subscriptions",
    "pulsar_broker_producers_count": "heliograph_broker_producers",
    "pulsar_broker_consumers_count": "heliograph_broker_consumers",
    "pulsar_in_messages_total": "heliograph_broker_messages_in_total",
    "pulsar_in_bytes_total": "heliograph_broker_in_bytes_total",
    "pulsar_out_messages_total": "heliograph_broker_messages_out_total",
    "pulsar_out_bytes_total": "heliograph_broker_out_bytes_total",
    "bookie_WRITE_BYTES": "heliograph_bookie_journal_fsynced_bytes_total",
    "bookie_READ_BYTES": "heliograph_bookie_read_bytes_total",
    "bookie_ledgers_count": "heliograph_bookie_ledgers",
    "bookie_write_cache_size": "heliograph_bookie_write_cache_bytes",
    "bookie_read_cache_size": "heliograph_bookie_read_cache_bytes",
    "bookie_read_cache_hits": "heliograph_bookie_read_cache_hits_total",
    "bookie_read_cache_misses": "heliograph_bookie_disk_reads_total",
    "bookie_DELETED_LEDGER_TOTAL": "heliograph_bookie_ledgers_deleted_total",
    "bookie_MAJOR_COMPACTION_TOTAL": "heliograph_bookie_major_compactions_total",
    "bookie_MINOR_COMPACTION_COUNT": "heliograph_bookie_minor_compactions_total",
    "auditor_NUM_UNDER_REPLICATED_LEDGERS": "heliograph_auditor_tasks_outstanding",
    "replication_worker_NUM_ENTRIES_WRITTEN": "heliograph_auditor_entries_repaired_total",
    "replication_worker_NUM_BYTES_WRITTEN": "heliograph_auditor_repaired_bytes_total",
}
# Counts of operations, by the label ``success``.
_OPERATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "bookkeeper_server_ADD_ENTRY_count": {
        "true": ("heliograph_bookie_entries_added_total",),
        "false": ("heliograph_bookie_adds_refused_total",),
    },
    "bookkeeper_server_READ_ENTRY_count": {
        "true": ("heliograph_bookie_reads_total", "heliograph_bookie_batch_reads_total"),
        "false": ("heliograph_bookie_disk_reads_failed_total",),
    },
    "bookkeeper_server_READ_ENTRY_REQUEST_count": {
        "true": ("heliograph_bookie_reads_total", "heliograph_bookie_batch_reads_total"),
    },
    "bookie_journal_JOURNAL_SYNC_count": {"true": ("heliograph_bookie_journal_syncs_total",)},
    "bookie_journal_JOURNAL_ADD_ENTRY_count": {"true": ("heliograph_bookie_journal_records_total",)},
}
# Summaries in milliseconds, made of our histograms since the start of the part: bounds of buckets, not exact values.
# Of an add we know the sync of the journal, which is most of it; a read is one that no cache could answer.
_SUMMARIES = {
    "bookie_journal_JOURNAL_SYNC": "heliograph_bookie_journal_sync_latency_seconds",
    "bookie_journal_JOURNAL_ADD_ENTRY": "heliograph_bookie_journal_sync_latency_seconds",
    "bookkeeper_server_ADD_ENTRY": "heliograph_bookie_journal_sync_latency_seconds",
    "bookkeeper_server_READ_ENTRY": "heliograph_bookie_read_latency_seconds",
    "bookkeeper_server_READ_ENTRY_REQUEST": "heliograph_bookie_read_latency_seconds",
}
_QUANTILES = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
# Ends of the buckets of Pulsar's latencies (milliseconds) and sizes; ours that are not among them go to the next.
_WRITES = {
    "0_5": 0.0005,
    "1": 0.001,
    "5": 0.005,
    "10": 0.01,
    "20": 0.025,
    "50": 0.05,
    "100": 0.1,
    "200": 0.25,
    "1000": 1.0,
}
_SIZES = dict(zip(("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb"), SIZE_BOUNDS, strict=False))
_JOBS = {"replicator": "bookie", "auditor": "bookie"}


def pulsar_lines(part: str, kind: str, cluster: str, found: Found) -> Lines:
    """Return the samples of one part, with the labels that boards ask for: cluster, job and kubernetes_pod_name."""
    made = _Made({"cluster": cluster, "job": _JOBS.get(kind, kind), "kubernetes_pod_name": part})
    for theirs, ours in _OF_PARTS.items():
        made.add(theirs, {}, *(value for _, value in found.get(ours, ())))
    for theirs, ours in _OF_TOPICS.items():
        for labels, value in found.get(ours, ()):
            made.add(theirs, dict(zip(("namespace", "topic", "subscription"), labels, strict=False)), value)
    for theirs, ours in _SUMS.items():
        sums: dict[tuple[str, ...], float] = {}
        for labels, value in found.get(ours, ()):
            sums[tuple(labels[:2])] = sums.get(tuple(labels[:2]), 0) + value
        for (namespace, topic), value in sums.items():
            made.add(theirs, {"namespace": namespace, "topic": topic}, value)
    for (namespace, topic), _ in found.get("heliograph_topic_stored_bytes", ()):
        made.add("pulsar_storage_offloaded_size", {"namespace": namespace, "topic": topic}, 0)  # nothing is offloaded
    for _, is_read_only in found.get("heliograph_bookie_is_read_only", ()):
        made.add("bookie_SERVER_STATUS", {}, 1 - int(is_read_only))
    for theirs, outcomes in _OPERATIONS.items():
        for success, names in outcomes.items():
            counts = [value for name in names for _, value in found.get(name, ())]
            made.add(theirs, {"success": success}, *([sum(counts)] if counts else []))
    for theirs, ours in _SUMMARIES.items():
        for _, told in found.get(ours, ()):
            for quantile in _QUANTILES:
                value = 1_000 * quantile_of(told["counts"], LATENCY_BOUNDS, quantile)
                made.add(theirs, {"success": "true", "quantile": str(quantile)}, value)
    for _, minute in found.get(MINUTE, ()):
        _add_buckets(made, "pulsar_storage_write_latency", _WRITES, LATENCY_BOUNDS, minute["publish_latency"])
        _add_buckets(made, "pulsar_entry_size", _SIZES, SIZE_BOUNDS, minute["entry_bytes"])
        made.add("pulsar_storage_write_rate", {}, sum(minute["publish_latency"]) / 60)
    return made.lines


def pulsar_text(parts: Iterable[Lines]) -> str:
    """Return the text of the samples of some parts, each name once."""
    merged: Lines = {}
    for lines in parts:
        for name, more in lines.items():
            merged.setdefault(name, []).extend(more)
    text = [line for name, lines in merged.items() for line in (f"# TYPE {name} gauge", *lines)]
    return "\n".join([*text, ""]) if text else ""


def quantile_of(counts: Sequence[float], bounds: Sequence[float], quantile: float) -> float:
    """Return the upper end of the bucket in which a quantile is; of the last one, which has no end, its lower end."""
    wanted, seen = quantile * sum(counts), 0.0
    for count, bound in zip(counts, bounds, strict=False):
        seen += count
        if seen >= wanted:
            return bound if seen else 0.0
    return bounds[-1]


class _Made:
    def __init__(self, common: Mapping[str, str]) -> None:
        self.lines: Lines = {}
        self._common = ",".join(f'{name}="{escaped(value)}"' for name, value in common.items())

    def add(self, name: str, labels: Mapping[str, str], *values: Any) -> None:
        more = "".join(f',{label}="{escaped(text)}"' for label, text in labels.items())
        for value in values:
            self.lines.setdefault(name, []).append(f"{name}{{{self._common}{more}}} {value + 0}")


def _add_buckets(
    made: _Made, name: str, ends: Mapping[str, float], bounds: Sequence[float], counts: Sequence[float]
) -> None:
    """Add counts of a minute by bucket, which are not cumulative, their sum, and what is above the last end."""
    left = list(zip((*bounds, float("inf")), counts, strict=True))
    for end, bound in ends.items():
        inside = [count for upper, count in left if upper <= bound]
        left = left[len(inside) :]
        made.add(f"{name}_le_{end}", {}, sum(inside))
    for overflow in ("overflow", "le_overflow"):
        made.add(f"{name}_{overflow}", {}, sum(count for _, count in left))
    made.add(f"{name}_count", {}, sum(counts))
