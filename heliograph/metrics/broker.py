"""The metrics of brokers, and of their topics (pure). ``key`` is the name in ``Broker.statistics``."""

from __future__ import annotations

from functools import partial

from heliograph.metrics.metric import SIZE_BOUNDS, Metric, MetricKind, counter_of, gauge_of, histogram_of

counter = partial(counter_of, "heliograph_broker", "broker")
gauge = partial(gauge_of, "heliograph_broker", "broker")
histogram = partial(histogram_of, "heliograph_broker", "broker")

_OF_TOPIC = ("namespace", "topic")
_OF_SUBSCRIPTION = (*_OF_TOPIC, "subscription")
HIDDEN = "_other"  # the label of the topics of a namespace that have no series of their own
RETRYING = "console-retry"  # the subscription that knows which dead letters were sent back; nobody reads it all day

BROKER_METRICS: tuple[Metric, ...] = (
    gauge("memory_bytes", "memory of the process, without programs and libraries", is_rays=True),
    gauge("memory_budget_bytes", "memory that the process may use, with all parts in it"),
    counter("unsent_closed", "connections closed because the client did not read", "unsent_closed_total"),
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
    counter(
        "upkeep_looks",
        "looks of the broker's upkeep at topics in which something happened, or that were due",
        "upkeep_looks_total",
    ),
    counter("bundle_splits", "bundles that the broker split", "bundle_splits_total"),
    counter("audit_lines_dropped", "lines of the audit log that could not be kept", "audit_lines_dropped_total"),
    counter(
        "rights_revoked",
        "producers, consumers and watchers closed because their role lost the right",
        "rights_revoked_total",
    ),
    counter("orphans_deleted", "deleted ledgers that no record named", "orphans_deleted_total"),
    histogram(
        "publish_latency_seconds",
        "time from an entry's arrival at its topic until it is confirmed as durable",
        "publish_latency",
    ),
    histogram(
        "entry_bytes", "size of the entries stored, with the metadata of their messages", "entry_bytes", SIZE_BOUNDS
    ),
    histogram(
        "acknowledgement_latency_seconds",
        "time from the first acknowledgement of a write to a cursor's ledger until that is durable",
        "acknowledgement_latency",
    ),
    histogram("read_latency_seconds", "time of a read of entries from bookies", "read_latency"),
    histogram(
        "metadata_latency_seconds",
        "time of a call of the broker to the metadata store, also of failed calls",
        "metadata_latency",
    ),
    gauge("metadata_silent_seconds", "time since the metadata store answered last"),
    histogram("probe_latency_seconds", "time from the publishing of a probe until it is delivered", "probe_latency"),
    counter("probes", "probes: messages that the broker publishes to its probe topic and consumes"),
    counter("probes_failed", "probes that were not delivered within 5 s"),
    gauge("is_probe_failing", "1 if the latest probe failed"),
    histogram(
        "delivery_latency_seconds",
        "time from the storing of an entry until it is first handed to a consumer, which is long for one that catches "
        "up; in steps of a millisecond",
        "delivery_latency",
    ),
    histogram(
        "dispatch_duration_seconds",
        "time of a turn of the event loop in which a subscription delivers, of every eighth turn",
        "dispatch_duration",
    ),
    counter("topics_fenced", "open topics that another broker took over; their pending messages were not confirmed"),
    counter("topics_taken_over", "topics that were loaded without an orderly end at the broker before"),
    gauge(
        "certificate_end_timestamp_seconds",
        "when the certificate of the listener for clients ends, since the epoch; 0: no TLS",
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
    Metric(
        "heliograph_topic_backlog_bytes",
        MetricKind.GAUGE,
        "bytes of the largest backlog of a subscription, estimated by the mean size of entries",
        _OF_TOPIC,
    ),
    Metric("heliograph_topic_producers", MetricKind.GAUGE, "connected producers", _OF_TOPIC),
    Metric("heliograph_topic_subscriptions", MetricKind.GAUGE, "subscriptions", _OF_TOPIC),
    Metric("heliograph_topic_consumers", MetricKind.GAUGE, "connected consumers", _OF_TOPIC),
    Metric(
        "heliograph_topic_dead_letters",
        MetricKind.GAUGE,
        "messages that the topic has ever taken; of topics alone whose names end with `-DLQ`, as those do to which "
        "clients send dead letters",
        _OF_TOPIC,
    ),
    Metric(
        "heliograph_subscription_out_messages_rate",
        MetricKind.GAUGE,
        "messages handed to consumers in a second, over a minute",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_out_bytes_rate",
        MetricKind.GAUGE,
        "bytes handed to consumers in a second, over a minute",
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
        "heliograph_subscription_oldest_unacknowledged_seconds",
        MetricKind.GAUGE,
        "time since the oldest entry was stored that is not acknowledged; 0 without a backlog, nothing while it cannot "
        "be read",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_age_limit_seconds",
        MetricKind.GAUGE,
        "how old the oldest unacknowledged entry may be by the quota of backlogs; nothing without such a quota",
        _OF_SUBSCRIPTION,
    ),
    Metric(
        "heliograph_subscription_delayed_entries",
        MetricKind.GAUGE,
        "entries whose delivery time has not come",
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
