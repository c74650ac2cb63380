"""The metrics of brokers, and of their topics (pure). ``key`` is the name in ``Broker.statistics``."""

from __future__ import annotations

from functools import partial

from heliograph.metrics.metric import Metric, MetricKind, counter_of, gauge_of

counter = partial(counter_of, "heliograph_broker", "broker")
gauge = partial(gauge_of, "heliograph_broker", "broker")

_OF_TOPIC = ("namespace", "topic")
_OF_SUBSCRIPTION = (*_OF_TOPIC, "subscription")
HIDDEN = "_other"  # the label of the topics of a namespace that have no series of their own

BROKER_METRICS: tuple[Metric, ...] = (
    gauge("memory_bytes", "memory of the process, without programs and libraries", is_rays=True),
    gauge("memory_budget_bytes", "memory that the process may use, with all parts in it"),
    counter("unsent_closed", "connections closed because they did not read what they were sent", "unsent_closed_total"),
    gauge("read_ahead_bytes", "entries read ahead for subscriptions"),
    gauge("topics", "loaded topics", is_rays=True),
    gauge("subscriptions", "subscriptions of the loaded topics"),
    gauge("producers", "connected producers", is_rays=True),
    gauge("consumers", "connected consumers", is_rays=True),
    gauge("connections", "open connections", is_rays=True),
    counter(
        "connections_local", "connections accepted over the Unix socket of this machine", "connections_local_total"
    ),
    counter(
        "connections_refused",
        "connections refused because all, an address or a role had as many as they may",
        "connections_refused_total",
    ),
    gauge("unfinished_bytes", "bytes held of frames that are not complete"),
    counter(
        "unfinished_closed",
        "connections closed because a frame did not arrive in its time, or there was no room for it",
        "unfinished_closed_total",
    ),
    counter("messages_in", "messages published"),
    counter("in_bytes", "bytes published", "bytes_in"),
    counter("messages_out", "messages sent to consumers"),
    counter("out_bytes", "bytes sent to consumers", "bytes_out"),
    gauge("bundles", "bundles that the broker owns"),
    counter("entries_in", "entries stored"),
    gauge("publishes_pending", "entries sent to bookies, not confirmed", is_rays=True),
    gauge("load", "load as load balancing sees it; see `broker.balance`", is_rays=True),
    gauge("large_records", "records in metadata, written by the broker, that are above half of their limit"),
    gauge("is_leader", "1 while the broker is the elected leader"),
    counter("bundle_moves", "bundles that the leader moved", "bundle_moves_total"),
    counter("bundle_splits", "bundles that the broker split", "bundle_splits_total"),
    counter("audit_lines_dropped", "lines of the audit log that could not be kept", "audit_lines_dropped_total"),
    counter(
        "rights_revoked",
        "producers, consumers and watchers closed because their role lost the right",
        "rights_revoked_total",
    ),
    counter("orphans_deleted", "deleted ledgers that no record named", "orphans_deleted_total"),
    Metric(
        "heliograph_broker_publish_latency_seconds",
        MetricKind.HISTOGRAM,
        "time from an entry's arrival at its topic until it is confirmed as durable",
        ("broker",),
        "publish_latency",
    ),
    Metric(
        "heliograph_broker_probe_latency_seconds",
        MetricKind.HISTOGRAM,
        "time from the publishing of a probe until it is delivered",
        ("broker",),
        "probe_latency",
    ),
    counter("probes", "probes: messages that the broker publishes to a topic of its own and consumes"),
    counter("probes_failed", "probes that were not delivered within 5 s"),
    gauge("is_probe_failing", "1 if the latest probe failed"),
    Metric(
        "heliograph_broker_delivery_latency_seconds",
        MetricKind.HISTOGRAM,
        "time from the storing of an entry until it is first handed to a consumer, which is long for one that catches "
        "up; in steps of a millisecond",
        ("broker",),
        "delivery_latency",
    ),
    Metric(
        "heliograph_broker_add_latency_seconds",
        MetricKind.HISTOGRAM,
        "time until a bookie answers an add of the broker, of every eighth answer; in steps of a millisecond",
        ("broker", "bookie"),
    ),
    gauge("topics_hidden", 'loaded topics without series of their own, which are in `topic="_other"`'),
)
TOPIC_METRICS: tuple[Metric, ...] = (
    Metric(
        "heliograph_topic_in_messages_rate",
        MetricKind.GAUGE,
        "messages published in a second, over a minute",
        _OF_TOPIC,
    ),
    Metric("heliograph_topic_in_bytes_rate", MetricKind.GAUGE, "bytes published in a second, over a minute", _OF_TOPIC),
    Metric("heliograph_topic_stored_bytes", MetricKind.GAUGE, "payload of all ledgers of the topic", _OF_TOPIC),
    Metric("heliograph_topic_producers", MetricKind.GAUGE, "connected producers", _OF_TOPIC),
    Metric(
        "heliograph_subscription_out_messages_rate",
        MetricKind.GAUGE,
        "messages handed to consumers in a second, over a minute",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_acknowledged_entries_rate",
        MetricKind.GAUGE,
        "entries acknowledged in a second, over a minute",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_backlog_entries",
        MetricKind.GAUGE,
        "entries that are not acknowledged; a batch of messages is one entry",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_backlog_messages",
        MetricKind.GAUGE,
        "messages that are not acknowledged",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_unacknowledged_messages",
        MetricKind.GAUGE,
        "messages that consumers have and did not acknowledge",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_redelivered_entries_rate",
        MetricKind.GAUGE,
        "entries that consumers gave back in a second, over a minute",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_is_blocked",
        MetricKind.GAUGE,
        "1 while nothing more is delivered because too many messages are unacknowledged",
        _OF_SUBSCRIPTION,
    ),
    Metric("heliograph_subscription_consumers", MetricKind.GAUGE, "connected consumers", _OF_SUBSCRIPTION),
    Metric("heliograph_namespace_topics", MetricKind.GAUGE, "loaded topics", ("namespace",)),
    Metric(
        "heliograph_namespace_in_messages_rate",
        MetricKind.GAUGE,
        "messages published in a second, over a minute",
        ("namespace",),
    ),
    Metric(
        "heliograph_namespace_in_bytes_rate",
        MetricKind.GAUGE,
        "bytes published in a second, over a minute",
        ("namespace",),
    ),
    Metric(
        "heliograph_namespace_backlog_messages",
        MetricKind.GAUGE,
        "messages that are not acknowledged, over all subscriptions",
        ("namespace",),
    ),
)
