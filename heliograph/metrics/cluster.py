"""The metrics that are made of the report of the cluster, and by the gateway of itself (pure)."""

from __future__ import annotations

from dataclasses import replace

from heliograph.metrics.metric import Metric, MetricKind

_TRANSPORT = ("transport",)


def _gauge(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"heliograph_{name}", MetricKind.GAUGE, meaning, labels)


def _counter(name: str, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"heliograph_gateway_{name}_total", MetricKind.COUNTER, meaning, labels)


CLUSTER_METRICS: tuple[Metric, ...] = (
    replace(_gauge("build_info", "1, with the version of the part's code", ("part", "version")), is_rays=True),
    _gauge("part_up", "1 if the part is well, 0 if it is expected and is not", ("part", "kind")),
    _gauge("part_scraped", "1 if the part gave its metrics to this scrape, 0 if it lives and did not", ("part",)),
    _gauge("part_clock_skew_seconds", "clock of the part minus that of the operator", ("part",)),
    Metric(
        "heliograph_part_restarts_total", MetricKind.COUNTER, "starts of the part's process after the first", ("part",)
    ),
    _gauge(
        "part_loop_longest_step_seconds",
        "longest step of the event loop of the part's process in the last minute that was found",
        ("part",),
    ),
    Metric(
        "heliograph_part_loop_long_steps_total",
        MetricKind.COUNTER,
        "steps of that loop above 0.1 s, each of which is a line in the log with what it was",
        ("part",),
    ),
    _gauge("report_age_seconds", "age of the report of the cluster; large while no operator leads"),
    _gauge("report_is_silent", "1 while no operator reports: parts that do not register are not seen"),
    _gauge("ledgers_underreplicated", "ledgers that miss copies"),
    _gauge("ledgers_in_repair", "ledgers of which copies are being made now"),
    _gauge("ledgers_moving", "ledgers whose copies move because their bookie leaves"),
    _gauge("ledgers_damaged", "ledgers with entries of which no good copy was found"),
    _gauge("repair_is_paused", "1 while repair is paused on request"),
    _gauge("publishing_problems", "reasons why publishing is stopped or goes on with fewer copies"),
    _gauge("bookies_available", "bookies that take entries"),
    _gauge("bookies_full", "bookies whose disk is full or nearly full"),
)
GATEWAY_METRICS: tuple[Metric, ...] = (
    _gauge("gateway_memory_bytes", "memory of the process"),
    _gauge("gateway_memory_budget_bytes", "memory that the process may use, with all parts in it"),
    _counter("http_requests", "HTTP requests answered", ("method", "route", "status")),
    Metric(
        "heliograph_gateway_http_latency_seconds",
        MetricKind.HISTOGRAM,
        "time from the arrival of an HTTP request until its answer begins",
        ("route",),
    ),
    _gauge(
        "gateway_certificate_end_timestamp_seconds",
        "when the gateway's certificate ends, since the epoch; 0: no TLS",
    ),
    _counter("messages_produced", "messages confirmed as stored", _TRANSPORT),
    _counter("produced_bytes", "payload of messages confirmed as stored", _TRANSPORT),
    _counter("messages_failed", "messages that could not be stored", _TRANSPORT),
    _counter("messages_delivered", "messages handed to consumers and readers", _TRANSPORT),
    _counter("delivered_bytes", "payload of messages handed to consumers and readers", _TRANSPORT),
    _counter("messages_acknowledged", "acknowledgements confirmed as durable", _TRANSPORT),
    _counter("requests", "requests by the outcome of their replies: answered or failed", ("outcome",)),
    _gauge("gateway_sessions", "sessions open now", ("kind",)),
    _counter("bad_frames", "WebSocket frames answered with an error"),
)
